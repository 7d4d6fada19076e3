"""``raftlog deploy systemd``: the units that run nodes as services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import Json
from raftlog.cli.output import print_json, print_line
from raftlog.deploy import units

app = typer.Typer(help="Run nodes as services of systemd.", epilog=EPILOG, no_args_is_help=True)

_NEXT = """
Next, for a controller NAME (for a broker write broker for controller):
  systemd-sysusers                    makes the user raftlog
  write /etc/raftlog/NAME.toml        with log.dirs = "/var/lib/raftlog/NAME"
  install -d -o raftlog -g raftlog -m 700 /var/lib/raftlog/NAME
  runuser -u raftlog -- raftlog storage format -c /etc/raftlog/NAME.toml
  systemctl daemon-reload
  systemctl enable --now raftlog-controller@NAME"""


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="systemd")


@app.callback()
def _group() -> None:
    """Run nodes as services of systemd."""


@app.command(epilog=EPILOG)
def install(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the files and write nothing.")
    ] = False,
    prefix: Annotated[
        Path, typer.Option("--prefix", metavar="DIR", help="Write below this directory.")
    ] = Path("/"),
    executable: Annotated[
        str | None,
        typer.Option(
            "--executable",
            metavar="FILE",
            help="The raftlog that the units run; default: this one.",
        ),
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
            print_json(_document(files, prefix, []))
            return
        typer.echo("\n".join(f"# --- {prefix / place}\n{text}" for place, text in files.items()))
        return
    written = units.install(files, prefix)
    if as_json:
        print_json(_document(files, prefix, written))
        return
    for place in files:
        path = prefix / place
        print_line(f"{'wrote' if path in written else 'unchanged'} {path}")
    typer.echo(_NEXT)


def _document(
    files: Mapping[PurePosixPath, str], prefix: Path, written: Sequence[Path]
) -> dict[str, Any]:
    """What --json prints."""
    rows = [
        {"path": str(prefix / place), "written": prefix / place in written, "text": text}
        for place, text in files.items()
    ]
    return {"files": rows}
