"""The profile by stage."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.profile import stages, stopwatch
from benchmarks.profile.attribution import (
    DISK_THREADS,
    GRPC_THREADS,
    LOOP_REST,
    attribute,
    thread_group,
)
from benchmarks.profile.stopwatch import Cost, Stopwatch

MS = 1_000_000


class Clocks:
    """Clocks of the thread and of the wall that no other process slows down."""

    def __init__(self) -> None:
        self.cpu_ns = self.wall_ns = 0

    def burn(self, milliseconds: int) -> None:
        self.cpu_ns += milliseconds * MS
        self.wait(milliseconds)

    def wait(self, milliseconds: int) -> None:
        self.wall_ns += milliseconds * MS


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(stopwatch, "thread_time_ns", lambda: clocks.cpu_ns)
    monkeypatch.setattr(stopwatch, "perf_counter_ns", lambda: clocks.wall_ns)
    return clocks


@pytest.mark.parametrize("table", [stages.NODE, stages.CLIENT], ids=["node", "client"])
def test_every_function_of_a_stage_exists(table: stages.Stages) -> None:
    assert stages.missing(table) == []
    assert [name for name, _, _ in stages.functions(table)]


def test_missing_function_is_reported() -> None:
    gone = "controller.decider:Decider.gone"
    assert stages.missing({"decide": (gone, "controller.decider:Decider.decide")}) == [gone]
    assert stages.find("no.such.module:Class.method") is None


def test_self_time_is_charged_to_the_innermost_stage(clocks: Clocks) -> None:
    watch = Stopwatch(("outer", "inner"))
    inner = watch.wrap(lambda: clocks.burn(30), "inner")

    def work() -> None:
        clocks.burn(10)
        inner()
        clocks.burn(10)

    watch.wrap(work, "outer")()
    assert watch.raw_ns() == pytest.approx({"outer": 20 * MS, "inner": 30 * MS})
    assert watch.calls() == {"outer": 1, "inner": 1}


def test_waiting_stage_costs_no_cpu_and_does_not_distort_its_caller(clocks: Clocks) -> None:
    watch = Stopwatch(("round", "disk"), waiting=["disk"])
    disk = watch.wrap(lambda: clocks.wait(100), "disk")

    def work() -> None:
        clocks.burn(20)
        disk()

    watch.wrap(work, "round")()
    assert watch.raw_ns() == pytest.approx({"round": 20 * MS, "disk": 0})


def test_exception_ends_the_stage(clocks: Clocks) -> None:
    watch = Stopwatch(("a", "b"))

    def fail() -> None:
        raise ValueError("x")

    inner = watch.wrap(fail, "b")
    with pytest.raises(ValueError, match="x"):
        watch.wrap(inner, "a")()
    watch.wrap(lambda: clocks.burn(10), "a")()
    assert watch.raw_ns() == pytest.approx({"a": 10 * MS, "b": 0})


def test_other_threads_and_nested_calls_are_not_counted() -> None:
    watch = Stopwatch(("a",))
    inner: Callable[[], None] = watch.wrap(lambda: None, "a")
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    watch.wrap(inner, "a")()
    assert watch.calls() == {"a": 1}


def test_wrapper_cost_is_charged_where_it_arises() -> None:
    watch = Stopwatch(("a", "b"))
    inner = watch.wrap(lambda: None, "b")

    def work() -> None:
        for _ in range(1000):
            inner()

    watch.wrap(work, "a")()
    overhead, total = watch.overhead_ns(Cost(1, 2), Cost(1000, 100))
    assert overhead == {"a": 1 + 1000 * 100, "b": 1000 * 1000}
    assert total == sum(overhead.values()) + 2


def test_stopped_stopwatch_counts_nothing(clocks: Clocks) -> None:
    watch = Stopwatch(("a",))
    watch.on = False
    watch.wrap(lambda: clocks.burn(5), "a")()
    assert watch.raw_ns() == {"a": 0}
    assert watch.calls() == {"a": 0}


def thread(cpu: float, user: int = 0, system: int = 0) -> dict:
    return {"cpu": cpu, "user_ticks": user, "system_ticks": system}


def recorded() -> dict:
    return {
        "on": {
            "wall": 100 * MS,
            "threads": {
                "loop": thread(60 * MS),
                "Thread-1 (_poll_wrapper)": thread(10 * MS),
                "raftlog-disk": thread(4 * MS),
                "rocksdb:low": thread(1 * MS),
            },
        },
        "off": {
            "wall": 100 * MS,
            "threads": {"loop": thread(50 * MS, 60, 20), "raftlog-disk": thread(13 * MS, 6, 14)},
        },
        "stages": {"decide": 20 * MS, "disk": 5 * MS},
        "overhead": {"decide": 3 * MS, "disk": 1 * MS},
        "overhead_in_all": 6 * MS,
    }


def test_rows_add_up_to_the_cpu_of_the_process() -> None:
    profile = attribute(recorded(), 1000, 1000)
    assert (profile.unmeasured, profile.factor, profile.overhead) == (63, 2, 12)
    assert profile.rows == {
        "decide": 14,
        "disk": 3,
        LOOP_REST: 60 - 17 - 12,
        GRPC_THREADS: 10,
        DISK_THREADS: 5,
    }
    assert profile.total == sum(profile.rows.values()) == 63
    assert profile.idle == 50
    assert profile.kernel == pytest.approx(63 * 34 / 100)
    assert 0 < profile.kernel_error < 5


@pytest.mark.parametrize(("off_writes", "factor"), [(500, 1.0), (100_000, 4.0)])
def test_noise_does_not_inflate_the_wrapper_cost(off_writes: int, factor: float) -> None:
    profile = attribute(recorded(), 1000, off_writes)
    assert profile.factor == factor
    assert profile.total == pytest.approx(75 - 6 * factor)


def test_thread_belongs_to_the_loop_the_disk_or_grpc() -> None:
    names = ("loop", "raftlog-disk", "rocksdb:high", "grpc_global_tim", "whatever")
    assert [thread_group(name) for name in names] == [
        "loop",
        DISK_THREADS,
        DISK_THREADS,
        GRPC_THREADS,
        GRPC_THREADS,
    ]
