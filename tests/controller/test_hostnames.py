"""The mapping from hostnames to broker ids (KIP-426)."""

from typing import Any

import pytest
from deciding import Cell, at, registration
from msgspec import structs

from controller.decision import Write
from controller.decisions.brokers import hostnames
from controller.decisions.brokers.hostnames import COLLECT_INTERVAL_S, COLLECT_MAX
from raftlog.errors import CorruptLogError, ErrorCode
from raftlog.metadata.entities import HostnameCause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

INVALID, MOVED = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_UPDATE_VERSION


def mapped(cell: Cell) -> dict[str, int]:
    return {name: one.broker_id for name, one in sorted(cell.pending.snapshot().hostnames.items())}


def alter(*alterations: dict[str, Any], **fields: Any) -> rpc.AlterHostnamesRequest:
    return rpc.AlterHostnamesRequest(
        alterations=[rpc.HostnameAlteration(**one) for one in alterations], **fields
    )


def test_every_registration_maps_its_host_in_its_own_batch() -> None:
    cell = Cell(brokers=0)
    decision = cell.propose(cell.decide(registration(4, listeners=at("Rack1-A.example."))))
    assert decision.types == ["REGISTER_BROKER", "HOSTNAME"]
    found = cell.pending.hostnames["rack1-a.example"]
    assert (found.broker_id, found.version, found.offset) == (4, 0, cell.pending.offset)
    assert found.cause == HostnameCause.BY_REGISTRATION
    decision = cell.propose(cell.decide(registration(4, listeners=at("g"))))
    assert decision.types == ["REGISTER_BROKER", "HOSTNAME"], "the process has moved"
    assert mapped(cell) == {"g": 4, "rack1-a.example": 4}


def test_only_changed_mappings_are_written() -> None:
    cell = Cell(brokers=0)
    cell.register(4, listeners=at("h"))
    before = cell.pending.hostnames["h"]
    cell.silence(4)
    cell.propose(cell.decide(rpc.UnregisterBrokerRequest(broker_id=4)))
    decision = cell.propose(cell.decide(registration(4, "again", listeners=at("h"))))
    assert decision.types == ["REGISTER_BROKER"]
    assert cell.pending.hostnames["h"] == before
    decision = cell.propose(cell.decide(registration(5, listeners=at("h", 9093))))
    assert decision.types == ["REGISTER_BROKER", "HOSTNAME"]
    assert mapped(cell) == {"h": 5}


def test_list_shows_the_committed_host_of_each_broker() -> None:
    cell = Cell(brokers=0)
    cell.register(4, listeners=at("h"))
    cell.send(alter({"hostname": "g", "broker_id": 9}))
    cell.hold_commits = True
    cell.send(alter({"hostname": "i", "broker_id": 9}))
    body = cell.send(rpc.ListHostnamesRequest())
    assert [
        (one.hostname, one.broker_id, one.version, one.reason, one.cause, one.endpoint)
        for one in body.hostnames
    ] == [
        ("g", 9, 0, "set by hand", HostnameCause.BY_HAND, ""),
        ("h", 4, 0, "registered", HostnameCause.BY_REGISTRATION, "h:9092"),
    ]
    hosts = cell.pending.hostnames
    assert [one.offset for one in body.hostnames] == [hosts["g"].offset, hosts["h"].offset]


def test_hostname_is_set_moved_and_deleted() -> None:
    cell = Cell(brokers=0)
    result = cell.send(alter({"hostname": "H.", "broker_id": 7})).results[0]
    assert (result.hostname, result.offset) == ("H.", cell.pending.offset)
    result = cell.send(
        alter({"hostname": "h", "broker_id": 8, "expected_offset": result.offset})
    ).results[0]
    assert mapped(cell) == {"h": 8}
    result = cell.send(alter({"hostname": "H.", "expected_offset": result.offset})).results[0]
    assert (result.offset, mapped(cell)) == (-1, {})


