"""Each argument is compared with its type before anything is sent."""

import asyncio
import copy
import getpass
import inspect
import pickle
import re
import typing
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import Any

import pytest

import raftlog
from raftlog.client.arguments import Headers, check_of, config_text, headers_of, hints_of
from raftlog.client.async_client import NAMESPACES
from raftlog.client.options import Options
from raftlog.client.values import BrokerState, PartitionCounts
from raftlog.client.wire import reader
from raftlog.errors import ApiError, ConfigError
from raftlog.wire.controller.v1 import controller_pb2 as rpc


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (5, "5"), (True, "true"), (1.5, "1.5"), (["compact", "delete"], "compact,delete")],
)
def test_config_values_are_written_as_in_kafka(value: Any, text: str) -> None:
    assert config_text("k", value) == text


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, 2], b"a", object()])
def test_non_text_config_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"the value of retention\.ms must be a str, a number"):
        config_text("retention.ms", value)


@pytest.mark.parametrize("headers", [["ab"], [("a",)], [(1, b"x")], {"a": 5}])
def test_headers_of_a_wrong_type_are_refused_by_name(headers: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        headers_of(headers)


def test_none_argument_error_says_how_to_get_the_default() -> None:
    with pytest.raises(TypeError, match="NoneType: None; delete the key to restore the default"):
        config_text("retention.ms", None)  # type: ignore[arg-type]


NAN, INFINITY, HUGE = float("nan"), float("inf"), 2**70
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("topics.create", (b"a",), {}, "name must be str, not bytes: b'a'"),
    ("topics.create", ("\ud800",), {}, "name='\\ud800': not valid UTF-8 (surrogates"),
    ("topics.create", ("a",), {"partitions": "3"}, "partitions must be int, not str: '3'"),
    ("topics.create", ("a",), {"partitions": None}, "partitions must be int, not NoneType: None"),
    ("topics.create", ("a",), {"partitions": True}, "partitions must be int, not bool: True"),
    ("topics.create", ("a",), {"partitions": 2**40}, "partitions=1099511627776: must fit into 32"),
    ("topics.create", ("a",), {"assignments": [["1"]]}, "assignments[0][0] must be int, not str"),
    ("topics.create", ("a",), {"assignments": ["1"]}, "assignments[0] must be a list: ['1']"),
    (
        "topics.create",
        ("a",),
        {"configs": "a=1"},
        "configs must be a mapping of keys to values, not",
    ),
    ("topics.create", ("a",), {"validate_only": 1}, "validate_only must be bool, not int: 1"),
    ("topics.create", ("a",), {"acks": ""}, "acks='': must be one of committed, ack"),
    ("topics.create_all", (["a"],), {}, "topics[0] must be NewTopic, not str: 'a'"),
    ("topics.create_all", ([raftlog.NewTopic("a", "3")],), {}, "topics[0].partitions must be int"),  # type: ignore[arg-type]
    (
        "topics.delete",
        (["a"],),
        {},
        "names[0] must not be a list, but is list: ['a']: unpack it as",
    ),
    (
        "topics.delete",
        ("a",),
        {"ack": 1},
        "AsyncTopics.delete() got an unexpected keyword argument",
    ),
    ("topics.list", (), {"read": ""}, "read='': must be one of repeatable, latest, strict"),
    ("topics.list", (), {"timeout_s": True}, "timeout_s must be a number, not bool: True"),
    ("topics.list", (), {"timeout_s": NAN}, "timeout_s must be a number, not float: nan"),
    ("topics.list", (), {"timeout_s": 0}, "timeout_s=0: must be between 0.001 seconds and one day"),
    ("configs.alter", ("topic", "t"), {"set": {5: "x"}}, "set key must be str, not int: 5"),
    (
        "configs.alter",
        ("topic", "t"),
        {"append": {"k": [5]}},
        "append['k'][0] must be str, not int",
    ),
    ("configs.alter", ("topic", "t"), {"set": {"a": None}}, "the value of a must be a str"),
    ("configs.describe", (5,), {}, "kind=5: must be one of topic, broker"),
    ("configs.describe", ("topic", None), {}, "name must be str or int, not NoneType: None"),
    ("kv.put", ("k", "\ud800"), {}, "value='\\ud800': not valid UTF-8 (surrogates not allowed"),
    ("kv.put", ("k", "v"), {"generation": HUGE}, f"generation={HUGE}: must fit into 64 bits"),
    (
        "kv.put",
        ("k", "v"),
        {"expected": HUGE},
        f"expected={HUGE}: must be at least 0, or raftlog.ABS",
    ),
    (
        "configs.alter",
        ("topic", "t"),
        {"expected": {"segment.ms": 1}},
        "expected names keys that are neither set nor deleted: segment.ms",
    ),
    ("kv.put", ("k", "v"), {"expected": -1}, "expected=-1: must be at least 0, or raftlog.ABSENT"),
    ("kv.delete", ("k",), {"expected": -2}, "expected=-2: must be at least 0, or raftlog.ABSENT"),
    ("kv.alter", ("x",), {}, "changes[0] must be Put or Expect or Delete, not str: 'x'"),
    ("kv.alter", (raftlog.Put("k", 5),), {}, "changes[0].value must be str or bytes, not int: 5"),  # type: ignore[arg-type]
    ("leases.grant", (INFINITY,), {}, "ttl_s=inf: must be above 0 and at most"),
    ("leases.grant", (0,), {}, "ttl_s=0: must be above 0 and at most"),
    ("partitions.elect_leaders", (None, 3), {}, "partitions are given without a topic"),
    ("features.update", ({"metadata.version": "8"},), {}, "levels['metadata.version'] must be int"),
    ("export_cursors.set", ("c", 2**63), {}, f"end_offset={2**63}: must fit into 64 bits"),
    ("watch", (), {"initial": True, "since": "0-1-1"}, "initial and since cannot be combined"),
    ("produce", ("a", "x"), {"headers": 5}, "headers must be a mapping, or pairs"),
    (
        "consume",
        ("a",),
        {"offset": True},
        "offset=True: must be a number of at least 0, 'earliest'",
    ),
    ("consume", ("a",), {"offset": HUGE}, f"offset={HUGE}: must be a number of at least 0, 'earl"),
    ("see", (5,), {}, "token must be str or Token, not int: 5"),
    ("see", ("5",), {}, "token: '5' is not a token"),
]


