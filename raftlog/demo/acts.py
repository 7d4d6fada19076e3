"""The acts of the demo, in order. Each shows something, checks it, and adds lines to the
summary.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from raftlog.demo.records import Records
from raftlog.demo.secure import Rights
from raftlog.demo.world import (
    CommandFailedError,
    DemoError,
    LaoRecord,
    Watch,
    World,
    Writer,
    setting,
)
from raftlog.local.authority import ADMINISTRATOR, Authority
from raftlog.local.cluster import LocalCluster
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

RECORDS_TOPIC, PARTITIONS = "orders", 6
_RAFTLOG = Path(sys.executable).with_name("raftlog")


class Demo:
    """The whole demo on one cluster. ``summary``: (what, result), extended by each act."""

    def __init__(
        self, cluster: LocalCluster, console: Console, authority: Authority | None = None
    ) -> None:
        """``authority``: for certificates and an authorizer, or None for neither."""
        self._authority = authority
        self.cluster = cluster
        self.console = console
        self.summary: list[tuple[str, str]] = []
        self._begun = time.monotonic()

    async def run(self) -> None:
        """Run all acts. Raises DemoError if a guarantee is broken, and the cluster's own errors."""
        await self._start()
        self.world = World(self.cluster, self.cluster.tls)
        try:
            await self._topics()
            if self._authority is not None:
                await self._rights(self._authority)
            await self._life_of_a_write()
            await self._visible_everywhere()
            await self._failures()
            await self._replay()
        finally:
            await self.world.close()

    def _act(self, title: str) -> None:
        self.console.print(
            f"\n[bold]{title}[/bold]  [dim]{time.monotonic() - self._begun:.1f} s[/dim]"
        )

    def _say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False, markup=False)

    def _result(self, what: str, result: str) -> None:
        self.summary.append((what, result))

    # --- 1 ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._act(
            "1. Three controllers and three brokers, each a process with its own configuration file"
        )
        cluster = self.cluster
        if self._authority is not None:
            self._authority.make()
            os.environ.update(self._authority.environment(ADMINISTRATOR))
            cluster.tls = self._authority.tls(ADMINISTRATOR)
        cluster.generate()
        self._say(f"cluster {cluster.cluster_id} in {cluster.directory}")
        cluster.start_controllers()
        cluster.start_brokers()
        for node in cluster.nodes:
            await self._ready(node.name)
            self._say(
                f"{node.name:13} pid {cluster.pid(node.name)}  {node.endpoint}  {node.http}/metrics"
            )
        self._result(
            "started",
            f"{len(cluster.nodes)} nodes ready after {time.monotonic() - self._begun:.1f} s",
        )

    async def _ready(self, name: str, within_s: float = 30.0) -> float:
        begun = time.monotonic()
        while True:
            ready, reason = await asyncio.to_thread(self.cluster.ready, name)
            if ready:
                return time.monotonic() - begun
            if self.cluster.pid(name) is None:
                raise DemoError(f"{name} has exited; see {self.cluster.log_path(name)}")
            if time.monotonic() - begun > within_s:
                raise DemoError(f"{name} is not ready after {within_s:g} s: {reason}")
            await asyncio.sleep(0.05)

    async def _rights(self, authority: Authority) -> None:
        self._act("Rights: none, granted, and revoked")
        rights = Rights(self.world, self.cluster, authority, self._say)
        self._result("rights", await rights.play())
        self._say(f"each node's audit log: {authority.audit_log(self.cluster.brokers[0])}")

    # --- 2 ---------------------------------------------------------------------------------------

    async def _topics(self) -> None:
        self._act("2. Topics and configs, written through different brokers")
        for (broker_id, client), topic in zip(
            self.world.brokers.items(), ("orders", "payments", "audit"), strict=False
        ):
            created = await client.write(
                pb.CreateTopicsRequest(
                    topics=[
                        pb.CreatableTopic(
                            name=topic, num_partitions=PARTITIONS, replication_factor=3
                        )
                    ]
                ),
                principal="demo",
            )
            error = created.create_topics.topics[0].error
            if error.error_code:
                raise DemoError(f"creating {topic}: {error.error_message}")
            config = pb.AlterableConfig(name="retention.ms", value=str(3_600_000 * broker_id))
            altered = await client.write(
                pb.IncrementalAlterConfigsRequest(
                    resources=[
                        pb.AlterConfigsResource(
                            resource_type=2, resource_name=topic, configs=[config]
                        )
                    ]
                ),
                acks=common_pb2.ACKS_VISIBLE,
                principal="demo",
            )
            self._say(
                f"through broker {broker_id}: topic {topic} with {PARTITIONS} partitions at offset"
                f" {created.write.token.offset}, retention.ms={config.value} at offset"
                f" {altered.write.token.offset}"
            )
        first = next(iter(self.world.brokers.values()))
        metadata = (await first.read(broker_pb2.MetadataRequest())).metadata
        table = Table("topic", "partitions", "leaders", box=None, padding=(0, 2))
        for found in metadata.topics:
            leaders = ", ".join(str(partition.leader_id) for partition in found.partitions)
            table.add_row(found.name, str(len(found.partitions)), leaders)
        self.console.print(table)

    # --- 3 ---------------------------------------------------------------------------------------

    async def _life_of_a_write(self) -> None:
        self._act("3. The life of one write")
        watch = Watch(self.world)
        await asyncio.sleep(0.3)
        first = next(iter(self.world.brokers.values()))
        sent = watch.elapsed()
        response = await first.write(setting("life", "1"), principal="demo")
        committed, offset = watch.elapsed(), response.write.token.offset

        async def everybody_told() -> bool:
            return all(samples and samples[-1].told >= offset for samples in watch.brokers.values())

        await self.world.until(
            everybody_told, 5.0, f"LAO covers offset {offset} and every broker knows it"
        )
        await watch.stop()

        def since_ms(at: float) -> str:
            return f"{(at - sent) * 1000:6.1f} ms"

        self._say(
            f"{since_ms(committed)}  committed at offset {offset}: durable on a majority, and "
            "acknowledged to the client"
        )
        applied = {
            broker_id: next(s.at for s in samples if s.applied >= offset)
            for broker_id, samples in watch.brokers.items()
        }
        for broker_id, at in sorted(applied.items(), key=lambda item: item[1]):
            self._say(f"{since_ms(at)}  applied on broker {broker_id}")
        covered = next(at for at, lao in watch.lao if lao >= offset)
        self._say(
            f"{since_ms(covered)}  covered by the lowest acknowledged offset: every unfenced broker"
            " has applied it"
        )
        told = max(
            next(s.at for s in samples if s.told >= offset) for samples in watch.brokers.values()
        )
        self._say(
            f"{since_ms(told)}  every broker knows that (all times measured by polling every few "
            "ms)"
        )
        self._result(
            "one write",
            f"committed {since_ms(committed).strip()}, applied everywhere"
            f" {since_ms(max(applied.values())).strip()}, LAO covers it"
            f" {since_ms(covered).strip()}, every broker knows it {since_ms(told).strip()}",
        )

    # --- 4 ---------------------------------------------------------------------------------------

    async def _visible_everywhere(self) -> None:
        self._act("4. A write that waits until it is visible, then plain reads from every broker")
        writer = next(iter(self.world.brokers.values()))
        begun = time.monotonic()
        response = await writer.write(
            setting("greeting", "hello"), acks=common_pb2.ACKS_VISIBLE, principal="demo"
        )
        taken_ms = (time.monotonic() - begun) * 1000
        if response.write.reached != common_pb2.ACKS_VISIBLE:
            raise DemoError(
                "the write is not visible in time; waiting for"
                f" {list(response.write.waiting_for_brokers)}"
            )
        self._say(f"visible after {taken_ms:.1f} ms, at offset {response.write.token.offset}")
        for mode, name in ((broker_pb2.REPEATABLE, "repeatable"), (broker_pb2.LATEST, "latest")):
            values = {
                broker_id: await self.world.value(broker_id, "greeting", mode)
                for broker_id in self.world.brokers
            }
            self._say(f"{name:10}  " + "  ".join(f"broker {b}: {v!r}" for b, v in values.items()))
            if set(values.values()) != {"hello"}:
                raise DemoError(f"{name} reads differ: {values}")
        self._result(
            "visible write",
            f"{taken_ms:.1f} ms; equal on every broker, by repeatable reads and at the tip",
        )

    # --- 5 ---------------------------------------------------------------------------------------

    async def _failures(self) -> None:
        self._act(
            "5. kill -9 the active controller, then a broker, while writers write metadata and "
            "records"
        )
        world = self.world
        record = LaoRecord(world)
        writer = Writer(world)
        writing = asyncio.create_task(writer.run())
        records = Records(world, RECORDS_TOPIC, PARTITIONS)
        try:
            await records.begin()
            await asyncio.sleep(1.0)
            dead_controller = await self._kill_controller(writer)
            dead_broker, old_epoch = await self._kill_broker(record)
            await self._bring_back(dead_controller, dead_broker, old_epoch)
            await asyncio.sleep(0.5)
            await self._read_back(records)
        finally:
            records.close()
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
            await record.stop()
        for broker_id in world.brokers:
            missing = await writer.missing(broker_id)
            if missing:
                raise DemoError(
                    f"acknowledged writes are missing on broker {broker_id}: {missing[:5]}"
                )
        self._say(
            f"{len(writer.acknowledged)} writes acknowledged, all present on every broker; "
            f"{writer.unknown} reported as of unknown outcome, {writer.refused} refused"
        )
        self._say(f"LAO sampled {record.samples} times: it never decreased; now {record.highest}")
        self._result(
            "acknowledged writes",
            f"{len(writer.acknowledged)}, none lost; {writer.unknown} of unknown outcome",
        )
        self._result(
            "LAO",
            f"never decreased; unknown for {record.unknown_s * 1000:.0f} ms in total, around the "
            "failover",
        )

    async def _read_back(self, records: Records) -> None:
        await records.stop()
        missing = await records.missing()
        if missing:
            raise DemoError(f"acknowledged records are missing: {missing[:5]}")
        self._say(
            f"{len(records.acknowledged)} records acknowledged by at least two in-sync replicas, "
            f"each at its reported offset; {records.unknown} of unknown outcome, {records.refused} "
            f"refused; a partition waited at most {records.longest_gap_s:.1f} s for its dead "
            "leader's session to end"
        )
        self._result(
            "acknowledged records",
            f"{len(records.acknowledged)} in {PARTITIONS} partitions, none lost; {records.unknown}"
            " of unknown outcome",
        )

    async def _kill_controller(self, writer: Writer) -> str:
        quorum = await asyncio.to_thread(self.cluster.leader)
        if quorum is None:
            raise DemoError("no controller leads")
        epoch = writer.epoch
        writer.since_reset_s = 0.0
        self.cluster.kill(quorum.name, signal.SIGKILL)

        async def written_in_a_new_epoch() -> bool:
            return writer.epoch > epoch

        await self.world.until(
            written_in_a_new_epoch, 15.0, "a write is acknowledged by a new active controller"
        )
        gap_ms = writer.since_reset_s * 1000

        async def known() -> bool:
            return (await self.world.describe_brokers()).lowest_acknowledged_offset >= 0

        unknown_ms = await self.world.until(known, 10.0, "LAO is known again") * 1000
        self._say(
            f"killed {quorum.name}: epoch {epoch} -> {writer.epoch}; longest gap between"
            f" acknowledged writes {gap_ms:.0f} ms; every broker has reported to the new one "
            f"{unknown_ms:.0f} ms later"
        )
        self._result(
            "kill -9 of the active controller",
            f"epoch {epoch} -> {writer.epoch}; write gap {gap_ms:.0f} ms",
        )
        return quorum.name

    async def _kill_broker(self, record: LaoRecord) -> tuple[int, int]:
        broker_id = max(self.world.brokers)
        old_epoch = (await self.world.about(broker_id)).broker_epoch
        self.cluster.kill(f"broker-{broker_id}", signal.SIGKILL)

        async def fenced() -> bool:
            described = await self.world.describe_brokers()
            return any(
                b.broker_id == broker_id and b.state == pb.INACTIVE for b in described.brokers
            )

        took = await self.world.until(fenced, 20.0, f"broker {broker_id} is fenced")
        at_fencing = record.highest

        async def lao_goes_on() -> bool:
            return record.highest > at_fencing

        await self.world.until(lao_goes_on, 10.0, "LAO advances without the dead broker")
        self._say(
            f"killed broker-{broker_id}: fenced after {took:.1f} s; LAO advanced without it, "
            f"{at_fencing} -> {record.highest}"
        )
        self._result("kill -9 of a broker", f"fenced after {took:.1f} s; LAO advanced without it")
        return broker_id, old_epoch

    async def _bring_back(self, controller: str, broker_id: int, old_epoch: int) -> None:
        for name in (controller, f"broker-{broker_id}"):
            await asyncio.to_thread(self.cluster.start, name)
        took = await self._ready(controller)
        self._say(f"{controller} is back and caught up {took:.1f} s after its start")

        async def unfenced() -> bool:
            described = await self.world.describe_brokers()
            found = next(b for b in described.brokers if b.broker_id == broker_id)
            behind = described.high_watermark - 1 - found.applied_offset
            return found.state == pb.ACTIVE and found.broker_epoch > old_epoch and behind < 100

        took = await self.world.until(
            unfenced, 20.0, f"broker {broker_id} is caught up and unfenced"
        )
        epoch = (await self.world.about(broker_id)).broker_epoch
        self._say(
            f"broker-{broker_id} is back: unfenced with broker epoch {epoch} (before: "
            f"{old_epoch}), {took:.1f} s later"
        )
        self._result("both back", f"caught up; broker epoch {old_epoch} -> {epoch}")

    # --- 6 ---------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        self._act("6. Export the log, and analyse it with Spark")
        await self._at_rest()
        export = self.cluster.directory / "export"
        told = await self._command(
            "export",
            str(export),
            "--bootstrap-controller",
            self.cluster.bootstrap_controllers,
            "--json",
        )
        exported = json.loads(told)
        self._say(f"exported {exported['records']} records to {export}")
        # Now, while nothing is written: on a busy machine a broker may be fenced while Spark
        # starts, which adds a record.
        shown = {broker_id: await self.world.about(broker_id) for broker_id in self.world.brokers}
        self._say("spark-submit ... (takes some seconds to start)")
        begun = time.monotonic()
        found = json.loads(await self._replay_command(export))
        offset, state_hash = found["point"]["offset"], found["state_hash"]
        entities = found["entities"]
        self._say(
            f"Spark found {found['point']['records']} records, epochs {found['first_epoch']} to"
            f" {found['point']['epoch']}, {entities.get('topic', 0)} topics,"
            f" {entities.get('partition', 0)} partitions, {entities.get('broker', 0)} brokers in"
            f" {time.monotonic() - begun:.1f} s"
        )
        self._say(f"state hash at {offset}: {state_hash}  (Spark)")
        for broker_id, about in shown.items():
            self._say(
                f"state hash at {about.applied_offset}: {about.state_hash}  (broker {broker_id})"
            )
            if (about.applied_offset, about.state_hash) != (offset, state_hash):
                raise DemoError(
                    f"broker {broker_id} has a different state than the fold of the log"
                )
        audit = found["audit"]
        kept = (
            f"{len(audit['rules'])} rules over {audit['checked']} records, {audit['total']}"
            " violations"
        )
        self._say(f"audit: {kept}")
        if audit["total"]:
            raise DemoError("the audit has findings")
        self._result(
            "Spark",
            f"{found['point']['records']} records; state hash at {offset} equals every broker's:"
            f" {state_hash}",
        )
        self._result("audit", kept)

    async def _at_rest(self) -> None:
        """Wait until the cluster is idle: every broker has applied the same offset, and the log has
        not grown for a while.
        """
        seen: list[Any] = []

        async def still() -> bool:
            abouts = [await self.world.about(broker_id) for broker_id in self.world.brokers]
            state = [(about.applied_offset, about.high_watermark) for about in abouts]
            seen.append((time.monotonic(), state))
            same = all(applied + 1 == end == state[0][1] for applied, end in state)
            since = next(at for at, was in reversed([(0.0, None), *seen]) if was != state)
            return same and time.monotonic() - max(since, seen[0][0]) > 1.5

        await self.world.until(still, 20.0, "the cluster comes to rest")

    async def _command(self, *arguments: str) -> str:
        return await run_command([str(_RAFTLOG), *arguments])

    async def _replay_command(self, export: Path) -> str:
        # A killed Spark leaves its temporary files behind, so they must be in the demo's
        # directory.
        aside = self.cluster.directory / "spark"
        aside.mkdir()
        environment = {
            "TMPDIR": str(aside),
            "SPARK_LOCAL_DIRS": str(aside),
            "JAVA_TOOL_OPTIONS": f"'-Djava.io.tmpdir={aside}' -XX:-UsePerfData",
        }
        command = [str(_RAFTLOG), "replay", "summary", str(export), "--engine", "spark", "--json"]
        if self._authority is not None:
            # The log does not record the super users.
            command += ["--super-user", f"User:{ADMINISTRATOR}"]
        try:
            return await run_command(command, environment)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


async def run_command(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program and return its stdout. If this is cancelled, the program is killed with all its
    children. Raises CommandFailedError.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode:
        name = " ".join([Path(command[0]).name, *command[1:2]])
        raise CommandFailedError(
            f"{name} exited with code {process.returncode}: {err.decode()[-2000:].strip()}"
        )
    return out.decode()
