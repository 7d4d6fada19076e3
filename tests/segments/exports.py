"""Exports of whole logs, and changes that a forger or a disk would make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from log_history import LogHistory
from msgspec.structs import replace

from raftlog.segments.manifest import MANIFEST_NAME, Manifest, StateHash, encode, read_manifest
from raftlog.segments.writer import ExportWriter


def written(
    log: LogHistory, directory: Path, *, said: Sequence[StateHash] = (), **options: Any
) -> Path:
    """Write a whole log as an export; ``options`` are those of ExportWriter."""
    with ExportWriter(directory, log.cluster_id, log.generation, **options) as writer:
        writer.append_chunk(b"".join(log.batches))
        writer.record(said)
        writer.commit(writer.next_offset)
    return directory


def publish(directory: Path, manifest: Manifest | None = None, **fields: Any) -> Manifest:
    """Write a manifest, by default the present one with other fields, with a right checksum."""
    changed = replace(manifest or read_manifest(directory), **fields)
    (directory / MANIFEST_NAME).write_bytes(encode(changed))
    return changed


def flip(path: Path, position: int | None = None) -> None:
    """Flip a bit of a file, by default in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)
