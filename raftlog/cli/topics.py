"""``raftlog topics``: create, list, describe, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import (
    READ,
    WRITE,
    Answer,
    ValidateOnly,
    command,
    group,
    pair,
    would,
    written,
)
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line, print_note, print_table
from raftlog.cli.values import Topics, assignments

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import Listing, Topic, TopicResult
    from raftlog.outcome import WriteResult

app = group()
TOPIC = 2
"""Number of the resource kind TOPIC in Kafka's protocol."""
Names = Annotated[list[str], arg("TOPIC...", "Topic names.", autocompletion=completion.topics)]


@dataclass
class TopicDescriptions:
    """The requested topics, with their partitions."""

    offset: int
    items: Sequence[Topic]
    missing: Sequence[str]
    """Topics that do not exist; the exit code is then 1."""
    not_served: Mapping[str, str]
    """Why a partition cannot be used now, by name such as ``orders:0``."""


@command(app, shared=WRITE)
async def create(
    client: AsyncClient,
    names: Names,
    partitions: Annotated[
        int, opt("--partitions -p", "Number of partitions per topic; -1: the default.")
    ] = -1,
    replication_factor: Annotated[
        int, opt("--replication-factor -r", "Number of replicas per partition; -1: the default.")
    ] = -1,
    replica_assignment: Annotated[
        str,
        opt(
            "--replica-assignment 1:2:3,2:3:1",
            "The replicas of each partition, preferred leader first; instead of the two options "
            "above.",
        ),
    ] = "",
    configs: Annotated[
        list[str] | None,
        opt(
            "--topic-config --config KEY=VALUE",
            "A config of the topic; may be repeated.",
            autocompletion=completion.topic_config_assignments,
        ),
    ] = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[TopicResult]]:
    """Create topics. Each succeeds or fails by itself.

    \b
    Examples:
      raftlog topics create orders --partitions 6 --replication-factor 3 --acks visible
      raftlog topics create logs --topic-config max.message.bytes=2000000
      raftlog topics create placed --replica-assignment 1:2:3,2:3:1
    """
    from raftlog.cli.configs import did_you_mean, without_effect
    from raftlog.client.values import NewTopic

    given = dict(map(pair, configs or ()))
    placed = assignments(replica_assignment)
    topics = [NewTopic(one, partitions, replication_factor, given, placed) for one in names]
    answer = await written(
        client.topics.create_all(topics, validate_only=validate_only),
        would("created", validate_only),
    )
    if note := (did_you_mean if answer.errors else without_effect)(TOPIC, given):
        print_note(note)
    return answer


@command(app, shared=WRITE)
async def delete(
    client: AsyncClient, names: Names, validate_only: ValidateOnly = False
) -> Answer[WriteResult[TopicResult]]:
    """Delete topics with their partitions and configs. Each succeeds or fails by itself.

    \b
    Examples:
      raftlog topics delete orders
    """
    deleted = client.topics.delete(*names, validate_only=validate_only)
    return await written(deleted, would("deleted", validate_only))


@command(app, "list", shared=READ)
async def list_(client: AsyncClient) -> Answer[Listing[Topic]]:
    """List the topics that a broker shows.

    \b
    Examples:
      raftlog topics list --bootstrap-server 127.0.0.1:9092
      raftlog topics list --read latest --json
    """
    topics = await client.topics.list()

    def show() -> None:
        rows = ((one.name, len(one.partitions), one.id) for one in topics)
        print_table(("TOPIC", "PARTITIONS", "ID"), rows, right=("PARTITIONS",))
        print_line(f"at offset {topics.offset}")

    return Answer(topics, show)


@command(app, shared=READ)
async def describe(client: AsyncClient, names: Topics = None) -> Answer[TopicDescriptions]:
    """Show the partitions of topics, or of all: leader, epoch, replicas.

    Only a partition's leader knows its in-sync replicas (KIP-24): see `raftlog partitions isr`. Two
    columns appear only if a partition has such replicas (KIP-966): ELR, which may lead while the
    ISR is empty, and LAST KNOWN ELR, the last leader while no replica may lead. Also queries the
    leaders: NOT SERVED shows why a partition cannot be used now.

    \b
    Examples:
      raftlog topics describe
      raftlog topics describe orders --bootstrap-server 127.0.0.1:9092
    """
    from raftlog.ops.serving import not_served_of

    topics = await client.topics.describe_all(*names or ())
    not_served = await not_served_of(client, topics)

    def show() -> None:
        if topics:
            every = [(topic.name, one) for topic in topics for one in topic.partitions]
            columns = ["TOPIC", "PARTITION", "LEADER", "LEADER EPOCH", "REPLICAS", "OFFLINE"]
            elr = any(one.elr for _, one in every)
            last = any(one.last_known_elr for _, one in every)
            columns += ["ELR"] * elr + ["LAST KNOWN ELR"] * last
            print_table(
                (*columns, "NOT SERVED"),
                (
                    (name, one.index, one.leader, one.leader_epoch, one.replicas,
                     one.offline_replicas, *[one.elr][:elr], *[one.last_known_elr][:last],
                     not_served.get(f"{name}:{one.index}"))
                    for name, one in every
                ),
                right=("PARTITION", "LEADER", "LEADER EPOCH"),
                least=("LEADER EPOCH",),
            )  # fmt: skip
            print_line(f"at offset {topics.offset}")

    why = f"UNKNOWN_TOPIC_OR_PARTITION: no such topic: {', '.join(topics.missing)}"
    errors = [FailedError(why, Exit.REFUSED)] if topics.missing else []
    return Answer(
        TopicDescriptions(topics.offset, [*topics], topics.missing, not_served), show, errors
    )
