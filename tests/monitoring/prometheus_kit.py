"""A real Prometheus with real nodes: the configuration of docs/monitoring.md, the shipped rules and
dashboards. Only time is shortened: scrapes and evaluations every second instead of every fifteen,
and each ``for`` of a rule is a tenth of the shipped one (``SHORTER``).
"""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml
from rule_runs import Firing, each_rule, load_rules

from raftlog.monitoring import DASHBOARDS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
PROGRAM = shutil.which("prometheus")
SHORTER = 10
PATIENCE_S = 60
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Query(NamedTuple):
    """One query of a dashboard."""

    board: str
    panel: str
    expr: str
    legend: str


def queries() -> Iterator[Query]:
    """Return the queries of all dashboards."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for one in panel["targets"]:
                yield Query(path.stem, panel["title"], one["expr"], one["legendFormat"])


def documented_config(targets: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that docs/monitoring.md gives, for these targets."""
    (block,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    config: dict[str, Any] = yaml.safe_load(block)
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    assert len(static["targets"]) == 6
    static["targets"] = list(targets)
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    job["scrape_timeout"] = "1s"
    return config


def shortened_rules() -> dict[str, Any]:
    rules = dict(load_rules())
    for rule in each_rule(rules):
        if "for" in rule:
            whole_s = promql_parser.parse_duration(rule["for"]).total_seconds()
            rule["for"] = f"{round(whole_s * 1000 / SHORTER)}ms"  # type: ignore[index]
    return rules


class Prometheus:
    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self._address, self._process = address, process

    def ask(self, path: str, **parameters: object) -> Any:
        """Return ``data`` of a response."""
        assert self._process.poll() is None, "Prometheus has ended"
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _OPENER.open(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def firing(self) -> set[Firing]:
        return {
            Firing(
                one["labels"]["alertname"],
                one["labels"]["severity"],
                one["labels"].get("cluster_id", ""),
            )
            for one in self.ask("alerts")["alerts"]
            if one["state"] == "firing"
        }

    def series(self, query: str, cluster_id: str, seconds: int, step_s: int = 1) -> list[Any]:
        """Return the series that a panel shows for the last seconds."""
        expr = query.replace("$cluster", cluster_id).replace("$__rate_interval", "15s")
        now = time.time()
        found = self.ask("query_range", query=expr, start=now - seconds, end=now, step=step_s)
        return list(found["result"])

    def wait(self, what: str, holds: Any, patience_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < until, f"{what}; {self.ask('alerts')['alerts']}"
            time.sleep(0.2)

    def evaluated(self) -> str:
        """Return the time when the first group of rules was evaluated last."""
        groups = self.ask("rules")["groups"]
        assert [rule for one in groups for rule in one["rules"] if rule["health"] == "err"] == []
        return str(groups[0]["lastEvaluation"])


@contextmanager
def prometheus(directory: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run Prometheus until the end of the block, once it is ready."""
    assert PROGRAM is not None
    directory.mkdir()
    (directory / "raftlog.rules.yml").write_text(yaml.safe_dump(shortened_rules()))
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(documented_config(targets)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                PROGRAM,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        started = Prometheus(address, process)
        until = time.monotonic() + PATIENCE_S
        while not _ready(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield started
    finally:
        process.terminate()
        process.wait(30)


def _ready(address: str) -> bool:
    try:
        with _OPENER.open(f"http://{address}/-/ready", timeout=5):
            return True
    except OSError:
        return False
