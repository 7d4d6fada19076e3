"""Hints at mistyped keys, keys without effect, and the names of KIP-343."""

import re
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.aliases import OLD_NAMES, with_old_name
from raftlog.cli.built_in import respelled
from raftlog.cli.configs import did_you_mean, source_text, without_effect
from raftlog.client.configs import _entry
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import ResourceType
from raftlog.wire.broker.v1 import broker_pb2

ROOT = Path(__file__).resolve().parents[2]
TOPIC, BROKER, CLIENTS = 2, 4, 16
KEY = re.compile(r'"([a-z.]+)"')


@pytest.mark.parametrize(
    ("name", "meant"),
    [("retention.m", "retention.ms"), ("min.insync.replica", "min.insync.replicas"), ("zzz", "")],
)
def test_unknown_key_hint_names_the_nearest_key(name: str, meant: str) -> None:
    assert did_you_mean(TOPIC, ["cleanup.policy", name]) == (
        f"did you mean {meant}?" if meant else ""
    )


def test_keys_without_effect_are_reported() -> None:
    assert without_effect(TOPIC, {"segment.ms": "1", "retention.ms": "1"}) == (
        "note: segment.ms is stored and shown, but this build does not act on it"
    )
    assert not without_effect(BROKER, {"message.max.bytes": "1", "log.retention.ms": "1"})
    assert without_effect(
        BROKER,
        {"min.insync.replicas": "1", "cordoned": "true"},
        {"min.insync.replicas", "cordoned"},
    ) == (
        "note: min.insync.replicas: no effect if set on a single broker; to set it for all"
        ' brokers, give "" as the name'
    )
    assert "log.segment.bytes" in without_effect(BROKER, {"log.segment.bytes": "1"})
    assert not without_effect(CLIENTS, {"match": ""})
    assert not without_effect(TOPIC, {"there.is.none": "1"})
    assert not without_effect(TOPIC, {"cleanup.policy": "delete"})
    assert without_effect(BROKER, {"log.cleanup.policy": "compact,delete"}) == (
        "note: log.cleanup.policy: this build does not compact topics; only the policy delete removes records"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("config describe topic a", "configs describe topic a"),
        ("configs keys", "config keys"),
        ("config check f", "config check f"),
        ("broker list", "brokers list"),
        ("brokers run -c f", "broker run -c f"),
        ("topic create a", "topics create a"),
        ("broker run", "broker run"),
        ("", ""),
    ],
)
def test_command_group_is_found_in_singular_and_plural(typed: str, meant: str) -> None:
    assert respelled(typed.split()) == meant.split()


def test_config_commands_print_the_hint(through: Raftlog) -> None:
    through.succeed("topics create hinted")
    through("configs alter topic hinted --set retention.m=1").refused(
        1, "did you mean retention.ms?"
    )
    idle = through.succeed("configs alter topic hinted --set segment.ms=1")
    assert "does not act on it" in idle.err
    create = ("topics", "create", "hinted-2", "--config")
    through(*create, "retention.m=1").refused(1, "did you mean retention.ms?")
    idle = through.succeed(*create, "segment.ms=1")
    assert "segment.ms is stored and shown, but this build does not act on it" in idle.err
    shown = through("configs describe topic hinted --read latest")
    # Only what was set: the defaults of keys that do nothing are nobody's mistake.
    assert shown.err == "note: segment.ms is stored and shown, but this build does not act on it\n"
    lines = {line.split()[0]: line for line in shown.out.splitlines()}
    assert lines.keys() >= {"retention.ms", "min.insync.replicas"}, "defaults that are acted on"
    assert "segment.jitter.ms" not in lines
    everything = through("configs describe topic hinted --read latest --all").out
    unused = [
        line
        for line in everything.splitlines()
        if line.endswith("default (no effect in this build)")
    ]
    assert len(unused) > 10
    assert (
        f"({len(unused)} defaults without effect in this build not shown: --all)" in lines.values()
    )
    shown = through("configs describe topic hinted --key max.message.bytes")
    assert not shown.err
    through("config describe topic hinted --key retention.m").refused(
        1, "did you mean retention.ms?"
    )


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_no_example_sets_a_key_without_effect(name: str) -> None:
    text = (ROOT / name).read_text()
    used = set(re.findall(r"--(?:set|topic-config|config|key) ([a-z.]+)", text))
    used |= {key for given in re.findall(r"set={([^}]*)}", text) for key in KEY.findall(given)}
    assert used
    for kind in (TOPIC, BROKER):
        assert not without_effect(kind, dict.fromkeys(used, ""))


@pytest.mark.parametrize(
    ("kind", "name", "value", "mark"),
    [
        (ResourceType.TOPIC, "cleanup.policy", "compact", "this build does not compact"),
        (ResourceType.TOPIC, "cleanup.policy", "delete", ""),
        (
            ResourceType.BROKER,
            "log.cleanup.policy",
            "delete,compact",
            "this build does not compact",
        ),
        (ResourceType.TOPIC, "segment.bytes", "1073741824", "no effect in this build"),
        (ResourceType.TOPIC, "retention.ms", "1", ""),
        (ResourceType.GROUP, "a.key.of.somebody", "1", ""),
    ],
)
def test_value_without_effect_is_reported_to_every_reader(
    kind: ResourceType, name: str, value: str, mark: str
) -> None:
    """[only the operator who had set it saw the note; a year later others saw a compacted topic]"""
    described = broker_pb2.DescribedConfig(name=name, value=value, config_source=5)
    entry = _entry(int(kind), described)
    assert entry.without_effect == mark
    assert source_text(entry) == (f"default ({mark})" if mark else "default")


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", OLD_NAMES)
def test_protocol_page_lists_old_and_new_names(name: str) -> None:
    text = (DOCS / "protocol.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and OLD_NAMES[name] in line]
    assert any(name in line or name.replace(" ", "_") in line for line in rows)


def test_error_shows_old_and_new_names() -> None:
    error = ApiError(
        ErrorCode.STALE_BROKER_EPOCH, "broker 1 is not registered", field="broker_epoch"
    )
    assert (
        str(error)
        == "STALE_BROKER_EPOCH (KIP-343: INVALID_INCARNATION_ID): broker 1 is not registered (field"
        " broker_epoch)"
    )
    assert str(ApiError(ErrorCode.INVALID_REQUEST, "no")) == "INVALID_REQUEST: no"
    assert with_old_name("broker epoch") == "broker epoch (KIP-343: incarnation id)"


def test_help_shows_the_former_name(raftlog: Raftlog) -> None:
    assert "incarnation id" in " ".join(raftlog("brokers list --help").out.split())