def test_hostname_change_is_refused_at_another_offset() -> None:
    cell = Cell(brokers=0)
    field = "alterations[0].expected_offset"
    made = cell.send(alter({"hostname": "h", "broker_id": 7, "expected_offset": -1}))
    offset = made.results[0].offset
    for expected in (-1, offset - 1, offset + 1):
        for change in ({"broker_id": 8}, {}):
            request = alter({"hostname": "h", "expected_offset": expected, **change})
            cell.refused_part(request, MOVED, field)
    # Deleted and made again it is another mapping, whatever it says.
    cell.send(alter({"hostname": "h"}))
    cell.send(alter({"hostname": "h", "broker_id": 7}))
    request = alter({"hostname": "h", "broker_id": 8, "expected_offset": offset})
    cell.refused_part(request, MOVED, field)
    assert mapped(cell) == {"h": 7}


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"hostname": "h", "broker_id": -1}, INVALID, "broker_id"),
        ({"hostname": "h", "broker_id": 1, "version": 1}, ErrorCode.UNSUPPORTED_VERSION, "version"),
        ({"hostname": "h"}, ErrorCode.RESOURCE_NOT_FOUND, "hostname"),
    ],
)
def test_invalid_alteration_is_refused(change: dict[str, Any], code: ErrorCode, field: str) -> None:
    Cell(brokers=0).refused_part(alter(change), code, f"alterations[0].{field}")


def test_each_alteration_is_decided_separately() -> None:
    cell = Cell(brokers=0)
    results = cell.send(
        alter(
            {"hostname": "a", "broker_id": 1},
            {"hostname": "b"},
            {"hostname": "A", "broker_id": 2},
            {"hostname": "c", "broker_id": 3},
        )
    ).results
    assert [one.HasField("error") for one in results] == [False, True, True, False]
    assert mapped(cell) == {"a": 1, "c": 3}
    assert [results[0].offset, results[3].offset] == [
        cell.pending.hostnames[name].offset for name in ("a", "c")
    ]


def test_validate_only_and_unchanged_mappings_write_nothing() -> None:
    cell = Cell(brokers=0)
    assert not cell.decide(alter({"hostname": "h", "broker_id": 7}, validate_only=True)).records
    offset = cell.send(alter({"hostname": "h", "broker_id": 7})).results[0].offset
    decision = cell.decide(alter({"hostname": "h", "broker_id": 7}))
    assert not decision.records
    assert decision.body.results[0].offset == offset


# --- collecting ---------------------------------------------------------------------------------


def moved(cell: Cell, broker_id: int, *hosts: str) -> None:
    """Register a broker from one host after the other."""
    for number, host in enumerate(hosts):
        cell.silence(broker_id)
        cell.join(broker_id, incarnation=f"{broker_id}-{number}-{host}", listeners=at(host))


def later(cell: Cell) -> None:
    cell.now += COLLECT_INTERVAL_S
    for broker_id in sorted(cell.pending.snapshot().brokers):
        cell.beat(broker_id)
    cell.due()


def test_mapping_of_a_host_that_a_broker_left_is_collected() -> None:
    cell = Cell(brokers=0)
    moved(cell, 4, "g", "h")
    moved(cell, 5, "k")
    assert mapped(cell) == {"g": 4, "h": 4, "k": 5}
    later(cell)
    assert mapped(cell) == {"h": 4, "k": 5}
    before = cell.pending.offset
    later(cell)
    assert cell.pending.offset - before <= 1, "no more than a progress record"


def test_mapping_of_a_broker_that_is_not_registered_stays() -> None:
    cell = Cell(brokers=0)
    moved(cell, 4, "h")
    cell.send(rpc.UnregisterBrokerRequest(broker_id=4))
    later(cell)
    assert mapped(cell) == {"h": 4}


def test_manual_mapping_for_the_next_start_is_kept_until_then() -> None:
    """[The proposal's rule alone would collect the mapping that an operator prepares while the
    broker still runs on its old host.]
    """
    cell = Cell(brokers=0)
    moved(cell, 4, "h")
    cell.send(alter({"hostname": "new", "broker_id": 4}))
    later(cell)
    assert mapped(cell) == {"h": 4, "new": 4}
    moved(cell, 4, "elsewhere")
    later(cell)
    assert mapped(cell) == {"elsewhere": 4}


def test_host_that_a_process_moved_away_from_is_collected() -> None:
    """An amended registration keeps its epoch, older than the first host's mapping."""
    cell = Cell(brokers=0)
    cell.register(4, listeners=at("g"))
    cell.register(4, listeners=at("h"))
    cell.send(alter({"hostname": "next", "broker_id": 4}))
    later(cell)
    assert mapped(cell) == {"h": 4, "next": 4}, "set since: it is meant for the next start"