@pytest.mark.parametrize(("call", "args", "named", "message"), WRONG)
async def test_wrong_argument_is_refused_by_name_before_anything_is_sent(
    call: str, args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    async with raftlog.AsyncClient("127.0.0.1:1", timeout_s=0.1) as client:
        with pytest.raises((TypeError, ValueError), match="^" + re.escape(message)):
            await attrgetter(call)(client)(*args, **named)


RIGHT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("topics.create", ("a",), {"partitions": 2**31 - 1, "configs": {"k": ["a"]}}),
    ("topics.create", ("a",), {"assignments": ((1, 2), range(2)), "timeout_s": 1, "acks": None}),
    ("topics.create_all", ([raftlog.NewTopic("a")],), {}),
    ("topics.delete", ("a", "b"), {"acks": raftlog.Acks.VISIBLE}),
    ("configs.alter", ("broker", 1), {"set": {"k": 5}, "delete": {"a": 1}.keys()}),
    ("configs.alter", ("topic", "t"), {"append": {"k": "a"}, "subtract": {"l": ["a"]}}),
    ("kv.put", ("k", b""), {"lease_id": raftlog.LogOffset(2**40, 1), "expected": 2**40}),
    ("kv.put", ("k", "é"), {"expected": raftlog.ABSENT}),
    ("kv.put", ("k", "v"), {"expected": copy.deepcopy(pickle.loads(pickle.dumps(raftlog.ABSENT)))}),
    ("partitions.reassign", ("t", {0: (1, 2)}), {"keep_replication_factor": True}),
    ("leases.grant", (Fraction(5, 2),), {}),
    ("leases.revoke", (5,), {"generation": 10**17}),
    ("quorum.transfer", (), {"to": None}),
]


@pytest.mark.parametrize(("call", "args", "named"), RIGHT)
async def test_right_argument_is_sent(
    call: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    async with raftlog.AsyncClient("127.0.0.1:1", timeout_s=0.1, exactly_once=False) as client:
        with pytest.raises(ApiError):
            await attrgetter(call)(client)(*args, **{"timeout_s": 0.01} | named)


async def test_each_argument_of_each_call_is_compared_with_its_type() -> None:
    """The table above has the arguments that are checked where they are used."""
    client, unchecked, refused = raftlog.AsyncClient("127.0.0.1:1"), set(), 0
    calls: list[Any] = [client.produce, client.consume, client.watch, client.see]
    for group in NAMESPACES:
        found = inspect.getmembers(getattr(client, group), inspect.iscoroutinefunction)
        calls += [call for name, call in found if not name.startswith("_")]
    for call in calls:
        for name, hint in hints_of(call).items():
            if check_of(hint) is check_of(Headers):
                unchecked.add(name)
                continue
            before, star, _ = str(inspect.signature(call)).partition(f"*{name}:")
            args = ["a"] * before.count(":") + [object()] if star else []
            with pytest.raises(TypeError, match=rf"^{name}(\[0\])? must be "):
                await call(*args, **({} if star else {name: object()}))
            refused += 1
    assert unchecked == {"acks", "read", "kind", "expected", "expected_offset", "headers", "offset"}
    assert refused > 100


def test_kv_alter_without_changes_changes_nothing() -> None:
    async def alter() -> raftlog.WriteResult:
        async with raftlog.AsyncClient("127.0.0.1:1") as client:
            return await client.kv.alter()

    assert asyncio.run(alter()) == raftlog.WriteResult(None, None)


async def test_quorum_is_described_by_controllers_only() -> None:
    async with raftlog.AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ConfigError, match="pass controllers="):
            await client.quorum.describe()


