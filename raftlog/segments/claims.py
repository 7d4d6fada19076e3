"""What the manifest says of the log, held against the log: no checksum covers that but a
signature's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.metadata.versions import METADATA_VERSION
from raftlog.segments.manifest import MANIFEST_NAME, Manifest
from raftlog.segments.ranges import Checked, Fault

CHECK = "MANIFEST"


def claim_faults(manifest: Manifest, checked: Iterable[Checked]) -> Iterator[Fault]:
    """Where the manifest denies what the records say. ``checked``: all ranges, by offset."""
    ranges = [one.said for one in checked]
    own = next((one.own for one in ranges if one.own >= 0), -1)
    imported = next((one.imported for one in ranges if one.imported >= 0), -1)
    if manifest.origin and own >= 0:
        yield _fault(
            own,
            f"it says that this is the log of {manifest.origin}, and the record at offset {own} is"
            " one that only raftlog's own log has: rules of the audit would be left out",
        )
    if not manifest.origin and imported >= 0:
        yield _fault(
            imported,
            f"it says that this is raftlog's own log, and the record at offset {imported} is"
            " another system's",
        )
    levels: dict[str, int] = {}
    for one in ranges:
        levels |= one.levels
    yield from _levels(manifest, levels)


def _levels(manifest: Manifest, levels: dict[str, int]) -> Iterator[Fault]:
    """Those at the end. What was set below the beginning of an export only the manifest knows."""
    last = manifest.end_offset - 1
    said = {METADATA_VERSION: manifest.metadata_version or 0}
    if manifest.features is not None:
        said |= dict.fromkeys(levels, 0) | manifest.features
        if manifest.features.get(METADATA_VERSION, 0) != (manifest.metadata_version or 0):
            yield _fault(last, "its metadata_version is another one than among its features")
    whole = not manifest.history_begin or manifest.state_from is not None
    for name, level in sorted(said.items()):
        if name not in levels and not whole:
            continue
        if level != levels.get(name, 0):
            yield _fault(
                last,
                f"it says level {level} of {name} at the end, and the log {levels.get(name, 0)}",
            )


def _fault(offset: int, why: str) -> Fault:
    return Fault(offset, offset, CHECK, MANIFEST_NAME, f"{MANIFEST_NAME} is not of this log: {why}")


def silent_columns(checked: Iterable[Checked]) -> list[str]:
    """Warnings about Parquet files that lack columns of which the log says something."""
    return [
        f"{file} lacks the column{'s' if columns[1:] else ''} {', '.join(columns)}, of which the"
        f" log says something from offset {min(silent.values())} on: an older raftlog wrote it, or"
        " somebody took that away. The audit, SQL and all that reads columns miss it: export again"
        " into an empty directory."
        for one in checked
        for file, silent in sorted(one.said.silent.items())
        for columns in (sorted(silent),)
    ]
