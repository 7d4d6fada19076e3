"""The power-loss model: recorder, disk model and examination."""

import subprocess
import sys
from pathlib import Path
from random import Random

import examination
import pytest
import tracing
from disk_model import (
    ROOT,
    CrashState,
    Created,
    Disk,
    Marked,
    Recording,
    Renamed,
    Resized,
    Synced,
    Unlinked,
    Written,
    crash_states,
)
from examination import Depth, Examined, Starter, examine
from promises import ValuePromises
from recorder import record
from tracing import TracingError


def recorded(scratch: Path, function: str) -> Recording:
    root = scratch / f"toy-{function}"
    root.mkdir()
    return record(root, scratch / "recording", "toy_programs", function)


def examined(scratch: Path, starter: Starter, function: str) -> Examined:
    return examine(
        function, recorded(scratch, function), "value", ValuePromises(), starter, Depth(samples=3)
    )


# --- the recorder -------------------------------------------------------------------------------


def test_each_kind_of_call_is_recorded_in_order_from_all_threads(scratch: Path) -> None:
    root = scratch / "toy"
    root.mkdir()
    (root / "there").write_bytes(b"old")
    recording = record(root, scratch / "recording", "toy_programs", "everything")
    assert (recording.files, recording.numbers) == ({"there": b"old"}, {"there": 1})
    assert recording.events == (
        Created(ROOT, "d", 2, is_directory=True),
        Created(2, "a", 3, is_directory=False),
        Written(3, 0, b"abcdef"),
        Written(3, 1, b"X"),
        Written(3, 6, b"gh"),
        Resized(3, 7),
        Synced(3),
        Written(3, 7, b"end"),
        Renamed(2, "a", 2, "b", 3),
        recording.events[9],
        Unlinked(2, "b"),
        Synced(2),
        Unlinked(ROOT, "d"),
        Created(ROOT, "child", 4, is_directory=False),
        Written(4, 0, b"of a child"),
        Resized(1, 0),
        Marked('{"what": "done", "number": 1}'),
    )
    state = everything_of(recording)
    assert state.files == {"c": b"aXcdefgend", "child": b"of a child", "there": b""}
    assert {name: (root / name).read_bytes() for name in state.files} == state.files, (
        "the model has what the disk has"
    )


def everything_of(recording: Recording) -> CrashState:
    disk = Disk(recording)
    for event in recording.events:
        disk.apply(event)
    return next(state for state in crash_states(disk, Random(1), samples=0) if state.name == "all")


@pytest.mark.parametrize("program", ["append", "install"])
def test_model_of_a_rocksdb_run_equals_the_disk(scratch: Path, program: str) -> None:
    root = scratch / f"whole-{program}"
    root.mkdir()
    state = everything_of(record(root, scratch / "recording", "node_programs", program))
    on_disk = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    unread = ("LOG", "LOCK", "lock")
    assert state.files == {
        name: data for name, data in on_disk.items() if not Path(name).name.startswith(unread)
    }
    assert len(state.files) > 8


def test_recorder_refuses_a_shared_writable_mapping(scratch: Path) -> None:
    with pytest.raises(
        TracingError, match="a shared writable mapping to a file below the root is not modelled"
    ):
        recorded(scratch, "maps")


def test_failing_program_is_not_examined(scratch: Path) -> None:
    with pytest.raises(TracingError, match="no_such_program"):
        recorded(scratch, "no_such_program")


def test_forbidden_ptrace_is_an_error_and_not_a_pass() -> None:
    # As a child whose request was refused: it ends instead of stopping.
    process = subprocess.Popen([sys.executable, "-c", ""])
    with pytest.raises(TracingError, match="nothing can be said of power loss"):
        tracing.begin(process.pid)
    process.returncode = 0


# --- the model ----------------------------------------------------------------------------------


def states_after(
    *events: object, files: dict[str, bytes] | None = None, samples: int = 200
) -> list[dict[str, bytes]]:
    """Return the possible states of a root with these files; 1 is the number of the first."""
    files = files or {}
    numbers = {name: number for number, name in enumerate(sorted(files), 1)}
    disk = Disk(Recording(files, (), numbers, (), 0))
    for event in events:
        disk.apply(event)  # type: ignore[arg-type]
    return [state.files for state in crash_states(disk, Random(1), samples=samples)]


def test_new_file_may_be_lost_or_empty_until_file_and_directory_are_synced() -> None:
    made = (Created(ROOT, "a", 1, is_directory=False), Written(1, 0, b"x" * 1500))
    contents = {state.get("a") for state in states_after(*made)}
    assert {
        None,
        b"",
        b"x" * 512,
        b"x" * 1024,
        b"x" * 1500,
        bytes(1500),
        b"x" * 512 + bytes(988),
    } <= contents
    assert {state.get("a") for state in states_after(*made, Synced(1))} == {None, b"x" * 1500}
    assert None not in {state.get("a") for state in states_after(*made, Synced(ROOT))}
    assert {state.get("a") for state in states_after(*made, Synced(1), Synced(ROOT))} == {
        b"x" * 1500
    }


def test_names_survive_in_any_order_except_in_a_rocksdb_directory() -> None:
    for name, expected in (
        ("ours", {(), ("a",), ("b",), ("a", "b")}),
        ("log", {(), ("a",), ("a", "b")}),
    ):
        made = (
            Created(ROOT, name, 1, is_directory=True), Synced(ROOT),
            Created(1, "a", 2, is_directory=False), Created(1, "b", 3, is_directory=False),
        )  # fmt: skip
        drawn = {
            tuple(sorted(Path(path).name for path in state)) for state in states_after(*made)[-200:]
        }
        assert drawn == expected


def test_scattered_states_have_any_subset_of_pages() -> None:
    disk = Disk(Recording({"a": b""}, (), {"a": 1}, (), 0))
    disk.apply(Written(1, 0, b"1" * 4096 + b"2" * 4096))
    states = [
        state for state in crash_states(disk, Random(1), samples=0, scattered=50) if state.scattered
    ]
    assert {state.files["a"][::4096] for state in states} == {b"\0\0", b"1\0", b"\0" + b"2", b"12"}


# --- what is noticed ----------------------------------------------------------------------------


def test_careful_program_passes(scratch: Path, starter: Starter) -> None:
    found = examined(scratch, starter, "careful")
    assert not found.broken
    assert found.moments > 10
    assert found.starts > 5


def test_crash_on_start_is_reported_and_the_next_start_works(starter: Starter) -> None:
    whole = CrashState("whole", {"value": b"1" * 2000}, ())
    assert "dies" in starter.start("dies", whole)["error"]
    assert starter.start("value", whole) == {"value": 1}


@pytest.mark.parametrize("start", ["spins", "waits"])
def test_hanging_start_is_reported_and_a_slow_start_is_not(
    starter: Starter, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CrashState("whole", {"value": b"1" * 2000}, ())
    assert starter.start("value", whole) == {"value": 1}
    monkeypatch.setattr(examination, "START_LIMIT_S", 0.4)
    assert "hangs" in starter.start(start, whole)["error"]
    monkeypatch.undo()
    assert starter.start("value", whole) == {"value": 1}
    monkeypatch.setattr(examination, "START_LIMIT_S", 0.4)
    assert starter.start("takes_long", whole) == {"value": 1}