async def test_token_is_validated_without_a_cluster() -> None:
    async with raftlog.AsyncClient("127.0.0.1:1") as client:
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
            with pytest.raises(
                TypeError, match=r"expected\w* must be .* or raftlog.UNCONDITIONAL, not"
            ):
                await call


async def test_negative_expected_offset_is_refused_by_argument_name() -> None:
    async with raftlog.AsyncClient("127.0.0.1:1", timeout_s=0.1) as client:
        for group in (client.hostnames, client.export_cursors):
            with pytest.raises(ValueError, match=r"\Aexpected_offset=-5: must be at least 0"):
                await group.set("a", 1, expected_offset=-5)
            with pytest.raises(ValueError, match=r"\Aexpected_offset=-5: must be at least 0"):
                await group.delete("a", expected_offset=-5)
            with pytest.raises(ValueError, match=r"\Aexpected=-5: must be at least 0"):
                await group.delete_all({"a": -5})


def test_result_of_an_empty_write_has_no_offset() -> None:
    with pytest.raises(ValueError, match="nothing was written"):
        _ = raftlog.WriteResult(None, None).offset


@pytest.mark.parametrize("timeout_s", [0, -1, 0.0001, "5", None, True, 86_401, NAN])
def test_timeout_is_a_number_of_seconds(timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout_s=.*: must be between 0.001 seconds"):
        raftlog.Client("127.0.0.1:1", timeout_s=timeout_s).close()


@pytest.mark.parametrize("bootstrap", [9092, ["a:1", 5], {"a:1"}, None])
def test_non_text_bootstrap_is_refused(bootstrap: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap=.*: must be host:port, or several"):
        Options.of(bootstrap, {})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("principal", 5),
        ("client_id", 5),
        ("client_id", None),
        ("cluster_id", b"x"),
        ("exactly_once", 1),
        ("token", 5),
        ("token_file", 5),
        ("tls_ca_file", 5),
        ("acks", ""),
        ("read", 5),
    ],
)
def test_option_of_a_wrong_type_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{option}( must be|=)"):
        Options.of("h:1", typing.cast("Any", {option: value}))


def test_principal_defaults_to_the_user_of_the_machine() -> None:
    assert Options.of("h:1", {}).principal == getpass.getuser()
    assert Options.of("h:1", {"principal": ""}).principal == ""
    assert Options.of("h:1", {"principal": "User:me"}).principal == "User:me"


@dataclass
class Shown:
    """A value of a message about a broker."""

    id: int
    host: str
    rack: str | None
    told: int | None
    state: BrokerState
    ids: tuple[int, ...]
    odd: bool


def test_reader_maps_fields_by_name_and_source_and_unknown_ones_to_none() -> None:
    read = reader(
        Shown,
        id="broker_id",
        host="endpoint",
        told="told_lowest_acknowledged_offset",
        ids=lambda message: (message.broker_id,),
        odd=lambda message: message.broker_id % 2 == 1,
    )
    known = rpc.DescribedBroker(
        broker_id=5, endpoint="h", rack="r", state=rpc.ACTIVE, told_lowest_acknowledged_offset=0
    )
    assert read(known) == Shown(5, "h", "r", 0, BrokerState.ACTIVE, (5,), True)
    unknown = rpc.DescribedBroker(broker_id=4, told_lowest_acknowledged_offset=-1)
    assert read(unknown) == Shown(4, "", None, None, BrokerState.INITIAL, (4,), False)
    listed = reader(PartitionCounts)(rpc.PartitionCounts(total=3, offline=1))
    assert (listed.total, listed.offline, listed.recovering) == (3, 1, 0)


def test_types_of_a_value_are_resolved_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """[one reader for each message: to find the types took ten times as long as to read it]"""

    @dataclass
    class Counted:
        """A value of a message."""

        total: int

    found: list[type] = []

    def get_type_hints(kind: type) -> dict[str, Any]:
        found.append(kind)
        return {"total": int}

    monkeypatch.setattr("raftlog.client.wire.get_type_hints", get_type_hints)
    for number in range(3):
        assert reader(Counted)(rpc.PartitionCounts(total=number)) == Counted(number)
    assert found == [Counted]
