"""A generated history as an export: made in one process, written in another."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from raftlog.segments.manifest import MANIFEST_NAME, Manifest
from raftlog.segments.writer import ExportWriter
from replay.errors import ReplayError
from replay.generate.history import GeneratedHistory, generate
from replay.generate.profile import Profile

CLUSTER_ID = "generated"
_END = b""


def write_export(
    directory: Path,
    profile: Profile,
    records: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[GeneratedHistory, Manifest]:
    """Generate into an empty or a new directory.

    Memory is that of the cluster's state and of one row group.

    ``progress`` is called with (records written, records to write). Raises ReplayError if there is
    an export already, or the generator dies; ExportError if the directory can't be used.
    """
    if (directory / MANIFEST_NAME).exists():
        raise ReplayError(
            f"{directory} holds an export already: a made-up history goes into a directory of"
            " its own"
        )
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with ExportWriter(directory, CLUSTER_ID, 0) as writer, receiver:
        process = context.Process(target=_generate, args=(sender, profile, records), daemon=True)
        process.start()
        sender.close()
        try:
            while chunk := _receive(receiver, process):
                writer.append_chunk(chunk)
                if progress is not None:
                    progress(writer.next_offset, max(records, writer.next_offset))
            history = msgspec.msgpack.decode(_receive(receiver, process), type=GeneratedHistory)
        finally:
            receiver.close()
            process.join()
        manifest = writer.commit(history.records)
    return history, manifest


def _receive(receiver: Connection, process: BaseProcess) -> bytes:
    try:
        return receiver.recv_bytes()
    except (EOFError, OSError):
        process.join()
        raise ReplayError(
            f"the process that makes the history has ended with code {process.exitcode}"
        ) from None


def _generate(sender: Connection, profile: Profile, records: int) -> None:
    """Generate the history, in the other process. The pipe holds little, so generation is never far
    ahead.
    """
    try:
        history = generate(profile, records, sender.send_bytes)
        sender.send_bytes(_END)
        sender.send_bytes(msgspec.msgpack.encode(history))
    except BrokenPipeError:
        # Whoever wrote has failed, and says why.
        pass
    finally:
        sender.close()
