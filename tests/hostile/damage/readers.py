"""Every reader, as a function of a directory. The result is compared with that of the undamaged
one. Commands run as from a shell, but in this process.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import structlog
import typer.main

from broker.registration.directory import open_directory
from raftlog import batch
from raftlog.cli import main as cli
from raftlog.cli.exits import report
from raftlog.errors import CorruptLogError, RaftlogError
from raftlog.metadata import snapshot_file
from raftlog.node.config.load import load_config
from raftlog.node.storage.files import read_bootstrap
from raftlog.node.storage.opening import open_partition_store, open_store
from raftlog.segments.manifest import MANIFEST_NAME, RAW, RECORDS, read_manifest
from raftlog.segments.range_checks import check_segment
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter
from replay.spark.raw_runs import Span, plan, read

PROBE_S = 10.0
MEMORY_BYTES = 1 << 30
"""Address space limit of the reading process: an allocation above it shows as a MemoryError or a
crash.
"""
Said = dict[str, Any]


def digest(data: bytes) -> str:
    """Return a short form of results, to compare them."""
    return hashlib.sha256(data).hexdigest()[:24]


@cache
def _application() -> Any:
    return typer.main.get_command(cli.build())


def _command(*arguments: str) -> Said:
    """Run a command; return its output, messages and exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def _called(call: Callable[[], dict[str, Any]]) -> Said:
    """Call in this process; errors are reported as a process would."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            return {"code": 0, "out": json.dumps(call(), sort_keys=True), "err": ""}
        except RaftlogError as error:
            code = int(report(error))
            return {
                "code": code,
                "out": "",
                "err": err.getvalue(),
                "offset": getattr(error, "offset", -1),
            }


# --- a controller's directory -------------------------------------------------------------------


def dump(directory: Path) -> Said:
    """``raftlog log dump -d``."""
    return _command("log", "dump", "-d", str(directory), "--json")


def image(directory: Path) -> Said:
    """``raftlog log image -d``."""
    return _command("log", "image", "-d", str(directory), "--json")


def info(directory: Path) -> Said:
    """``raftlog storage info``."""
    return _command("storage", "info", "-d", str(directory), "--json")


def export(directory: Path) -> Said:
    """``raftlog export -d --verify``; the result is the export's content."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "export"
        said = _command("export", str(target), "-d", str(directory), "--verify", "--json")
        if said["code"] == 0:
            manifest = read_manifest(target)
            data = b"".join(b"".join(read_segment(target, one)) for one in manifest.of_kind(RAW))
            document = {"range": [manifest.history_begin, manifest.end_offset], **_content(data)}
            said["out"] = json.dumps(
                {"cluster_id": manifest.cluster_id, **document}, sort_keys=True
            )
        else:
            said["out"] = ""
        return said


def start(directory: Path) -> Said:
    """Read what a starting controller reads; this changes the directory, as a start does."""

    async def recover() -> dict[str, Any]:
        bootstrap = read_bootstrap(directory)
        loop = asyncio.get_running_loop()
        store = open_store(
            directory,
            expect_cluster_id=None,
            expect_node_id=None,
            loop=loop,
            probe_timeout_s=PROBE_S,
        )
        try:
            found = store.recover()
            data = store.read(found.start_offset, until=found.end_offset, max_bytes=1 << 40)
            return {
                "identity": repr(store.identity), "bootstrap": repr(bootstrap), "vote": repr(found.vote),
                "range": [found.start_offset, found.end_offset], "epochs": found.epochs, **_content(data),
                "snapshots": {str(one): _served(store.read_snapshot(one, 0, 1 << 24)) for one in found.snapshots},
            }  # fmt: skip
        finally:
            store.close()

    return _called(lambda: asyncio.run(recover()))


def _content(data: bytes) -> dict[str, Any]:
    """Return the content of a log and of each of its prefixes, by end offset."""
    prefixes = {
        one.end_offset: digest(data[: one.position + one.size]) for one in batch.headers(data)
    }
    return {"content": digest(data), "prefixes": prefixes}


def _served(data: bytes) -> str:
    try:
        snapshot_file.verify([data])
    except CorruptLogError:
        return "refused by who fetches it"
    return digest(data)


# --- a broker's directory -----------------------------------------------------------------------


