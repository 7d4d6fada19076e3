"""Which extra brings what a command lacks.

A plain installation is the client library; commands, nodes and analyses need more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

BROUGHT_BY: Mapping[str, tuple[str, ...]] = {
    "broker": ("server",),
    "controller": ("server",),
    "cryptography": ("certs", "server"),
    "fsspec": ("remote",),
    "grpc_health": ("server",),
    "grpc_reflection": ("server",),
    "jinja2": ("replay",),
    "jwt": ("certs", "server"),
    "prometheus_client": ("server",),
    "prompt_toolkit": ("server",),
    "pyarrow": ("export", "replay"),
    "pydantic": ("server",),
    "numpy": ("export", "replay"),
    "opentelemetry": ("otel",),
    "pyspark": ("replay",),
    "pytest": ("testing",),
    "replay": ("export", "replay"),
    "rich": ("cli",),
    "rocksdict": ("server",),
    "simulation": ("simulation",),
    "sortedcontainers": ("server",),
    "starlette": ("server",),
    "structlog": ("cli",),
    "typer": ("cli",),
    "uvicorn": ("server",),
    "uvloop": ("server",),
}
"""Extras of pyproject.toml by the modules that only they bring, the smallest one first."""
OF_SERVER = frozenset({"broker", "controller", "replay", "simulation"})
"""The packages of the distribution raftlog-server."""


def missing(command: str, error: ModuleNotFoundError, extras: Collection[str] = ()) -> str | None:
    """What to tell a person about a command that cannot be run without a module; None if no extra
    brings it.

    ``extras``: what the command needs to work at all; if one of them brings the module, all are
    named.
    """
    module = (error.name or "").partition(".")[0]
    bringing = BROUGHT_BY.get(module, ())
    if not bringing:
        return None
    name = "raftlog-server" if module in OF_SERVER else module
    wanted = sorted(extras) if _with_included(extras) & set(bringing) else bringing[:1]
    return (
        f"`{f'raftlog {command}'.rstrip()}` needs {name}, which is not installed. To have it:"
        f" {pip_install(wanted)}"
    )


def pip_install(extras: Sequence[str]) -> str:
    """The command that installs these extras."""
    return f"pip install 'raftlog[{','.join(extras)}]', or scripts/setup in a checkout"


def _with_included(extras: Collection[str]) -> set[str]:
    if not extras:
        return set()
    return {*extras, "cli", "server"} if "simulation" in extras else {*extras, "cli"}
