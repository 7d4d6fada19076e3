"""The contracts in ``proto/``: documented, usable elsewhere, compatible with releases."""

import importlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from command_runs import run_text
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
RELEASED = ROOT / "tests" / "released_contracts.binpb.gz"
"""A FileDescriptorSet. CONTRIBUTING.md says when and how it is made anew."""
FILES = sorted(
    path.relative_to(ROOT / "proto").as_posix() for path in ROOT.rglob("proto/**/*.proto")
)
BROKER = "raftlog/wire/broker/v1/broker.proto"


def buf(root: Path, *arguments: str | Path) -> tuple[int, str]:
    """Return exit code and findings."""
    command = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert command is not None, "buf is not installed: scripts/setup brings it"
    done = run_text([command, *arguments], cwd=root, timeout=100)
    return done.returncode, done.stdout + done.stderr


def breaking(root: Path) -> tuple[int, str]:
    return buf(root, "breaking", "--against", RELEASED)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def change(root: Path, old: str, new: str) -> None:
    path = root / "proto" / BROKER
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def test_every_service_message_field_and_value_is_documented() -> None:
    assert buf(ROOT, "lint") == (0, "")


def test_protos_break_no_released_message() -> None:
    """If this fails, an older program would misread a newer one, or a log: add fields instead."""
    assert breaking(ROOT) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("  string rack = 4;\n}\n\n// A topic", "}\n\n// A topic", "rack"),
        ("int32 leader_id = 3;", "string leader_id = 3;", "changed type"),
        ("int32 leader_id = 3;", "int32 led_by = 3;", "changed name"),
        ("int32 leader_id = 3;", "int32 leader_id = 33;", "was deleted"),
        ("  LATEST = 1;", "  LATEST = 7;", "was deleted"),
    ],
    ids=["deleted", "reused for another type", "reused under another name", "moved", "enum"],
)
def test_breaking_change_is_detected(copy: Path, old: str, new: str, found: str) -> None:
    change(copy, old, new)
    code, said = breaking(copy)
    assert code != 0
    assert found in said


def test_field_may_be_added(copy: Path) -> None:
    change(copy, "  int32 leader_id = 3;", "  // New.\n  int32 new = 99;\n  int32 leader_id = 3;")
    assert breaking(copy) == (0, "")


def test_field_without_a_comment_is_detected(copy: Path) -> None:
    change(copy, "  int32 leader_id = 3;", "  int32 leader_id = 3;\n  int32 new = 99;")
    code, said = buf(copy, "lint")
    assert code != 0
    assert 'Field "new" should have a non-empty comment' in said


@pytest.mark.parametrize("name", FILES)
def test_each_file_declares_its_packages_for_other_languages(name: str) -> None:
    module: Any = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    options = module.DESCRIPTOR.GetOptions()
    package = module.DESCRIPTOR.package
    part = package.split(".")[2]
    assert options.go_package == f"raftlog/wire/{part}/v1;{part}v1"
    assert options.java_package == package
    assert options.java_multiple_files
    assert options.csharp_namespace == f"Raftlog.Wire.{part.capitalize()}.V1"
    assert re.fullmatch(r"[A-Z][a-z]+Proto", options.java_outer_classname)


@pytest.mark.parametrize("name", FILES)
def test_generated_descriptor_equals_the_one_by_protoc(name: str) -> None:
    """[With the names for JSON in it, an application that has compiled the contracts itself could
    not be imported beside raftlog: two files of one name in one pool must be the same bytes.]
    """
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    messages = [*file.message_type]
    for message in messages:
        messages += message.nested_type
    fields = [field for message in messages for field in message.field]
    assert fields
    assert not [field.name for field in fields if field.HasField("json_name")]
    assert not file.HasField("source_code_info")


def test_released_contracts_are_complete() -> None:
    """[An empty set, against which nothing can break.]"""
    code, said = buf(ROOT, "build", RELEASED, "-o", "-#format=json")
    assert code == 0
    for name in FILES:
        assert f'"{name}"' in said
