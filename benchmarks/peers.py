"""The peer's figures, measured by its own scripts right after raftlog's.

``BENCH_PEERS`` names a folder with ``etcd/run.py`` (and ``setup.sh``, which builds it);
``PEERS_HOME`` a folder on a real disk for its binaries and data. Each step of ``run.py`` starts a
fresh three-member cluster on loopback, measures and writes ``results/STEP.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.leases import peer as leases_peer
from benchmarks.stats import percentile
from benchmarks.watching import peer
from raftlog.errors import ConfigError

STEPS = {
    "w1": "w1",
    "w2": "w2",
    "w3": "w3",
    "w4": "w4",
    "w5": "w5",
    "w6": "w6_default",
    "w8": "w8",
    "w9": "w9",
}
"""Workload -> the result written by the peer's step."""


def scripts() -> tuple[Path, Path]:
    """Return etcd's scripts, and the folder for what they build and write. Raises ConfigError if
    they are not named.
    """
    source, home = os.environ.get("BENCH_PEERS"), os.environ.get("PEERS_HOME")
    if not source or not home or not (Path(source) / "etcd" / "run.py").exists():
        raise ConfigError(
            "--peer etcd needs BENCH_PEERS (a folder with etcd/run.py) and PEERS_HOME (a folder on"
            " a disk)"
        )
    return Path(source) / "etcd", Path(home)


def etcd(workload: str, *, seconds: float, runs: int, tls: bool = False) -> dict[str, Any] | None:
    """Return etcd's figures for a workload under raftlog's names, or None if it has no such step.

    ``tls``: use mutual TLS between client and members, and between members. Raises ConfigError if
    etcd cannot be run, RuntimeError if its step has failed.
    """
    if workload not in {*STEPS, "watch", "leases"}:
        return None
    source, home = scripts()
    # The scripts write to their own directory, so run a copy.
    copy = home / "scripts" / "etcd"
    shutil.copytree(source, copy, dirs_exist_ok=True)
    environment = {
        **os.environ,
        "PEERS_HOME": str(home),
        "BENCH_SECONDS": str(seconds),
        "BENCH_RUNS": str(runs),
        "BENCH_TLS": "1" if tls else "",
    }
    if not (home / "etcd" / "bin" / "etcd").exists():
        subprocess.run([str(copy / "setup.sh")], env=environment, check=True, stdout=sys.stderr)
    if workload == "watch":
        # Raftlog's, since the watchers must be the same on both sides.
        return {_named(row): row for row in peer.watch(home, seconds)}
    if workload == "leases":
        return leases_peer.leases(home, seconds)
    written = copy / "results" / f"{STEPS[workload]}.json"
    # The scripts continue when a step fails: an existing result would be from an earlier run.
    written.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, str(copy / "run.py"), workload],
        env=environment,
        check=True,
        stdout=sys.stderr,
    )
    if not written.exists():
        raise RuntimeError(f"the step {workload} of etcd's scripts has failed")
    return in_our_words(workload, json.loads(written.read_text()))


def in_our_words(workload: str, result: Any) -> dict[str, Any]:
    """Translate the result of the peer's step into the names of raftlog's figures."""
    if workload == "w8":
        return {"cpu_s_per_minute": round(result["cpu_s_total"] * 60 / result["seconds"], 2)}
    if workload == "w5":
        return {
            "last_from_send_ms": {str(row["watchers"]): row["last_from_send_ms"] for row in result},
            "cpu_us_per_delivery": {
                str(row["watchers"]): {
                    side: round(row[key] / row["watchers"] / row["puts"] * 1e6, 1)
                    for side, key in (("servers", "cpu_servers_s"), ("client", "cpu_client_s"))
                }
                for row in result
            },
        }
    if workload == "w6":
        return {"gap_ms": _spread([row["kill_to_ack_ms"] for row in result])}
    if workload == "w9":
        return {"gap_ms": _spread([row["max_gap_ms"] for row in result])}
    middle = sorted(result, key=lambda run: run["puts_per_s"])[len(result) // 2]
    return {
        "writes_per_s": round(middle["puts_per_s"]),
        "latency_ms": middle["lat_ms"],
        "cpu_us_per_write": {
            "servers": round(middle["cpu_us_per_put_srv"], 1),
            "client": round(middle["cpu_us_per_put"] - middle["cpu_us_per_put_srv"], 1),
        },
        "cpu_of_others_percent": round(100 * middle["cpu_foreign_fraction"], 1),
    }


def _named(row: dict[str, Any]) -> str:
    """Return the name of a row by its number of watchers; "own" if each has its own key; "… shared"
    on few streams; "… laned" on lanes, which the peer does not have.
    """
    if row.get("own_keys"):
        return "own"
    how = " shared" if row.get("shared") else " laned" if row.get("laned") else ""
    return f"{row['watchers']}{how}"


def _spread(times_ms: list[float]) -> dict[str, float]:
    return {
        "p50": round(percentile(times_ms, 0.5), 1),
        "max": round(max(times_ms), 1),
        "runs": len(times_ms),
    }


def ratios(
    workload: str, ours: list[dict[str, Any]], theirs: dict[str, Any] | None
) -> dict[str, float]:
    """Return the ratios of raftlog to the peer; above 1, raftlog is better."""
    if theirs is None:
        return {}
    if workload == "w8":
        return {"CPU": round(theirs["cpu_s_per_minute"] / ours[0]["cpu_s_per_minute"], 2)}
    if workload in ("w6", "w9"):
        key = "signal_to_first_write_ms" if workload == "w6" else "longest_gap_ms"
        return {"gap p50": round(theirs["gap_ms"]["p50"] / ours[0][key]["p50"], 2)}
    if workload == "watch":
        found: dict[str, float] = {}
        for row in ours:
            if row.get("own_keys"):
                continue
            name = _named(row)
            other = theirs[name.removesuffix(" laned")]
            found |= {
                f"last of {name} p50": round(
                    other["last_from_send_ms"]["p50"] / row["last_from_send_ms"]["p50"], 2
                ),
                f"CPU a delivery to {name}": round(
                    other["cpu_us_per_delivery"] / row["cpu_us_per_delivery"], 2
                ),
            }
        return found
    if workload == "leases":
        return _ratios_of_leases(ours[0], theirs)
    if workload == "w5":
        rows = theirs["last_from_send_ms"]
        return {
            f"last of {row['observers']} p50": round(
                rows[str(row["observers"])]["p50"] / row["last_applied_from_send_ms"]["p50"], 2
            )
            for row in ours
            if str(row["observers"]) in rows
        }
    middle = sorted(ours, key=lambda run: run["writes_per_s"])[len(ours) // 2]
    return {
        "writes_per_s": round(middle["writes_per_s"] / theirs["writes_per_s"], 2),
        "latency p50": round(theirs["latency_ms"]["p50"] / middle["latency_ms"]["p50"], 2),
    }


def _ratios_of_leases(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Return the ratios of raftlog's lease steps to the peer's, by subject."""
    kept = {
        f"{who}, servers' CPU a keep-alive": (who, "cpu_us_per_keep_alive", "servers")
        for who in ("one client", "many clients")
    }
    paths = kept | {
        "acquire p50": ("lock", "acquire_ms", "p50"),
        "release p50": ("lock", "release_ms", "p50"),
        "hand-over p50": ("hand-over", "hand_over_ms", "p50"),
        "dead until led p50": ("election", "dead_until_led_ms", "p50"),
    }
    return {
        name: round(theirs[step][key][which] / ours[step][key][which], 2)
        for name, (step, key, which) in paths.items()
        if ours[step][key][which]
    }
