"""A real Kafka from Maven's packages: one controller and two brokers with a short history. Needs
Java 17 and Maven. As a program it writes a fixture: ``python tests/kafka_import/real_kafka.py 3.9.1
FIXTURE.tar.gz``.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONTROLLER, BROKERS = 100, (1, 2)
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId>
<version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
</dependencies></project>"""
_TOOLS = ("org.apache.kafka.tools", "kafka.admin", "kafka.tools", "org.apache.kafka.tools.consumer")
"""Classes in which Kafka releases have had their commands."""
_PATIENCE_S = 120.0


def available() -> str:
    """Return the reason why no real Kafka can run here; empty if it can."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found" if missing else ""


def libraries(version: str, directory: Path) -> Path:
    """Return the jars of a release, downloaded by Maven if missing."""
    libs = directory / version
    if not libs.exists():
        pom = directory / f"{version}.xml"
        directory.mkdir(parents=True, exist_ok=True)
        pom.write_text(_POM.format(version))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
        subprocess.run([*command, *options], check=True, timeout=600)
    return libs


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Kafka:
    """One cluster; its nodes are processes."""

    def __init__(self, libs: Path, directory: Path, *, format_options: Sequence[str] = ()) -> None:
        self.directory = directory
        self._classpath = f"{libs}/*"
        self._libs = libs
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = {node: _free_port() for node in (CONTROLLER, *BROKERS)}
        for node in (CONTROLLER, *BROKERS):
            self._write_config(node)
            format_ = ("format", "-t", CLUSTER_ID, "-c", str(self._config(node)))
            options = tuple(format_options) if node == CONTROLLER else ()
            self._java("kafka.tools.StorageTool", *format_, *options)

    @property
    def log(self) -> Path:
        """Return the controller's metadata log."""
        return self.directory / f"node{CONTROLLER}" / "__cluster_metadata-0"

    def _config(self, node: int) -> Path:
        return self.directory / f"{node}.properties"

    def _write_config(self, node: int) -> None:
        role, listener = (
            ("controller", "CONTROLLER") if node == CONTROLLER else ("broker", "PLAINTEXT")
        )
        lines = [
            f"process.roles={role}", f"node.id={node}",
            f"controller.quorum.voters={CONTROLLER}@127.0.0.1:{self._ports[CONTROLLER]}",
            f"listeners={listener}://127.0.0.1:{self._ports[node]}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={self.directory / f'node{node}'}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS", "allow.everyone.if.no.acl.found=true",
            "offsets.topic.replication.factor=1", "broker.session.timeout.ms=3000",
            "broker.heartbeat.interval.ms=500", "metadata.log.max.record.bytes.between.snapshots=2500",
        ]  # fmt: skip
        self._config(node).write_text("\n".join(lines) + "\n")

    def _java(self, main: str, *arguments: str) -> str:
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, main]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
        if done.returncode:
            raise RuntimeError(f"{main} {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, node: int) -> None:
        command = ["java", "-Xmx320m", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        with (self.directory / f"{node}.out").open("ab") as out:
            self._nodes[node] = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._config(node))],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.directory,
            )  # fmt: skip

    def stop(self, node: int, number: signal.Signals = signal.SIGTERM) -> None:
        self._nodes[node].send_signal(number)
        self._nodes[node].wait(_PATIENCE_S)

    def close(self) -> None:
        """Stop all processes."""
        for process in self._nodes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def tool(self, name: str, *arguments: str) -> str:
        """Run one of Kafka's commands; return its output."""
        for package in _TOOLS:
            path = f"{package.replace('.', '/')}/{name}.class"
            if any(path in _names(jar) for jar in self._libs.glob("kafka*.jar")):
                return self._java(f"{package}.{name}", *arguments)
        raise RuntimeError(f"no {name} in {self._libs}")

    def ask(self, name: str, *arguments: str) -> str:
        """The same, for a command that needs a broker."""
        alive = next(node for node in BROKERS if self._nodes[node].poll() is None)
        return self.tool(name, "--bootstrap-server", f"127.0.0.1:{self._ports[alive]}", *arguments)

    def until(self, pattern: str, name: str, *arguments: str, there: bool = True) -> str:
        """Repeat until a line of the output matches a pattern (or none does any more)."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                said = self.ask(name, *arguments)
            except RuntimeError as error:
                said = str(error)
            else:
                if bool(re.search(pattern, said, re.MULTILINE)) == there:
                    return said
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} {arguments} says for too long: {said}")


def _names(jar: Path) -> set[str]:
    with zipfile.ZipFile(jar) as archive:
        return set(archive.namelist())


@contextmanager
def running(version: str, jars: Path, directory: Path) -> Iterator[Kafka]:
    """Return a running cluster of a release."""
    kafka = Kafka(libraries(version, jars), directory)
    try:
        for node in (CONTROLLER, *BROKERS):
            kafka.start(node)
        kafka.ask("TopicCommand", "--list")
        yield kafka
    finally:
        kafka.close()


def live(kafka: Kafka) -> dict[str, str]:
    """Run a short history with most kinds of records; return the output of Kafka's commands at its
    end.
    """
    topics, configs = "TopicCommand", "ConfigCommand"
    create = ("--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "2")
    deadline = time.monotonic() + _PATIENCE_S
    while True:  # both brokers must be there
        try:
            kafka.ask(topics, *create, "--config", "retention.ms=1000")
            break
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
    kafka.ask(topics, "--create", "--topic", "payments", "--partitions", "2")
    kafka.ask(topics, "--create", "--topic", "gone", "--partitions", "1")
    kafka.ask(topics, "--alter", "--topic", "payments", "--partitions", "4")
    kafka.ask(configs, "--alter", "--topic", "orders", "--add-config", "cleanup.policy=compact")
    kafka.ask(configs, "--alter", "--topic", "gone", "--add-config", "retention.ms=7")
    kafka.ask(configs, "--alter", "--topic", "orders", "--delete-config", "retention.ms")
    kafka.ask(
        configs, "--alter", "--entity-type", "users", "--entity-name", "alice",
        "--add-config", "producer_byte_rate=2048",
    )  # fmt: skip
    kafka.ask(
        configs, "--alter", "--entity-type", "brokers", "--entity-default",
        "--add-config", "log.cleaner.threads=2",
    )  # fmt: skip
    entry = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
    kafka.ask("AclCommand", "--add", *entry)
    kafka.ask(topics, "--delete", "--topic", "gone")
    kafka.stop(2, signal.SIGKILL)
    kafka.until(r"Isr: 1\s*(Elr|$)", topics, "--describe", "--topic", "orders")
    kafka.start(2)
    kafka.until(r"Isr: 1\s*(Elr|$)", topics, "--describe", "--topic", "orders", there=False)
    return {
        "topics": kafka.ask(topics, "--describe"),
        "orders": kafka.ask(configs, "--describe", "--topic", "orders"),
    }


def main() -> None:
    version, target = sys.argv[1], Path(sys.argv[2])
    jars = Path(os.environ.get("KAFKA_JARS", Path.home() / ".cache" / "raftlog-kafka"))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with running(version, jars, directory) as kafka:
            said = live(kafka)
            # The controller first: what brokers would still write is not in what was said.
            kafka.stop(CONTROLLER, signal.SIGKILL)
        for what, text in said.items():
            (directory / f"{what}.txt").write_text(text)
        with tarfile.open(target, "w:gz") as archive:
            node = directory / f"node{CONTROLLER}"
            kept = [node / "meta.properties", *sorted(kafka.log.glob("*.log"))]
            kept += sorted(kafka.log.glob("*.checkpoint"))
            for path in (*kept, *(directory / f"{what}.txt" for what in said)):
                archive.add(path, arcname=str(path.relative_to(directory)))


if __name__ == "__main__":
    main()
