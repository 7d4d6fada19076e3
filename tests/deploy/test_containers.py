"""The image's instructions and the compose file, checked without a container engine."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_runs import run_text
from typer.testing import CliRunner

from raftlog.cli.main import build
from raftlog.node.config.load import load_config
from raftlog.node.config.settings import Settings

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
NODES = {1: "controller", 2: "controller", 3: "controller", 4: "broker", 5: "broker", 6: "broker"}
CLUSTER_ID = "xtzWWN4bTjitpL3kfd9s5g"


def instructions() -> list[tuple[str, str]]:
    """Return (name, arguments) of each instruction, lines joined and comments removed."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined if line]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    starts = [at for at, (name, _) in enumerate(found) if name == "FROM"]
    assert len(starts) == 2
    return found[starts[-1] :]


def only(name: str) -> str:
    (arguments,) = (arguments for found, arguments in final_stage() if found == name)
    return arguments


def test_image_uses_only_known_instructions_and_fetches_nothing_by_url() -> None:
    found = instructions()
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "STOPSIGNAL"}
    known |= {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in found} <= known, "ADD is not among them"
    assert not [arguments for _, arguments in found if "://" in arguments]
    bases = [arguments for name, arguments in found if name == "FROM"]
    assert [re.match(r"python:3\.\d+-slim\b", base) is not None for base in bases] == [True] * 2


def test_image_runs_as_a_user_who_owns_only_the_data() -> None:
    user = only("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "by number, and not root"
    names = [name for name, _ in final_stage()]
    assert "RUN" not in names[names.index("USER") :]
    uid = user.partition(":")[0]
    assert f"install -d -o {uid} -g {uid} -m 0700 /var/lib/raftlog" in only("RUN")
    assert json.loads(only("VOLUME")) == ["/var/lib/raftlog"]


def test_image_runs_raftlog_directly_so_that_it_receives_the_signal() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["raftlog"]
    assert only("STOPSIGNAL") == "SIGTERM"


@contextmanager
def readyz(status: int) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(b"no leader is known")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health_check_uses_readyz(status: int, healthy: bool) -> None:
    program = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    assert "RAFTLOG_HTTP_LISTENER=:9193" in only("ENV")
    with readyz(status) as port:
        done = run_text([sys.executable, "-c", program[2].replace("9193", str(port))])
    assert (done.returncode == 0) is healthy
    assert done.stdout == "no leader is known\n"


@pytest.mark.nightly
def test_image_linter_reports_nothing() -> None:
    """The gate has the tests above."""
    linter = Path(sys.executable).with_name("hadolint")
    done = run_text([linter, DEPLOY / "Dockerfile"], timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """Return the environment of the image and the file, with the cluster id inserted."""
    given = {**dict(word.split("=", 1) for word in only("ENV").split()), **service["environment"]}
    assert all(isinstance(value, str) for value in given.values()), "compose wants text"
    return {key: re.sub(r"\$\{RAFTLOG_CLUSTER_ID:.*\}", CLUSTER_ID, v) for key, v in given.items()}


def test_compose_file_has_six_nodes_with_volumes(compose: dict[str, Any]) -> None:
    names = [f"{role}-{node_id}" for node_id, role in NODES.items()]
    assert (list(compose["services"]), list(compose["volumes"])) == (names, names)
    for name, service in compose["services"].items():
        assert service["volumes"] == [f"{name}:/var/lib/raftlog"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert set(service.get("depends_on", {})) <= set(names)
        assert "ports" not in service, "plaintext is for this network alone"


def test_node_has_enough_time_to_stop(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        least = Settings.controlled_shutdown_timeout_ms // 1000 if "broker" in name else 10
        assert int(service["stop_grace_period"].removesuffix("s")) >= least + 10


@pytest.mark.parametrize("node_id", NODES)
def test_each_node_can_be_formatted_and_started_by_its_commands(
    compose: dict[str, Any], node_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = NODES[node_id]
    service = compose["services"][f"{role}-{node_id}"]
    for key, value in environment_of(service).items():
        if key.startswith("RAFTLOG_"):
            monkeypatch.setenv(key, value)
    config = load_config(None)
    assert (config.settings.node_id, config.role) == (node_id, role)
    assert config.settings.log_dirs == ("/var/lib/raftlog",)
    monkeypatch.setenv("RAFTLOG_LOG_DIRS", str(tmp_path / "data"))
    app = build()
    formatted = CliRunner().invoke(app, ["storage", "format", "--json"])
    assert formatted.exit_code == 0, formatted.output
    assert json.loads(formatted.stdout)["node_id"] == node_id
    assert service["command"] == [role, "run"]
    assert CliRunner().invoke(app, [*service["command"], "--help"]).exit_code == 0


def test_every_voter_address_is_a_controllers(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        voters = service["environment"]["RAFTLOG_CONTROLLER_QUORUM_VOTERS"].split(",")
        assert voters == [f"{i}@controller-{i}:9093" for i, r in NODES.items() if r == "controller"]
        port = service["environment"]["RAFTLOG_LISTENERS"].rpartition(":")[2]
        told = service["environment"].get("RAFTLOG_ADVERTISED_LISTENERS", f"{name}:9093")
        assert told == f"{name}:{port}"
