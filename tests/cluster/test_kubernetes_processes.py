"""The processes of docs/deploy/kubernetes, on loopback and free ports."""

import asyncio
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import on_files, raftlog, succeed, until
from command_runs import Ran

from raftlog.client.quorum_queries import ask_quorum
from raftlog.client.security import ClientSecurity
from raftlog.local.cluster import free_ports, own_environment

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

from kubernetes_kit import CONFIG, ROLES, Pod, manifests, of_kind, pods, stateful_set

TOKEN = "a-token-of-some-length"


class Pods:
    """The pods' processes on this machine: host names are loopback, ports are free ones."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        """``tls``: as the overlay has them; the directory holds what its Secrets do."""
        self._directory, self._tls = directory, tls
        self.pods = {pod.name: pod for role in ROLES for pod in pods(stateful_set(role, tls=tls))}
        free = iter(free_ports(2 * len(self.pods)))
        self.grpc = {name: next(free) for name in self.pods}
        self.http = {name: next(free) for name in self.pods}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        given = pod.environment(container, CONFIG)
        for name, value in given.items():
            if name.startswith("RAFTLOG_"):
                given[name] = re.sub(
                    r"([\w-]+)\.raftlog-(?:controller|broker)\.data\.svc:\d+",
                    lambda found: f"127.0.0.1:{self.grpc[found.group(1)]}",
                    value,
                )
        given["RAFTLOG_LISTENERS"] = f"127.0.0.1:{self.grpc[pod.name]}"
        if "RAFTLOG_HTTP_LISTENER" in given:
            scheme = "https://" if given["RAFTLOG_HTTP_LISTENER"].startswith("https://") else ""
            given["RAFTLOG_HTTP_LISTENER"] = f"{scheme}127.0.0.1:{self.http[pod.name]}"
        for name, path in given.items():
            if name.startswith("RAFTLOG_") and name.endswith("_FILE"):
                given[name] = path.replace("/etc/raftlog", str(self._directory))
        given["RAFTLOG_LOG_DIRS"] = str(self._directory / pod.name / "data")
        return {name: value for name, value in given.items() if name.startswith("RAFTLOG_")}

    def bootstrap(self) -> Ran:
        (container,) = of_kind(manifests("bootstrap.yaml"), "Job")["spec"]["template"]["spec"][
            "containers"
        ]
        pod = self.pods["raftlog-controller-1"]
        return raftlog(*container["args"], environment=self.environment(pod, container))

    def start(self, name: str) -> None:
        """Start the init container, then the node, as the kubelet does."""
        pod = self.pods[name]
        succeed(*pod.formats["args"], environment=self.environment(pod, pod.formats))
        with (self._directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "raftlog", *pod.runs["args"]],
                env={**own_environment(), **self.environment(pod, pod.runs)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def probe(self, name: str, kind: str) -> bool:
        get = self.pods[name].runs[kind]["httpGet"]
        scheme = get.get("scheme", "HTTP").lower()
        # The kubelet shows no certificate, and does not look at the node's.
        unverified = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(
                f"{scheme}://127.0.0.1:{self.http[name]}{get['path']}",
                timeout=5,
                context=unverified if scheme == "https" else None,
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self, names: list[str]) -> None:
        for name in names:
            until(lambda name=name: self.probe(name, "readinessProbe"), f"{name} is ready")  # type: ignore[misc]

    def command(self, *arguments: str) -> Ran:
        """``kubectl exec raftlog-broker-101 -- raftlog …``"""
        pod = self.pods["raftlog-broker-101"]
        return raftlog(*arguments, environment=self.environment(pod, pod.runs))

    def voters(self) -> dict[int, str]:
        """Return the leader's voter set; empty if there is no leader. Without certificates the
        request is sent by this process: commands would take seconds of CPU.
        """
        if self._tls:
            said = self.command("quorum", "describe", "--replication", "--json").json
            return {r["node_id"]: r["directory_id"] for r in said.get("voters", ())}
        controllers = [f"127.0.0.1:{self.grpc[name]}" for name in self.pods if "controller" in name]
        leader = asyncio.run(ask_quorum(controllers, 2.0, ClientSecurity(None))).leader
        if leader is None:
            return {}
        return {voter.replica_id: voter.replica_directory_id for voter in leader.voters}

    def stop(self, name: str) -> int:
        """Send SIGTERM and wait for the grace period, as the kubelet does."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(self.pods[name].spec["terminationGracePeriodSeconds"])


