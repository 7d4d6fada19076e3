"""The manifest: what an export holds.

It is written last, so a file that it does not name does not count.

JSON, for people and for programs without raftlog. ``checksum`` is the SHA-256 of the document
without that field, keys sorted and no spaces. All offsets are inclusive except ``high_watermark``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

import msgspec

from raftlog.segments import files
from raftlog.segments.errors import (
    CorruptExportError,
    ExportError,
    NoExportError,
    UnsupportedExportError,
)
from raftlog.segments.manifest_model import (
    BUCKETS,
    BY_GROUP,
    CHECKPOINTS,
    ED25519,
    FORMAT_VERSION,
    KAFKA,
    KINDS,
    MANIFEST_NAME,
    ORIGINS,
    RAW,
    RECORDS,
    Bucket,
    Bucketing,
    Checkpoint,
    Manifest,
    Retired,
    Segment,
    Signature,
    StateHash,
)
from raftlog.segments.manifest_rules import check_fields, check_ranges
from raftlog.segments.place import LocalPlace, Place, open_place

__all__ = [
    "BUCKETS",
    "BY_GROUP",
    "CHECKPOINTS",
    "ED25519",
    "FORMAT_VERSION",
    "KAFKA",
    "KINDS",
    "MANIFEST_NAME",
    "MAX_BYTES",
    "ORIGINS",
    "RAW",
    "RECORDS",
    "Bucket",
    "Bucketing",
    "Checkpoint",
    "Manifest",
    "ManifestSigner",
    "Retired",
    "Segment",
    "Signature",
    "StateHash",
    "encode",
    "read_manifest",
    "read_signed",
]

MAX_BYTES = 512 << 20
"""Of a manifest: more than any that names a million files."""


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


class ManifestSigner(Protocol):
    """Signs manifests."""

    @property
    def public_key(self) -> str:
        """64 hex digits."""

    def sign(self, message: bytes) -> Signature:
        """The signature of a manifest's ``message``."""


def _message(document: dict[str, Any]) -> bytes:
    """What is signed of a manifest."""
    signed = {k: v for k, v in document.items() if k not in ("checksum", "signature")}
    return msgspec.json.encode(signed, order="sorted")


def encode(manifest: Manifest, signer: ManifestSigner | None = None) -> bytes:
    """The bytes of a manifest's file; without a signer its signature stays what it is."""
    document = msgspec.to_builtins(manifest)
    if signer is not None:
        document["signature"] = msgspec.to_builtins(signer.sign(_message(document)))
    document["checksum"] = _checksum(document)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def read_manifest(target: Path | str | Place) -> Manifest:
    """Read and check the manifest of the export at a path or a URI.

    Raises ExportError or one of its kinds; reads no segment.
    """
    return read_signed(target)[0]


def read_signed(target: Path | str | Place) -> tuple[Manifest, bytes]:
    """As ``read_manifest``, with what its signature is of: fields of later versions included."""
    place = open_place(target)
    path = f"{place}/{MANIFEST_NAME}"
    try:
        with files.named_errors("read", path), place.open(MANIFEST_NAME) as file:
            if (size := place.size(MANIFEST_NAME)) > MAX_BYTES:
                raise CorruptExportError(
                    f"{path} is corrupt: it has {size} bytes, and no manifest has more than"
                    f" {MAX_BYTES}",
                    file=MANIFEST_NAME,
                )
            data = file.read()
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            gone = isinstance(place, LocalPlace) and not place.directory.exists()
            why = "it does not exist" if gone else f"it has no {MANIFEST_NAME}"
            raise NoExportError(f"{place} is no export: {why}") from error
        raise
    try:
        manifest, message = _decode(data, path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptExportError(f"{path} is corrupt: {error}", file=MANIFEST_NAME) from error
    check_ranges(manifest, path)
    return manifest, message


def _decode(data: bytes, path: str) -> tuple[Manifest, bytes]:
    document = msgspec.json.decode(data, type=dict[str, Any])
    version = document.get("format_version")
    # Before the checksum, whose rule a later format may change.
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UnsupportedExportError(
            f"{path} has format version {version}, and this build reads up to {FORMAT_VERSION}: use"
            " a newer raftlog"
        )
    expected = document.pop("checksum", None)
    actual = _checksum(document)
    if expected != actual:
        raise CorruptExportError(
            f"{path} is corrupt: its checksum is {actual}, and it says {expected}",
            file=MANIFEST_NAME,
        )
    manifest = msgspec.convert(document, Manifest)
    check_fields(manifest, path)
    return manifest, _message(document)
