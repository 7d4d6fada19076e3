"""``raftlog deploy monitoring``: what Prometheus and Grafana are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.output import print_line
from raftlog.errors import ConfigError
from raftlog.monitoring import DASHBOARDS, RULES

app = typer.Typer(
    help="Alerts for Prometheus, dashboards for Grafana.", epilog=EPILOG, no_args_is_help=True
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="monitoring")


@app.callback()
def _group() -> None:
    """Alerts for Prometheus, dashboards for Grafana."""


@app.command(epilog=EPILOG)
def rules(
    docs: Annotated[
        str,
        typer.Option(
            "--docs",
            metavar="URL",
            help="Where your people read these documents: each alert links to its section there.",
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


@app.command(epilog=EPILOG)
def dashboards(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Print this one.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Write all of them there.")
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
