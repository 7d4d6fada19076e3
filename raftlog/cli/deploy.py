"""``raftlog deploy``: services of systemd, rules and dashboards for monitoring, sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import Json, arg, opt
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.deploy import units
from raftlog.deploy.sizing import FIGURES, MIB, size
from raftlog.errors import ConfigError
from raftlog.monitoring import DASHBOARDS, RULES

systemd = typer.Typer(help="Run nodes as services of systemd.", epilog=EPILOG, no_args_is_help=True)

_NEXT = """
Next, for a controller NAME (for a broker write broker for controller):
  systemd-sysusers                    makes the user raftlog
  write /etc/raftlog/NAME.toml        with log.dirs = "/var/lib/raftlog/NAME"
  install -d -o raftlog -g raftlog -m 700 /var/lib/raftlog/NAME
  runuser -u raftlog -- raftlog storage format -c /etc/raftlog/NAME.toml
  systemctl daemon-reload
  systemctl enable --now raftlog-controller@NAME"""


def register_systemd(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(systemd, name="systemd")


@systemd.callback()
def _systemd() -> None:
    """Run nodes as services of systemd."""


@systemd.command(epilog=EPILOG)
def install(
    dry_run: Annotated[bool, opt("--dry-run", "Print the files and write nothing.")] = False,
    prefix: Annotated[Path, opt("--prefix DIR", "Write below this directory.")] = Path("/"),
    executable: Annotated[
        str | None, opt("--executable FILE", "The raftlog that the units run; default: this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the units of systemd for controllers and brokers.

    raftlog-controller@.service and raftlog-broker@.service. The service raftlog-controller@NAME
    reads /etc/raftlog/NAME.toml, keeps its data in /var/lib/raftlog/NAME and runs as the user
    raftlog, which sees the rest of the machine read-only. Files of an earlier version are replaced;
    drop-ins (systemctl edit) stay. Nothing is started.

    \b
    Examples:
      raftlog deploy systemd install --dry-run
      raftlog deploy systemd install
      raftlog deploy systemd install --prefix ./image --executable /opt/raftlog/bin/raftlog
    """
    files = units.unit_files([executable] if executable else units.this_command())
    if dry_run:
        if as_json:
            print_json(_units_document(files, prefix, []))
            return
        typer.echo("\n".join(f"# --- {prefix / place}\n{text}" for place, text in files.items()))
        return
    written = units.install(files, prefix)
    if as_json:
        print_json(_units_document(files, prefix, written))
        return
    for place in files:
        path = prefix / place
        print_line(f"{'wrote' if path in written else 'unchanged'} {path}")
    typer.echo(_NEXT)


def _units_document(
    files: Mapping[PurePosixPath, str], prefix: Path, written: Sequence[Path]
) -> dict[str, Any]:
    """Return the JSON document."""
    rows = [
        {"path": str(prefix / place), "written": prefix / place in written, "text": text}
        for place, text in files.items()
    ]
    return {"files": rows}


monitoring = typer.Typer(
    help="Alerts for Prometheus, dashboards for Grafana.", epilog=EPILOG, no_args_is_help=True
)


def register_monitoring(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(monitoring, name="monitoring")


@monitoring.callback()
def _monitoring() -> None:
    """Alerts for Prometheus, dashboards for Grafana."""


@monitoring.command(epilog=EPILOG)
def rules(
    docs: Annotated[
        str,
        opt(
            "--docs URL",
            "Where your people read these documents: each alert links to its section there.",
        ),
    ] = "",
) -> None:
    """Print the rules file: alerts with severity and a page to read.

    \b
    Examples:
      raftlog deploy monitoring rules > raftlog.rules.yml
      raftlog deploy monitoring rules --docs https://docs.example.org/raftlog/
    """
    text = RULES.read_text(encoding="utf-8")
    if docs:
        text = text.replace("runbook_url: ", f"runbook_url: {docs.rstrip('/')}/")
    typer.echo(text, nl=False)


@monitoring.command(epilog=EPILOG)
def dashboards(
    name: Annotated[str, arg("[NAME]", "Print this one.")] = "",
    output: Annotated[Path | None, opt("--output DIR", "Write all of them there.")] = None,
) -> None:
    """List the dashboards, print one, or write all into a directory.

    \b
    Examples:
      raftlog deploy monitoring dashboards
      raftlog deploy monitoring dashboards raftlog-overview > overview.json
      raftlog deploy monitoring dashboards --output /var/lib/grafana/dashboards
    """
    found = {path.stem: path for path in sorted(DASHBOARDS.glob("*.json"))}
    if name and name not in found:
        raise ConfigError(f"there is no dashboard {name!r}; there are {', '.join(found)}")
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
            for stem, path in found.items():
                (output / f"{stem}.json").write_bytes(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot write to {output}: {error}") from error
    elif name:
        typer.echo(found[name].read_text(encoding="utf-8"), nl=False)
        return
    for stem in found:
        print_line(stem)


def register_size(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("size", epilog=EPILOG)(_size)


def _size(
    partitions: Annotated[int, opt("--partitions N", "In all topics.", min=0, max=100_000_000)],
    brokers: Annotated[int, opt("--brokers N", "Of the cluster.", min=0, max=100_000)],
    writes_per_second: Annotated[
        float, opt("--writes-per-second N", "Changes of the metadata.", min=0, max=1e6)
    ],
    sync_ms: Annotated[
        float, opt("--sync-ms MS", "What a sync of the disks takes.", min=0.001, max=60_000)
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Say what the nodes need: memory, disk, syncs.

    Three controllers and the brokers. For replication factor 3, by the larger of the figures that
    were measured; --json has them all, with their sources. On top come the data of the partitions
    and buffers under load (raftlog_memory_bound_bytes). `raftlog cluster perf` says what a sync
    takes.

    \b
    Examples:
      raftlog deploy size --partitions 100000 --brokers 50 --writes-per-second 200
      raftlog deploy size --partitions 5000 --brokers 3 --writes-per-second 5 --json
    """
    if math.isnan(writes_per_second) or math.isnan(sync_ms):
        raise typer.BadParameter("a number is wanted, not NaN")
    found = size(partitions, brokers, writes_per_second, sync_ms)
    if as_json:
        print_json({**asdict(found), "figures": {k: asdict(one) for k, one in FIGURES.items()}})
        return
    rows = [
        ("memory of a controller", _mib(found.controller_memory_bytes)),
        ("memory of a broker", _mib(found.broker_memory_bytes)),
        ("disk of a controller", _mib(found.controller_disk_bytes)),
        ("log that a controller writes a day", _mib(found.controller_log_bytes_per_day)),
        ("syncs of a controller a second", f"{found.controller_fsyncs_per_second:,.1f}"),
        ("heartbeats, of the leader's core", f"{found.leader_cpu_percent_for_heartbeats:.1f} %"),
        ("records that the leader sends", f"{_mib(found.leader_sent_bytes_per_second)}/s"),
    ]
    print_table(("OF METADATA", "ABOUT"), rows, right=("ABOUT",))


def _mib(count: float) -> str:
    return f"{count / MIB:,.1f} MiB"