def test_manual_mapping_of_the_present_host_makes_no_other_one_stale() -> None:
    cell = Cell(brokers=0)
    moved(cell, 4, "h")
    cell.send(alter({"hostname": "next", "broker_id": 4}))
    cell.send(alter({"hostname": "h", "broker_id": 4}))
    later(cell)
    assert mapped(cell) == {"h": 4, "next": 4}


def test_hostname_collection_is_bounded_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLLECT_MAX >= 1
    monkeypatch.setattr(hostnames, "COLLECT_MAX", 2)
    cell = Cell(brokers=0)
    moved(cell, 4, "a", "b", "c", "d")
    later(cell)
    assert mapped(cell) == {"c": 4, "d": 4}
    later(cell)
    assert mapped(cell) == {"d": 4}


# --- names that are none ------------------------------------------------------------------------

NO_HOSTS = [".", "..", "a..b", " ", "a b", "a\n", "a\x1b[31mb", "x" * 256, "x" * 70_000, "\u202e"]


@pytest.mark.parametrize("host", ["", *NO_HOSTS], ids=repr)
def test_invalid_host_is_neither_registered_nor_mapped_nor_deleted(host: str) -> None:
    cell = Cell(brokers=0)
    cell.refused(registration(4, listeners=at(host)), INVALID, "listeners[0].host")
    for change in ({"hostname": host}, {"hostname": host, "broker_id": 4}):
        cell.refused_part(alter(change), INVALID, "alterations[0].hostname")
    assert not mapped(cell)


@pytest.mark.parametrize("host", ["", *NO_HOSTS], ids=repr)
def test_invalid_mapping_of_an_older_build_can_be_deleted(host: str) -> None:
    cell = Cell(brokers=0)
    old = record(
        pb.HostnameRecord(hostname=host, broker_id=4, reason="registered", cause=pb.BY_REGISTRATION)
    )
    cell.propose(Write([old]))
    assert mapped(cell) == {host: 4}
    offset = cell.pending.offset
    cell.refused_part(alter({"hostname": host, "broker_id": 5}), INVALID, "alterations[0].hostname")
    other = alter({"hostname": host, "expected_offset": offset - 1})
    cell.refused_part(other, MOVED, "alterations[0].expected_offset")
    cell.send(alter({"hostname": host, "expected_offset": offset}))
    assert not mapped(cell)


# --- The cause of a mapping is read from its code, not its text ----------------------------------


def folded(*messages: pb.HostnameRecord) -> ImageBuilder:
    draft = ImageBuilder(Image())
    for message in messages:
        draft.apply_batch([record(message)], base_offset=draft.offset + 1, epoch=1, timestamp_ms=0)
    return draft


def test_cause_enum_matches_the_records() -> None:
    named = {
        name.removeprefix("HOSTNAME_CAUSE_"): number for name, number in pb.HostnameCause.items()
    }
    assert named == {cause.name: cause.value for cause in HostnameCause}


@pytest.mark.parametrize("broker_id", [4, None], ids=["mapped", "deleted"])
def test_unknown_cause_stops_this_build(broker_id: int | None) -> None:
    change = pb.HostnameRecord(hostname="h", broker_id=broker_id)
    change.ParseFromString(change.SerializeToString() + b"\x28\x63")
    assert change.cause == 99
    with pytest.raises(UnknownRecordError, match="cause 99 at offset 1"):
        folded(pb.HostnameRecord(hostname="h", broker_id=4), change)


def test_snapshot_with_an_unknown_cause_is_corrupt() -> None:
    draft = folded(pb.HostnameRecord(hostname="h", broker_id=4))
    mapping, unknown = draft.hostnames["h"], 99
    draft.hostnames["h"] = structs.replace(mapping, cause=unknown)
    draft.replace("hostname", (), mapping, draft.hostnames["h"])
    image = draft.snapshot()
    with pytest.raises(CorruptLogError):
        load(pieces(image, header_of(image, cluster_id="c", generations=())))


@pytest.mark.parametrize(("cause", "written"), [(pb.BY_HAND, 0), (pb.BY_REGISTRATION, 1)])
def test_manual_mapping_is_written_once_whatever_its_text(cause: Any, written: int) -> None:
    cell = Cell()
    cell.fold([record(pb.HostnameRecord(hostname="h", broker_id=1, reason="text", cause=cause))])
    cell.commit()
    decision = cell.propose(cell.decide(alter({"hostname": "h", "broker_id": 1})))
    assert len(decision.records) == written
    assert cell.pending.hostnames["h"].cause == HostnameCause.BY_HAND
