from dataclasses import replace

import pytest
from deciding import Cell, registration

from controller.decision import Write
from controller.decisions.quorum.features import (
    HEARD_WITHIN_MS,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
)
from controller.settings import ControllerSettings
from raftlog.endpoint import Voter
from raftlog.errors import ErrorCode
from raftlog.metadata import versions
from raftlog.metadata.records import record
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


class Quorum:
    """A fake quorum core; node 1 leads. Without directories no voter set is logged."""

    def __init__(self, levels: dict[int, int]) -> None:
        self.voters = {
            node_id: ReplicaDescription(node_id, "", 9, 10, 10, max_metadata_version=level)
            for node_id, level in levels.items()
        }

    def __call__(self, now: float) -> QuorumDescription:
        voter_set = tuple(Voter(node_id, f"h{node_id}:1") for node_id in (1, 2, 3))
        known = tuple(self.voters[node_id] for node_id in sorted(self.voters))
        return QuorumDescription("leader", 1, 1, 1, 0, 9, 9, 9, 0, known, (), voter_set, 100)

    def silent(self, node_id: int, age_ms: int) -> None:
        self.voters[node_id] = replace(self.voters[node_id], last_fetch_age_ms=age_ms)


def cell(quorum: Quorum | None, level: int = 1, brokers: int = 2) -> Cell:
    return Cell(
        brokers, settings=ControllerSettings(bootstrap_metadata_version=level), quorum=quorum
    )


def update(
    *levels: tuple[str, int], kind: int = UPGRADE, validate_only: bool = False
) -> rpc.UpdateFeaturesRequest:
    updates = [rpc.FeatureUpdate(name=n, max_version_level=v, upgrade_type=kind) for n, v in levels]
    return rpc.UpdateFeaturesRequest(updates=updates, validate_only=validate_only)


def refused(cell: Cell, request: rpc.UpdateFeaturesRequest) -> tuple[str, str]:
    decision = cell.decide(request)
    assert not decision.records
    assert decision.error is not None
    assert decision.error.code == ErrorCode.INVALID_UPDATE_VERSION
    return decision.error.message, decision.error.field


NEXT = versions.LATEST_METADATA_VERSION + 1
"""A level that this build does not know."""
SUPPORTED = f"supports metadata.version 1 to {NEXT - 1}"
SILENT = "has not been heard from recently"
TO_2 = update(("metadata.version", 2))
TO_1 = update(("metadata.version", 1), kind=SAFE_DOWNGRADE)


def test_level_that_all_nodes_support_is_finalized_once() -> None:
    at = cell(Quorum({1: 2, 2: 2, 3: 2}))
    assert at.pending.features["metadata.version"] == 1
    assert not at.decide(update(("metadata.version", 2), validate_only=True)).records
    decision = at.propose(at.decide(TO_2))
    assert [one.message for one in decision.records] == [
        pb.FeatureLevelRecord(name="metadata.version", feature_level=2)
    ]
    assert at.pending.features["metadata.version"] == 2
    assert at.propose(at.decide(TO_2)).records == []


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        ({1: 2, 2: 1, 3: 2}, "voter 2 supports metadata.version up to 1, not 2"),
        ({1: 2, 2: 2, 3: 1}, "voter 3 supports metadata.version up to 1, not 2"),
        ({1: 2, 2: 2}, f"voter 3 {SILENT}: whether it supports metadata.version 2 is unknown"),
    ],
)
def test_every_voter_must_support_the_level(levels: dict[int, int], says: str) -> None:
    assert refused(cell(Quorum(levels)), TO_2) == (says, "updates[0].max_version_level")


@pytest.mark.parametrize("age_ms", [-1, HEARD_WITHIN_MS + 1])
def test_level_change_is_refused_while_a_voter_other_than_the_leader_is_silent(age_ms: int) -> None:
    quorum = Quorum({1: 1, 2: 2, 3: 2})
    quorum.silent(1, age_ms)
    assert cell(quorum).decide(TO_2).records, "it supports the levels of its own build"
    lowered = cell(quorum, level=2)
    quorum.silent(2, age_ms)
    assert "voter 2 has not been heard from" in refused(cell(quorum), TO_2)[0]
    assert "voter 2 has not been heard from" in refused(lowered, TO_1)[0]
    assert "does not know the voters yet" in refused(cell(None), TO_2)[0]