def broker_start(directory: Path) -> Said:
    """Read the files that a starting broker reads."""

    async def recover() -> dict[str, Any]:
        opened = open_directory(directory, cluster_id=_cluster_id(directory), broker_id=1)
        try:
            store = open_partition_store(
                directory, asyncio.get_running_loop(), probe_timeout_s=PROBE_S
            )
            try:
                found = store.recover()
                content = {}
                for one in found:
                    data = store.read(one.key, 0, until=one.end_offset, max_bytes=1 << 40)
                    headers = list(batch.headers(data))
                    content[f"{one.key[0].hex()}:{one.key[1]}"] = {
                        header.end_offset: digest(data[: header.position + header.size])
                        for header in headers
                    }
                return {"identity": repr(opened.identity), "content": content}
            finally:
                store.close()
        finally:
            opened.close()

    return _called(lambda: asyncio.run(recover()))


def _cluster_id(directory: Path) -> str:
    from raftlog.node.storage.directory import read_identity

    return read_identity(directory).cluster_id


# --- an export ----------------------------------------------------------------------------------


def export_dump(directory: Path) -> Said:
    """``raftlog log dump -e``."""
    return _command("log", "dump", "-e", str(directory), "--json")


def export_image(directory: Path) -> Said:
    """``raftlog log image -e``."""
    return _command("log", "image", "-e", str(directory), "--json")


def export_verify(directory: Path) -> Said:
    """Read the files that ``--verify`` checks; it ignores files that no reader uses."""
    return _called(lambda: {"end": verify_export(directory).end_offset})


def export_tables(directory: Path) -> Said:
    """Read what a replay reads of the Parquet form, without Spark."""

    def rows() -> dict[str, Any]:
        manifest = read_manifest(directory)
        found = []
        for one in manifest.of_kind(RECORDS):
            check_segment(directory, one, manifest.cluster_id, manifest.generation)
            table = pq.read_table(directory / one.file, columns=["offset", "epoch", "type", "body"])
            found.append(digest(repr(table.to_pydict()).encode()))
        return {"end": manifest.end_offset, "rows": found}

    return _called(rows)


def export_runs(directory: Path) -> Said:
    """Read what the data source of a replay reads of the raw form, without Spark."""

    def rows() -> dict[str, Any]:
        manifest = read_manifest(directory)
        found = []
        for run in plan(str(directory), manifest, manifest.of_kind(RAW), Span(), 20):
            tables = [
                table.select(["offset", "epoch", "type", "body"]).to_pydict() for table in read(run)
            ]
            found += [digest(repr(table).encode()) for table in tables]
        return {"end": manifest.end_offset, "rows": found}

    return _called(rows)


def export_goes_on(directory: Path) -> Said:
    """Export into it again, which appends nothing; the result is where it would continue."""

    def reopen() -> dict[str, Any]:
        manifest = read_manifest(directory) if (directory / MANIFEST_NAME).exists() else None
        owner = (manifest.cluster_id, manifest.generation) if manifest else ("another", 0)
        with ExportWriter(directory, *owner) as writer:
            return {"next": writer.next_offset}

    return _called(reopen)


# --- a configuration ----------------------------------------------------------------------------


def config(directory: Path) -> Said:
    """``load_config``: TOML has no checksum, so another value is another configuration."""
    return _called(lambda: {"config": repr(load_config(directory / "node.toml", environment={}))})


READERS: dict[str, dict[str, Callable[[Path], Said]]] = {
    # Those that change nothing come first.
    "controller": {"dump": dump, "image": image, "info": info, "export": export, "start": start},
    "broker": {"start": broker_start},
    "export": {
        "dump": export_dump,
        "image": export_image,
        "verify": export_verify,
        "tables": export_tables,
        "runs": export_runs,
        "goes on": export_goes_on,
    },
    "config": {"config": config},
}
"""Readers by kind of directory and name."""


def serve() -> None:
    """Answer ``{"kind", "directory", "readers"}`` per line, and remove the directory, until the
    input ends.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    answers = sys.stdout
    cli.build_for = lambda _: _application()  # type: ignore[assignment]
    cli.set_up_quiet_logs = lambda _: None  # type: ignore[assignment]
    log = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(log), cache_logger_on_first_use=False,
    )  # fmt: skip
    for line in sys.stdin:
        asked = json.loads(line)
        directory = Path(asked["directory"])
        said = {}
        for name in asked["readers"]:
            log.truncate(0)
            log.seek(0)
            try:
                said[name] = READERS[asked["kind"]][name](directory)
            except Exception as error:
                # That none gets here is what is tested.
                defect, trace = (
                    f"{type(error).__name__}: {error}"[:500],
                    traceback.format_exc()[-1500:],
                )
                said[name] = {"code": -1, "out": "", "err": "", "defect": defect, "trace": trace}
            said[name]["log"] = log.getvalue()
        shutil.rmtree(directory, ignore_errors=True)
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
