"""``raftlog import kafka``."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_writer as kafka
import pytest
from command_runs import run_text
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from json_schemas import validator

from raftlog.cli.exits import Exit, exit_code
from raftlog.errors import RaftlogError
from replay.kafka.copies import find_copies

HERE = Path(__file__).parent
NOOP = kafka.metadata("NoOpRecord")
COMMAND = [str(Path(sys.executable).with_name("raftlog")), "import", "kafka"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_text([*COMMAND, *map(str, arguments)], timeout=60)


def test_real_cluster_is_imported_with_a_summary(tmp_path: Path) -> None:
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", tmp_path / "kafka")
    done = run(tmp_path / "kafka", "-o", tmp_path / "exported")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "cluster 4L6g3nShT-eMCtK--X86sw, from node 101, node 102, node 103",
        "imported: 379 new records; the export has offsets 0 to 378",
        "the state equals 7 snapshots from Kafka, at offsets 158, 246, 294, 307, 309",
        "a majority of the copies agrees on all of it",
        f"next: raftlog replay summary {tmp_path / 'exported'}",
    ]
    verify = [COMMAND[0], "verify", str(tmp_path / "exported")]
    # Nodes of raftlog that happen to be named know nothing of this log.
    named = os.environ | {"RAFTLOG_BOOTSTRAP_CONTROLLER": "127.0.0.1:1"}
    checked = run_text(verify, timeout=60, env=named)
    assert checked.returncode == 0, checked.stderr
    assert (
        "No node vouches for the bytes, because nodes of kafka have no log hash: sign the export"
        in (checked.stdout + checked.stderr)
    )
    document = json.loads(run(tmp_path / "kafka", "-o", tmp_path / "exported", "--json").stdout)
    validator("import kafka")(document)
    assert (document["sound"], document["new_records"]) == (True, 0)


def test_copies_that_end_before_the_export_are_reported(tmp_path: Path) -> None:
    first = kafka.batch(0, [kafka.leader_change()])
    whole = kafka.write_node(tmp_path / "whole", first + kafka.batch(1, [NOOP]))
    part = kafka.write_node(tmp_path / "part", first)
    assert run(whole, "-o", tmp_path / "exported").returncode == 0
    lines = run(part, "-o", tmp_path / "exported").stdout.splitlines()
    assert lines[1] == "imported: 0 new records; the export has offsets 0 to 1"
    assert lines[2].startswith("these copies end at offset 0: later records were imported before")


def test_unknown_cluster_is_reported_with_the_remedy(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [kafka.leader_change()]))
    (tmp_path / "node" / "meta.properties").unlink()
    remedy = "(copy meta.properties, too, or give --cluster-id)"
    first = run(node, "-o", tmp_path / "exported").stdout.splitlines()[0]
    assert first.startswith(f"cluster unknown {remedy}, from ")
    named = run(node, "-o", tmp_path / "named", "--cluster-id", "mine").stdout
    assert named.startswith("cluster mine, from ")


def test_damage_exits_with_3_and_the_rest_is_imported(tmp_path: Path) -> None:
    log = kafka.batch(0, [kafka.leader_change()]) + kafka.batch(1, [NOOP])
    node = kafka.write_node(tmp_path / "node", log + kafka.batch(2, [NOOP])[:-1] + b"x")
    done = run(node, "-o", tmp_path / "exported")
    assert done.returncode == 3
    assert "imported: 2 new records; the export has offsets 0 to 1" in done.stdout
    assert "the batch at offset 2 does not match its CRC32C" in done.stderr


def test_contradictory_log_exits_with_3(tmp_path: Path) -> None:
    log = kafka.batch(0, [kafka.topic()]) + kafka.batch(1, [kafka.topic()])
    done = run(kafka.write_node(tmp_path / "node", log), "-o", tmp_path / "exported")
    assert done.returncode == 3
    assert "the log contradicts itself: topic 'orders' at offset 1 already exists" in done.stderr


def test_failing_disk_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is an unreadable file; only the first exits with 6."""
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP]))

    said = {errno.EIO: Exit.DISK, errno.EACCES: Exit.USAGE}
    for number, code in said.items():

        def fails(*_: Any, because: int = number, **__: Any) -> Any:
            raise OSError(because, os.strerror(because))

        monkeypatch.setattr(Path, "open", fails)
        with pytest.raises(RaftlogError, match="cannot read") as caught:
            find_copies([node])
        assert exit_code(caught.value) is code


def test_directory_without_a_log_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "-o", tmp_path / "exported")
    assert done.returncode == 2
    assert done.stderr == f"raftlog: there is no metadata log in {tmp_path}\n"


