"""The cause of a host mapping is read from its code, not its text."""

from typing import Any

import pytest
from msgspec import structs
from test_broker_ids import Ids

from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import HostnameCause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def alter(hostname: str, broker_id: int | None) -> rpc.AlterHostnamesRequest:
    return rpc.AlterHostnamesRequest(
        alterations=[rpc.HostnameAlteration(hostname=hostname, broker_id=broker_id)]
    )


def snapshot_of(image: Image) -> bytes:
    return b"".join(pieces(image, header_of(image, cluster_id="c", generations=())))


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
    with pytest.raises(CorruptLogError):
        load([snapshot_of(draft.snapshot())])


def test_snapshot_keeps_the_cause() -> None:
    image = folded(
        pb.HostnameRecord(
            hostname="a", broker_id=1, reason="set by hand", cause=pb.BY_REGISTRATION
        ),
        pb.HostnameRecord(hostname="b", broker_id=2, reason="registered", cause=pb.BY_HAND),
    ).snapshot()
    _, loaded = load([snapshot_of(image)])
    assert loaded.state_hash == image.state_hash
    assert {name: one.cause for name, one in loaded.hostnames.items()} == {
        "a": HostnameCause.BY_REGISTRATION,
        "b": HostnameCause.BY_HAND,
    }


@pytest.mark.parametrize(("cause", "written"), [(pb.BY_HAND, 0), (pb.BY_REGISTRATION, 1)])
def test_manual_mapping_is_written_once_whatever_its_text(cause: Any, written: int) -> None:
    cell = Ids()
    cell.fold([record(pb.HostnameRecord(hostname="h", broker_id=1, reason="text", cause=cause))])
    cell.commit()
    assert len(cell.decide(alter("h", 1)).records) == written
