"""``raftlog partitions``: what is known of partitions where it is known first; what changes them is
in ``reassign`` and ``elect``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import elect, reassign
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.partition_names import Topics
from raftlog.endpoint import address_of
from raftlog.plural import counted

if TYPE_CHECKING:
    from raftlog.cli.session import Session
    from raftlog.client.leaders import LeaderAnswer, PartitionKey
    from raftlog.metadata.image import Image
    from raftlog.ops.isr_compare import Compared

app = typer.Typer(
    help="Partitions: their replicas, leaders and in-sync replicas.",
    epilog=EPILOG,
    no_args_is_help=True,
)

LOOK_EVERY_S = 0.5
DEFAULT_MOMENT_S = 5.0
COLUMNS = ("TOPIC", "PARTITION", "LEADER", "LEADER EPOCH", "PARTITION EPOCH", "ISR", "PROPOSED")
LEAST = ("PARTITION EPOCH", "LEADER EPOCH", "PROPOSED")
NUMBERS = ("PARTITION", "LEADER", "LEADER EPOCH", "PARTITION EPOCH", "HW", "END")


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="partitions")


@app.callback()
def _group() -> None:
    """Partitions: their replicas, leaders and in-sync replicas."""


@app.command(epilog=EPILOG)
def isr(
    topics: Topics = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help=(
                "Compare with the ISRs that the controller has committed; say where they differ,"
                " and why."
            ),
        ),
    ] = False,
    moment: Annotated[
        float,
        typer.Option(
            "--moment",
            metavar="S",
            min=0.0,
            help="With --compare: how long they may differ, in seconds.",
        ),
    ] = DEFAULT_MOMENT_S,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Ask the leaders for the in-sync replicas of their partitions.

    The leader is the first to know its ISR (KIP-24). ISR is the committed ISR as far as the leader
    knows, each member as id@broker-epoch (incarnation id in KIP-343). PROPOSED is what the leader
    has proposed (AlterPartition, IsrChange in KIP-343) without an answer yet.

    With --compare every registered broker is asked, then the committed log is read from the active
    controller. The two always differ for an instant when an ISR changes. A difference that stays
    the same for --moment seconds ends with exit code 3.

    \b
    Examples:
      raftlog partitions isr --bootstrap-server 127.0.0.1:9092
      raftlog partitions isr orders --compare --bootstrap-controller 127.0.0.1:9093 --json
    """
    from raftlog.cli.session import run

    if compare:
        _compare(topics or [], bootstrap_controller, timeout, moment, as_json=as_json)
        return

    async def ask(session: Session) -> dict[int, LeaderAnswer]:
        return await _leaders(session, topics or [], bootstrap_server, timeout)

    answers = run(ask, timeout)
    rows = sorted(
        (_led(one, answer.broker_id) for answer in answers.values() for one in answer.led),
        key=lambda row: (row["topic"], row["partition"], row["leader_id"]),
    )
    if as_json:
        print_json({"partitions": rows, "brokers": _brokers(answers)})
    else:
        columns = (*COLUMNS, "HW", "END")
        print_table(columns, map(_cells, rows), right=NUMBERS, least=LEAST)
    _require_answers(answers)


async def _leaders(
    session: Session, topics: Sequence[str], bootstrap: str, timeout_s: float
) -> dict[int, LeaderAnswer]:
    """Every broker that clients are told of, asked for the partitions of these topics, or for
    all.
    """
    from raftlog.client.leaders import ask_leaders
    from raftlog.wire.broker.v1 import broker_pb2

    client = session.brokers(bootstrap)
    body = broker_pb2.MetadataRequest(topics=topics)
    metadata = (await client.read(body, mode=broker_pb2.LATEST, timeout_s=timeout_s)).metadata
    _require_topics([one.name for one in metadata.topics if one.error_code])
    keys = (
        [(one.topic_id, index) for one in metadata.topics for index in range(len(one.partitions))]
        if topics
        else []
    )
    endpoints = {one.node_id: address_of(one.host, one.port) for one in metadata.brokers}
    return await ask_leaders(
        session.transport, endpoints, timeout_s=timeout_s, keys=keys, cluster_id=metadata.cluster_id
    )


def _require_topics(missing: Sequence[str]) -> None:
    if missing:
        raise FailedError(f"UNKNOWN_TOPIC_OR_PARTITION: {', '.join(missing)}", Exit.REFUSED)


def _require_answers(answers: Mapping[int, LeaderAnswer]) -> None:
    failures = [f"broker {one.broker_id}: {one.failure}" for one in answers.values() if one.failure]
    if failures:
        raise FailedError("not every broker has answered: " + "; ".join(failures), Exit.UNREACHABLE)


# --- compared with the controller's view --------------------------------------------------------


def _compare(
    topics: Sequence[str], bootstrap: str, timeout_s: float, moment_s: float, *, as_json: bool
) -> None:
    from raftlog.cli.session import run

    async def look(
        session: Session,
    ) -> tuple[Image, dict[int, LeaderAnswer], list[Compared], set[Any]]:
        return await _until_settled(session, topics, bootstrap, timeout_s, moment_s)

    image, answers, rows, lasting = run(look, timeout_s)
    differ = sum(bool(row.differences) for row in rows)
    if as_json:
        documents = [_compared(row, lasting) for row in rows]
        print_json(
            {
                "offset": image.offset,
                "partitions": documents,
                "brokers": _brokers(answers),
                "lasting": len(lasting),
            }
        )
    else:
        columns = (*COLUMNS, "COMMITTED ISR", "DIFFERENCES")
        print_table(
            columns,
            (_compared_cells(row, lasting) for row in rows),
            right=NUMBERS,
            least=LEAST,
        )
        print_line(
            f"{counted(len(rows), 'partition')} compared at offset {image.offset}, {differ} differ"
        )
    if lasting:
        raise FailedError(
            f"leaders and controller have differed for {moment_s:g} s in {len(lasting)} ways",
            Exit.FOUND,
        )


