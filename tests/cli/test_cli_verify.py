"""``raftlog verify``: nodes, signatures and checkpoints vouch for an export."""

import os
import shutil
from pathlib import Path

import pytest
from command_lines import Raftlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from raftlog import batch
from raftlog.segments.files import open_place
from raftlog.segments.manifest import MANIFEST_NAME, encode, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.writer import ExportWriter

PEM = Ed25519PrivateKey.generate().private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


def written(keys: Path, name: str) -> tuple[Path, Path]:
    """Write a key pair in PEM."""
    key = Ed25519PrivateKey.generate()
    private, public = keys / f"{name}.pem", keys / f"{name}.pub.pem"
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def forged(source: Path, target: Path) -> Path:
    """A consistent export with one forged principal; the nodes' reports are unchanged."""
    manifest = read_manifest(source)
    batches = [
        data for one in manifest.of_kind("raw") for data in read_segment(open_place(source), one)
    ]
    headers = [next(batch.headers(data)) for data in batches]
    at = next(i for i, one in enumerate(headers) if one.principal)
    header, data = headers[at], batches[at]
    batches[at] = batch.encode(
        batch.records(data, header),
        base_offset=header.base_offset,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        principal="mallory",
    )
    with ExportWriter(target, manifest.cluster_id, manifest.generation) as writer:
        writer.append_chunk(b"".join(batches))
        writer.commit(writer.next_offset)
    return target


def test_nodes_vouch_only_for_records_that_they_have(
    raftlog: Raftlog, tmp_path: Path, at: Raftlog
) -> None:
    exported = tmp_path / "exported"
    topic = ("topics", "create", "verified", "-r", 1, "--acks", "visible", *at)
    raftlog.succeed(*topic)
    at.succeed("export", exported)
    # The log goes on: a node's word of its end covers the export, too.
    at.succeed("topics delete verified")
    ran = at.succeed("verify --json", exported)
    last = read_manifest(exported).end_offset - 1
    assert (ran.json["passed"], ran.json["last_offset"]) == (True, last)
    said = ran.json["vouching"]
    assert {(one["who"], one["first_offset"], one["last_offset"]) for one in said["witnesses"]
            if one["how"] == "asked"} == {("node 1", 0, last)}  # fmt: skip
    assert said["warnings"] == []
    shown = at("verify", exported).out
    assert f"Log hash at offset {last}: {said['log_hash']}" in shown
    assert "answered just now" in shown

    fake = forged(exported, tmp_path / "fake")
    offline = raftlog("verify", fake)
    assert f"WARNING: No node vouches for offsets 0 to {last}." in offline.err, offline
    online = at("verify --json", fake).refused(3)
    assert any("but node 1 has" in one["message"] for one in online.json["faults"])


def test_export_of_another_cluster_is_not_vouched_for(tmp_path: Path, at: Raftlog) -> None:
    with ExportWriter(tmp_path / "other", "another-cluster", 0) as writer:
        writer.commit(0)
    at("verify", tmp_path / "other").refused(3, "belongs to cluster another-cluster generation 0")


def test_signature_is_verified(raftlog: Raftlog, tmp_path: Path, at: Raftlog) -> None:
    private, public = written(tmp_path, "auditor")
    _, other = written(tmp_path, "other")
    exported = tmp_path / "exported"
    at.succeed("export", exported, "--sign", private)
    ran = raftlog("verify", exported, "--public-key", public).showed("signed the manifest")
    assert "WARNING" not in ran.err
    wrong = raftlog("verify", exported, "--public-key", other).refused(3)
    assert "SIGNATURE: the manifest claims to be signed with the key" in wrong.out

    at("export", exported).refused(1, "pass the private key with --sign")
    at.succeed("export", exported, "--sign", private, "--compact")
    raftlog.succeed("verify", exported, "--public-key", public)

    unsigned = tmp_path / "unsigned"
    shutil.copytree(exported, unsigned)
    manifest = read_manifest(unsigned)
    (unsigned / MANIFEST_NAME).write_bytes(encode(replace(manifest, signature=None)))
    ran = raftlog("verify", unsigned, "--public-key", public).refused(3)
    assert "SIGNATURE: the manifest is not signed" in ran.out


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"no key", 0o600, "contains no unencrypted PEM private key"),
        (b"no key", 0o644, "contains no unencrypted PEM private key"),
        (PEM, 0o644, "chmod 600"),
        (None, 0, "cannot read"),
    ],
)
def test_key_that_cannot_sign_is_refused(
    raftlog: Raftlog, tmp_path: Path, content: bytes | None, mode: int, message: str
) -> None:
    key = tmp_path / "key.pem"
    if content is not None:
        key.write_bytes(content)
        os.chmod(key, mode)
    raftlog("export", tmp_path / "e", "--sign", key, "--directory", tmp_path).refused(2, message)


def test_image_is_compared_with_the_nodes_reports(
    raftlog: Raftlog, tmp_path: Path, at: Raftlog
) -> None:
    exported = tmp_path / "exported"
    at.succeed("export", exported)
    manifest = read_manifest(exported)
    raftlog("log image --export", exported).showed("node 1")
    wrong = tuple(replace(one, state_hash="0" * 32) for one in manifest.state_hashes)
    (exported / MANIFEST_NAME).write_bytes(encode(replace(manifest, state_hashes=wrong)))
    raftlog("log image --export", exported).refused(3, f"node 1 had {'0' * 32}")


def test_damaged_checkpoint_is_detected(raftlog: Raftlog, tmp_path: Path, at: Raftlog) -> None:
    exported = tmp_path / "exported"
    for value in range(1000, 1012):
        change = ("configs", "alter", "broker", "", "--set", f"log.retention.ms={value}")
        at.succeed(*change)
    ran = at.succeed("export --json", exported, "--checkpoints", 1)
    known = read_manifest(exported).checkpoints
    assert ran.json["checkpoints"] == len(known) > 0
    assert ran.json["not_folded"] == ""
    ran = raftlog("verify --json", exported)
    assert (ran.code, ran.json["checkpoints"]) == (0, len(known))
    (exported / known[0].file).unlink()
    ran = raftlog("verify", exported).refused(3)
    assert f"CHECKPOINT: {known[0].describe()} is corrupt: it is missing" in ran.out
    at.succeed("export", tmp_path / "none", "--checkpoints", 0)
    assert read_manifest(tmp_path / "none").checkpoints == ()
