"""What a careless user types: keys that are not there, keys that do nothing, the other spelling."""

from __future__ import annotations

import pytest
from command_lines import Raftlog

from raftlog.cli.config_hints import did_you_mean, without_effect
from raftlog.cli.local import LocalCluster
from raftlog.cli.spellings import respelled

TOPIC, BROKER, CLIENTS = 2, 4, 16


@pytest.mark.parametrize(
    ("name", "meant"),
    [("retention.m", "retention.ms"), ("min.insync.replica", "min.insync.replicas"), ("zzz", "")],
)
def test_which_key_was_meant(name: str, meant: str) -> None:
    assert did_you_mean(TOPIC, ["cleanup.policy", name]) == (
        f"did you mean {meant}?" if meant else ""
    )


def test_keys_without_effect_are_named() -> None:
    assert without_effect(TOPIC, ["retention.ms", "min.insync.replicas"]) == (
        "note: retention.ms is kept and shown, but this build does not act on it"
    )
    assert not without_effect(BROKER, ["message.max.bytes"])
    assert "log.retention.ms" in without_effect(BROKER, ["log.retention.ms"])
    assert not without_effect(CLIENTS, ["match"])
    assert not without_effect(TOPIC, ["there.is.none"])


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
def test_one_spelling_finds_both(typed: str, meant: str) -> None:
    assert respelled(typed.split()) == meant.split()


def test_what_the_commands_say(raftlog: Raftlog, cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    assert raftlog("topics", "create", "hinted", *at).code == 0
    wrong = raftlog("configs", "alter", "topic", "hinted", "--set", "retention.m=1", *at)
    assert wrong.code == 1
    assert "did you mean retention.ms?" in wrong.err
    idle = raftlog("configs", "alter", "topic", "hinted", "--set", "retention.ms=1", *at)
    assert idle.code == 0
    assert "does not act on it" in idle.err
    shown = raftlog("config", "describe", "topic", "hinted", "--key", "retention.m", *at)
    assert shown.code == 1
    assert "did you mean retention.ms?" in shown.err