async def _until_settled(
    session: Session, topics: Sequence[str], bootstrap: str, timeout_s: float, moment_s: float
) -> tuple[Image, dict[int, LeaderAnswer], list[Compared], set[Any]]:
    """Look until nothing is left of the differences seen first, or the moment is over: the last
    look, and which have lasted.
    """
    from raftlog.client.leaders import ask_leaders
    from raftlog.client.log_reader import CommittedImage
    from raftlog.ops.isr_compare import compare, marks

    loop = asyncio.get_running_loop()
    committed = CommittedImage(session.log(bootstrap))
    image = await committed.read()
    end = loop.time() + moment_s
    lasting: set[Any] | None = None
    while True:
        endpoints = {id_: broker.endpoint for id_, broker in image.brokers.items()}
        keys = _keys(image, topics)
        answers = await ask_leaders(
            session.transport, endpoints, timeout_s=timeout_s, keys=keys or ()
        )
        # After the leaders: all that they know as committed is in it.
        image = await committed.read()
        rows = compare(image, answers, keys)
        lasting = marks(rows) if lasting is None else lasting & marks(rows)
        if not lasting or loop.time() >= end:
            return image, answers, rows, lasting
        await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, end - loop.time())))


def _keys(image: Image, topics: Sequence[str]) -> list[PartitionKey] | None:
    """The partitions of these topics; None: all."""
    if not topics:
        return None
    _require_topics([name for name in topics if name not in image.topic_ids])
    ids = [image.topic_ids[name] for name in dict.fromkeys(topics)]
    return [(id_, index) for id_ in ids for index in range(image.topics[id_].partition_count)]


# --- rows ---------------------------------------------------------------------------------------


def _led(one: Any, broker_id: int) -> dict[str, Any]:
    return {
        "topic": one.topic_name or one.topic_id.hex(),
        "partition": one.partition_index,
        "leader_id": broker_id,
        **_said(one),
    }


def _said(one: Any) -> dict[str, Any]:
    """What a leader says of one partition."""
    return {
        "leader_epoch": one.leader_epoch,
        "partition_epoch": one.partition_epoch,
        "isr": _states(one.isr),
        "proposed_isr": _states(one.proposed_isr) or None,
        "high_watermark": known(one.high_watermark),
        "log_end_offset": one.log_end_offset,
        "followers": [
            {
                "replica_id": follower.replica_id,
                "replica_epoch": known(follower.replica_epoch),
                "log_end_offset": known(follower.log_end_offset),
                "last_caught_up_age_ms": known(follower.last_caught_up_age_ms),
            }
            for follower in one.followers
        ],
    }


def _states(states: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"broker_id": one.broker_id, "broker_epoch": known(one.broker_epoch)} for one in states]


def _brokers(answers: Mapping[int, LeaderAnswer]) -> list[dict[str, Any]]:
    return [
        {
            "broker_id": one.broker_id,
            "broker_epoch": known(one.broker_epoch),
            "failure": one.failure or None,
        }
        for one in answers.values()
    ]


def _compared(row: Compared, lasting: set[Any]) -> dict[str, Any]:
    committed = row.committed
    return {
        "topic": row.topic,
        "partition": row.key[1],
        "leader_id": known(row.leader_id),
        "leader": _said(row.led) if row.led is not None else None,
        "committed": (
            {
                "leader_epoch": committed.leader_epoch,
                "partition_epoch": committed.partition_epoch,
                "isr": list(committed.isr),
            }
            if committed is not None
            else None
        ),
        "differences": [
            {"why": one.why.value, "text": one.text, "lasting": (row.key, one.mark) in lasting}
            for one in row.differences
        ],
    }


def _cells(row: dict[str, Any]) -> list[object]:
    place = [
        row["topic"],
        row["partition"],
        row["leader_id"],
        row["leader_epoch"],
        row["partition_epoch"],
    ]
    sets = [_members(row["isr"]), _members(row["proposed_isr"] or [])]
    return [*place, *sets, row["high_watermark"], row["log_end_offset"]]


def _compared_cells(row: Compared, lasting: set[Any]) -> list[object]:
    said, committed = row.led, row.committed
    epochs: list[object] = [None, None, None, None]
    if said is not None:
        members = _members(_states(said.isr)), _members(_states(said.proposed_isr))
        epochs = [said.leader_epoch, said.partition_epoch, *members]
    differences = "; ".join(
        f"{one.why.value}: {one.text}{' (lasting)' if (row.key, one.mark) in lasting else ''}"
        for one in row.differences
    )
    ours = (
        f"{', '.join(map(str, committed.isr))}"
        f" ({committed.leader_epoch}/{committed.partition_epoch})"
        if committed
        else None
    )
    return [row.topic, row.key[1], known(row.leader_id), *epochs, ours, differences or None]


def _members(states: Iterable[dict[str, Any]]) -> str | None:
    known_as = ("?" if one["broker_epoch"] is None else one["broker_epoch"] for one in states)
    return (
        ", ".join(
            f"{one['broker_id']}@{epoch}" for one, epoch in zip(states, known_as, strict=True)
        )
        or None
    )


# Once for the module: what is added in register() would be there once more for each command line
# that a process builds.
reassign.add(app)
elect.add(app)