def test_import_can_be_signed(tmp_path: Path) -> None:
    """No raftlog node can vouch for it: only a signature can."""
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP]))
    key, public, target = tmp_path / "key.pem", tmp_path / "public.pem", tmp_path / "exported"
    made = Ed25519PrivateKey.generate()
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    public.write_bytes(
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    assert run(node, "-o", target, "--sign", key).returncode == 0

    def verify(*more: str | Path) -> subprocess.CompletedProcess[str]:
        return run_text([*COMMAND[:-2], "verify", str(target), *map(str, more)], timeout=60)

    assert "signed the manifest" in verify("--public-key", public).stdout
    refused = verify("--bootstrap-controller", "127.0.0.1:1")
    assert (refused.returncode, "cannot vouch for it" in refused.stderr) == (3, True)
    (node / "00000000000000000000.log").write_bytes(kafka.batch(0, [NOOP]) + kafka.batch(1, [NOOP]))
    without = run(node, "-o", target)
    assert (without.returncode, "signed" in without.stderr) == (1, True)
    assert run(node, "-o", target, "--sign", key).returncode == 0
    assert verify("--public-key", public).returncode == 0


def test_following_continues_until_stopped(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP]))
    command = [*COMMAND, str(node), "-o", str(tmp_path / "exported"), "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline()) == {"end_offset": 1}
        with (node / "00000000000000000000.log").open("ab") as log:
            log.write(kafka.batch(1, [NOOP]))
        began = time.monotonic()
        assert json.loads(process.stdout.readline()) == {"end_offset": 2}
        assert time.monotonic() - began < 30
        process.send_signal(signal.SIGTERM)
        assert json.loads(process.stdout.readline())["end_offset"] == 2
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node of a real cluster; its snapshots reach to offset 307, its log to 378."""
    kafka.unpack(Path(__file__).with_name("kafka-4.4.0.tar.gz"), tmp_path / "kept")
    return tmp_path / "kept/node101/__cluster_metadata-0"


def test_snapshots_without_a_log_give_the_state_of_the_last(node: Path, tmp_path: Path) -> None:
    (node / "00000000000000000000.log").unlink()
    done = run(node, "-o", tmp_path / "exported")
    assert done.returncode == 0
    assert "the export has only the state at offset 307, without history" in done.stdout


@pytest.mark.parametrize(("name", "found"), [("0", "the log is empty"), ("300", "ends at 299")])
def test_empty_log_before_a_snapshot_is_truncated(
    node: Path, tmp_path: Path, name: str, found: str
) -> None:
    """A failed copy. The file of a node that started from the snapshot is named by its end."""
    (node / "00000000000000000000.log").unlink()
    empty = node / f"{name:0>20}.log"
    empty.touch()
    done = run(node, "-o", tmp_path / "exported")
    assert done.returncode == 3
    assert f"{found.replace('at ', 'at offset ')}, but " in done.stderr
    empty.rename(node / "00000000000000000308.log")
    assert run(node, "-o", tmp_path / "begun").returncode == 0


def test_log_that_ends_before_a_snapshot_is_called_truncated(node: Path, tmp_path: Path) -> None:
    log = node / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:9000])
    done = run(node, "-o", tmp_path / "exported")
    assert done.returncode == 3
    assert f"{log}: at byte 8801: the file ends inside a batch" in done.stdout
    last = node / "00000000000000000308-0000000003.checkpoint"
    assert f"the log ends at offset 91, but {last} is the state at offset 307" in done.stderr


def test_topic_log_is_not_taken_for_the_metadata_log(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [b"an order"]))
    done = run(node, "-o", tmp_path / "exported")
    assert done.returncode == 3
    assert "imported: nothing. Is this a metadata log?" in done.stdout
    assert "at byte 0: the record at offset 0 is malformed" in done.stderr


def test_node_given_twice_counts_once(node: Path, tmp_path: Path) -> None:
    once = "a single copy does not show whether its last records were committed"
    assert once in run(node, node.parent, "-o", tmp_path / "exported").stdout


def add_another_log(node: Path) -> str:
    path = node / f"{379:020d}.log"
    path.write_bytes(kafka.batch(0, [NOOP]))
    return f"{path}: at byte 0: found a batch at offset 0, expected one at 379"


def damage_snapshot(node: Path) -> str:
    path = node / f"{308:020d}-{3:010d}.checkpoint"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    return f"damaged: {path}: at byte 269: "


def damage_begin(node: Path) -> str:
    path = node / f"{0:020d}.log"
    path.write_bytes(b"junk" * 100)
    return f"{path}: at byte 0: invalid batch size:"


@pytest.mark.parametrize("harm", [add_another_log, damage_snapshot, damage_begin])
def test_damaged_file_is_reported_with_the_position(
    node: Path, tmp_path: Path, harm: Callable[[Path], str]
) -> None:
    said = harm(node)
    done = run(node, "-o", tmp_path / "exported")
    assert (done.returncode, said in done.stderr) == (3, True), done.stderr
    assert ("the export has offsets 0 to 378" in done.stdout) == (harm is not damage_begin)