@contextmanager
def cluster(directory: Path, *, tls: bool = False) -> Iterator[Pods]:
    made = Pods(directory, tls=tls)
    try:
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_processes_of_the_manifests_form_a_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path) as made:
        controllers = [name for name in made.pods if "controller" in name]
        brokers = [name for name in made.pods if "broker" in name]
        assert made.bootstrap().code == 0
        assert made.bootstrap().code == 2, "a second bootstrap"
        for name in made.pods:
            made.start(name)
        made.wait_ready([*controllers, *brokers])
        assert all(made.probe(name, "startupProbe") for name in made.pods)
        until(lambda: len(made.voters()) == 3, "all controllers have joined")
        assert made.command("topics", "create", "orders", "--partitions", "3").code == 0
        before = made.voters()

        first = controllers[0]
        assert made.stop(first) == 0
        made.wait_ready(controllers[1:])
        assert (
            made.command("configs", "alter", "topic", "orders", "--set", "retention.ms=1").code == 0
        )
        _lose_the_disk(made, tmp_path, first)
        described = made.command("quorum", "describe", "--replication", "--json").json
        assert {one["node_id"]: one["directory_id"] for one in described["voters"]} == made.voters()
        assert made.stop(brokers[0]) == 0
        log = (tmp_path / f"{brokers[0]}.log").read_text()
        assert "Traceback" not in log
        assert before.keys() == made.voters().keys()


def _lose_the_disk(made: Pods, directory: Path, name: str) -> None:
    """On a new disk the first controller joins the quorum instead of starting its own."""
    (directory / name / "data").rename(directory / "lost")
    old = made.voters()[1]
    made.start(name)
    made.wait_ready([name])
    until(lambda: made.voters().get(1, old) != old, "the new disk has replaced the old one")
    assert made.command("topics", "describe", "orders").code == 0


def _secrets(directory: Path) -> None:
    """Make the Secrets of docs/deployment.md with the same commands."""
    pki = directory / "tls"
    on_files("certs init", pki)
    for pod in Pods(directory, tls=True).pods.values():
        on_files("certs issue", pki, "--node", pod.index, "--host", "127.0.0.1")
    on_files("certs issue", pki, "--client", "alice")
    token = directory / "console" / "token"
    token.parent.mkdir()
    token.touch(mode=0o600)
    token.write_text(TOKEN)


@pytest.mark.nightly
def test_processes_of_the_overlay_form_a_secured_cluster(tmp_path: Path) -> None:
    _secrets(tmp_path)
    with cluster(tmp_path, tls=True) as made:
        assert made.bootstrap().code == 0
        for name in made.pods:
            made.start(name)
        made.wait_ready(list(made.pods))
        assert all(made.probe(name, "livenessProbe") for name in made.pods)
        until(lambda: len(made.voters()) == 3, "all controllers have joined")
        assert made.command("topics", "create", "orders", "--acks", "visible").code == 0
        said = made.command("doctor", "--wait", "healthy")
        assert (said.code, said.out.split()[0]) == (0, "HEALTHY:")

        broker = made.pods["raftlog-broker-101"]
        at = made.environment(broker, broker.runs)["RAFTLOG_BOOTSTRAP_SERVER"]
        raftlog("topics list", brokers=at).refused(4, "requires TLS")
        alice = {
            f"RAFTLOG_TLS_{name}_FILE": str(tmp_path / "tls" / file)
            for name, file in (
                ("CA", "ca.pem"),
                ("CERTIFICATE", "client-alice.pem"),
                ("KEY", "client-alice.key"),
            )
        }
        raftlog("topics list", brokers=at, environment=alice).showed("orders")

        url = f"https://127.0.0.1:{made.http[broker.name]}/console/events"
        context = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
        context.load_cert_chain(
            alice["RAFTLOG_TLS_CERTIFICATE_FILE"], alice["RAFTLOG_TLS_KEY_FILE"]
        )
        with pytest.raises(urllib.error.HTTPError) as none:
            urllib.request.urlopen(url, timeout=5, context=context)
        assert none.value.code == 401
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=20, context=context) as stream:
            while not (line := stream.readline()).startswith(b"data: "):
                assert line
        assert b'"orders"' in line
        assert made.stop(broker.name) == 0
