"""What a call is given: of a wrong type it is refused by name, before anything is sent."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

import raftlog
from raftlog.errors import ConfigError
from raftlog.library.arguments import bytes_of, config_text, headers_of, keys_of, mapping
from raftlog.library.options import Options


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (5, "5"), (True, "true"), (1.5, "1.5"), (["compact", "delete"], "compact,delete")],
)
def test_a_config_is_written_as_kafka_writes_it(value: Any, text: str) -> None:
    assert config_text("k", value) == text


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, 2], b"a", object()])
def test_what_would_be_the_text_of_a_python_object_is_no_config(value: Any) -> None:
    with pytest.raises(TypeError, match=r"the value of retention\.ms is a str, a number"):
        config_text("retention.ms", value)


@pytest.mark.parametrize("headers", [["ab"], [("a",)], [(1, b"x")], {"a": 5}])
def test_headers_of_a_wrong_type_are_refused_by_name(headers: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        headers_of(headers)


def test_none_says_how_the_default_is_had() -> None:
    with pytest.raises(TypeError, match="NoneType: None; to have the default, delete the key"):
        config_text("retention.ms", None)  # type: ignore[arg-type]


def test_one_key_is_not_a_list_of_letters() -> None:
    with pytest.raises(TypeError, match=r"delete is a list of keys: \['retention.ms'\]"):
        keys_of("retention.ms", "delete")
    assert keys_of(["a"], "delete") == ["a"]
    with pytest.raises(TypeError, match="set is a mapping of keys to values, not str: 'a=1'"):
        mapping("a=1", "set")  # type: ignore[arg-type]
    assert mapping(None, "set") == {}
    with pytest.raises(TypeError, match="key is str or bytes, not int: 5"):
        bytes_of(5, "key")  # type: ignore[arg-type]


async def test_calls_say_it_without_a_cluster() -> None:
    async with raftlog.AsyncClient("127.0.0.1:1") as client:
        alter: Any = client.configs.alter
        with pytest.raises(TypeError, match="delete is a list of keys"):
            await alter("topic", "t", delete="retention.ms")
        with pytest.raises(TypeError, match="the value of a is a str"):
            await alter("topic", "t", set={"a": None})
        with pytest.raises(TypeError, match="value is str or bytes, not int: 5"):
            await client.produce("t", 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'5' is no token"):
            await client.see("5")
        await client.see("0-1-5")
        assert client.token == raftlog.Token(0, 1, 5)


@pytest.mark.parametrize("argument", [None, "5", True, 5.0])
async def test_condition_of_another_type_is_refused_before_anything_is_sent(argument: Any) -> None:
    async with raftlog.AsyncClient("127.0.0.1:1", timeout_s=0.1) as client:
        calls = [
            client.kv.put("k", "v", expected=argument),
            client.kv.delete("k", expected=argument),
            client.kv.alter(raftlog.Expect("k", expected_create=argument)),
            client.hostnames.set("h", 1, expected_offset=argument),
            client.hostnames.delete("h", expected_offset=argument),
            client.export_cursors.set("c", 1, expected_offset=argument),
            client.export_cursors.delete("c", expected_offset=argument),
            client.configs.alter("topic", "t", set={"a": "1"}, expected=argument),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=r"expected\w* is .* or raftlog.UNCONDITIONAL, not"):
                await call


def test_result_of_a_write_that_wrote_nothing_has_no_offset() -> None:
    with pytest.raises(ValueError, match="nothing was written"):
        _ = raftlog.WriteResult(None, None).offset


@pytest.mark.parametrize("timeout_s", [0, -1, 0.0001, "5", None, 86_401, float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout_s=.*: seconds, at least 0.001"):
        raftlog.Client("127.0.0.1:1", timeout_s=timeout_s).close()


@pytest.mark.parametrize("bootstrap", [9092, ["a:1", 5], {"a:1"}, None])
def test_addresses_are_text(bootstrap: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap=.*: host:port, several with commas"):
        Options.of(bootstrap, {})


def test_principal_is_the_user_of_this_machine_unless_one_is_given() -> None:
    assert Options.of("h:1", {}).principal == getpass.getuser()
    assert Options.of("h:1", {"principal": ""}).principal == ""
    assert Options.of("h:1", {"principal": "User:me"}).principal == "User:me"


def test_what_the_guide_names_is_there_without_another_import() -> None:
    assert raftlog.recipes.Lock.__name__ == "Lock"
    assert callable(raftlog.tracing.enable)
    assert raftlog.errors.OtherServerError("a", "b").retriable is False  # type: ignore[arg-type]
