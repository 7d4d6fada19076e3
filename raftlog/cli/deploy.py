"""``raftlog deploy``: systemd services, monitoring rules and dashboards, and sizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.command import Answer, command, group
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line, print_table
from raftlog.deploy import units
from raftlog.deploy.sizing import FIGURES, MIB, Figure, Size, size
from raftlog.errors import ConfigError
from raftlog.monitoring import DASHBOARDS, RULES

systemd, monitoring = group(), group()
_NEXT = """
Next, for a controller named NAME (for a broker, replace "controller" with "broker"):
  systemd-sysusers creates the user raftlog
  write /etc/raftlog/NAME.toml        with log.dirs = "/var/lib/raftlog/NAME"
  install -d -o raftlog -g raftlog -m 700 /var/lib/raftlog/NAME
  runuser -u raftlog -- raftlog storage format -c /etc/raftlog/NAME.toml
  systemctl daemon-reload
  systemctl enable --now raftlog-controller@NAME"""


@dataclass
class Unit:
    """A systemd unit file."""

    path: str
    written: bool
    """False if the file already existed or with --dry-run."""
    text: str


@dataclass
class Units:
    """The files."""

    files: Sequence[Unit]


@dataclass(frozen=True, slots=True)
class Sized(Size):
    """What the nodes need, from the larger of the figures, without buffers."""

    figures: Mapping[str, Figure]
    """The measurements and defaults from which the needs follow."""


@command(systemd)
def install(
    dry_run: Annotated[bool, opt("--dry-run", "Print the files and write nothing.")] = False,
    prefix: Annotated[Path, opt("--prefix DIR", "Write the files under this directory.")] = Path(
        "/"
    ),
    executable: Annotated[
        str | None,
        opt("--executable FILE", "The raftlog executable that the units run; default: this one."),
    ] = None,
) -> Answer[Units]:
    """Write systemd units for controllers and brokers.

    raftlog-controller@.service and raftlog-broker@.service. The service raftlog-controller@NAME
    reads /etc/raftlog/NAME.toml, keeps its data in /var/lib/raftlog/NAME and runs as the user
    raftlog, which sees the rest of the machine read-only. Replaces files of an earlier version;
    keeps drop-ins (systemctl edit). Starts nothing.

    \b
    Examples:
      raftlog deploy systemd install --dry-run
      raftlog deploy systemd install
      raftlog deploy systemd install --prefix ./image --executable /opt/raftlog/bin/raftlog
    """
    files = units.unit_files([executable] if executable else units.this_command())
    written = [] if dry_run else units.install(files, prefix)
    rows = [
        Unit(str(prefix / place), prefix / place in written, text) for place, text in files.items()
    ]

    def show() -> None:
        if dry_run:
            typer.echo("\n".join(f"# --- {one.path}\n{one.text}" for one in rows))
            return
        for one in rows:
            print_line(f"{'wrote' if one.written else 'unchanged'} {one.path}")
        typer.echo(_NEXT)

    return Answer(Units(rows), show)


@command(monitoring)
def rules(
    docs: Annotated[
        str,
        opt(
            "--docs URL",
            "The URL of your copy of the documentation: each alert links to a section of it.",
        ),
    ] = "",
) -> None:
    """Print the rules file: alerts with severity and a link to the docs.

    \b
    Examples:
      raftlog deploy monitoring rules > raftlog.rules.yml
      raftlog deploy monitoring rules --docs https://docs.example.org/raftlog/
    """
    text = RULES.read_text(encoding="utf-8")
    if docs:
        text = text.replace("runbook_url: ", f"runbook_url: {docs.rstrip('/')}/")
    typer.echo(text, nl=False)


@command(monitoring)
def dashboards(
    name: Annotated[str, arg("[NAME]", "Print this dashboard.")] = "",
    output: Annotated[
        Path | None, opt("--output DIR", "Write all dashboards to this directory.")
    ] = None,
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
        raise ConfigError(f"there is no dashboard {name!r}; choose one of {', '.join(found)}")
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


@command()
def size_(
    partitions: Annotated[
        int, opt("--partitions N", "Number of partitions in all topics.", min=0, max=100_000_000)
    ],
    brokers: Annotated[
        int, opt("--brokers N", "Number of brokers in the cluster.", min=0, max=100_000)
    ],
    writes_per_second: Annotated[
        float, opt("--writes-per-second N", "Metadata writes per second.", min=0, max=1e6)
    ],
    sync_ms: Annotated[
        float,
        opt("--sync-ms MS", "Duration of a disk sync, in milliseconds.", min=0.001, max=60_000),
    ] = 1.0,
) -> Answer[Sized]:
    """Estimate what the nodes need: memory, disk, syncs.

    Assumes three controllers and replication factor 3, and uses the larger of the measured figures;
    --json shows them all, with their sources. Partition data and buffers under load
    (raftlog_memory_bound_bytes) come on top. `raftlog cluster perf` measures the duration of a
    sync.

    \b
    Examples:
      raftlog deploy size --partitions 100000 --brokers 50 --writes-per-second 200
      raftlog deploy size --partitions 5000 --brokers 3 --writes-per-second 5 --json
    """
    if math.isnan(writes_per_second) or math.isnan(sync_ms):
        raise typer.BadParameter("--writes-per-second and --sync-ms must be numbers, not NaN")
    found = size(partitions, brokers, writes_per_second, sync_ms)
    rows = [
        ("memory of a controller", _mib(found.controller_memory_bytes)),
        ("memory of a broker", _mib(found.broker_memory_bytes)),
        ("disk of a controller", _mib(found.controller_disk_bytes)),
        ("log written by a controller per day", _mib(found.controller_log_bytes_per_day)),
        ("syncs by a controller per second", f"{found.controller_fsyncs_per_second:,.1f}"),
        (
            "heartbeats, share of the leader's core",
            f"{found.leader_cpu_percent_for_heartbeats:.1f} %",
        ),
        ("records sent by the leader", f"{_mib(found.leader_sent_bytes_per_second)}/s"),
    ]
    document = Sized(**asdict(found), figures=FIGURES)
    return Answer(document, lambda: print_table(("FOR METADATA", "ABOUT"), rows, right=("ABOUT",)))


def _mib(count: float) -> str:
    return f"{count / MIB:,.1f} MiB"