def test_every_registered_broker_must_support_the_level_even_if_fenced() -> None:
    at = cell(Quorum({1: 2, 2: 2, 3: 2}))
    old = [
        pb.FeatureRange(name=n, min_supported_version=1, max_supported_version=1)
        for n in ("metadata.version", "lao.version")
    ]
    at.send(registration(7, features=old))
    assert at.pending.brokers[7].fenced
    assert refused(at, TO_2)[0] == "broker 7 supports metadata.version 1 to 1, not 2"
    at.send(rpc.UnregisterBrokerRequest(broker_id=7))
    assert at.decide(TO_2).records


def test_feature_updates_apply_all_or_none() -> None:
    at = cell(Quorum({1: 2, 2: 1, 3: 2}))
    _, field = refused(at, update(("lao.version", 0), ("metadata.version", 2), kind=SAFE_DOWNGRADE))
    assert field == "updates[1].upgrade_type"
    assert at.pending.features["lao.version"] == 1
    assert (
        refused(at, update(("metadata.version", 2), ("nope", 1)))[1]
        == "updates[0].max_version_level"
    )
    decision = at.decide(update(("metadata.version", 2), ("metadata.version", 2)))
    assert decision.error is not None
    assert decision.error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_UPDATE_VERSION)


@pytest.mark.parametrize(
    ("request_", "says", "field"),
    [
        (update(("nope", 1)), "'nope' is not a feature", "name"),
        (update(("metadata.version", NEXT)), f"{SUPPORTED}, not {NEXT}", "max_version_level"),
        (
            update(("metadata.version", 0), kind=SAFE_DOWNGRADE),
            f"{SUPPORTED}, not 0",
            "max_version_level",
        ),
        (update(("metadata.version", 2), kind=0), "upgrade_type 0 is unknown", "upgrade_type"),
        (update(("metadata.version", 1)), "at 2: 1 would be a downgrade", "upgrade_type"),
        (update(("lao.version", 0), kind=UPGRADE), "at 1: 0 would be a downgrade", "upgrade_type"),
    ],
)
def test_direction_of_a_feature_update_must_match_its_type(
    request_: rpc.UpdateFeaturesRequest, says: str, field: str
) -> None:
    message, where = refused(cell(Quorum({1: 2, 2: 2, 3: 2}), level=2), request_)
    assert says in message
    assert where == f"updates[0].{field}"


def test_level_is_lowered_and_raised_again_whatever_records_the_log_has() -> None:
    at = cell(Quorum({1: 2, 2: 2, 3: 2}), level=2)
    client_id = at.send(rpc.OpenClientRequest()).client_id
    for made in (
        pb.KeyValueRecord(key="locks/a", value=b"1"),
        pb.HostnameRecord(hostname="h", broker_id=4),
        pb.ExportCursorRecord(name="nightly", end_offset=1),
        pb.AccessControlEntryRecord(id=b"i" * 16, principal="User:a", host="*"),
    ):
        at.propose(Write([record(made)]))
    for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        at.send(update(("metadata.version", 1), kind=kind))
        assert at.pending.features["metadata.version"] == 1
        at.send(TO_2)
    assert client_id in at.pending.snapshot().clients


def test_downgrade_names_a_broker_that_knows_only_the_higher_level() -> None:
    at = cell(Quorum({1: 2, 2: 2, 3: 2}), level=2)
    newer = [
        pb.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
        for name, low, high in (("metadata.version", 2, 2), ("lao.version", 0, 1))
    ]
    at.send(registration(7, features=newer))
    assert refused(at, TO_1)[0] == "broker 7 supports metadata.version 2 to 2, not 1"


def test_downgrade_states_its_consequences_and_upgrade_does_not() -> None:
    at = cell(Quorum({1: 2, 2: 2, 3: 2}), level=2)
    both = update(
        ("metadata.version", 1), ("lao.version", 0), kind=SAFE_DOWNGRADE, validate_only=True
    )
    first, second = at.send(both).warnings
    assert first.startswith(
        "metadata.version goes from 2 to 1: ISR changes no longer need broker epochs"
    )
    assert second.startswith(
        "lao.version goes from 1 to 0: the lowest acknowledged offset is no longer promised"
    )
    at.send(TO_1)
    assert list(at.send(TO_2).warnings) == []


def test_pinned_controller_supports_the_previous_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "LATEST_METADATA_VERSION", 1)
    at = cell(Quorum({1: 2, 2: 2, 3: 2}), level=0)
    assert at.pending.features["metadata.version"] == 1
    assert "supports metadata.version 1 to 1, not 2" in refused(at, TO_2)[0]
