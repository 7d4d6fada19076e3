"""Simulates a power failure at the moments of a recording, starts on each remaining state, and
compares the findings with the promises made before.
"""

import copy
import json
import os
import selectors
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from disk_model import (
    CrashState,
    Disk,
    Event,
    Marked,
    Recording,
    Renamed,
    Synced,
    Written,
    crash_states,
)
from promises import Found, Promises, parse_mark

START_LIMIT_S = 60.0
"""A start hangs that has used so much processor time, or none in so long and waits for none: on a
busy machine one may take long without being at fault.
"""
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Depth:
    """The thoroughness of an examination."""

    samples: int = 1
    """Drawn states for each moment, beside the corners."""
    scattered: int = 0
    """Number of states of the harder kind for each moment."""
    each_event: bool = False
    """Else before and after each sync, and after each name and word; what lies between is drawn at
    the next sync.
    """
    keep: int = 0
    """Number of states from which a further run starts."""
    broken_max: int = 1000
    """Enough is enough."""


GATE = Depth()


@dataclass(slots=True)
class Examined:
    program: str
    moments: int = 0
    states: int = 0
    starts: int = 0
    """Different states among them: each is started on once."""
    scattered: int = 0
    scattered_refused: int = 0
    """A loud refusal, which harder states may cause."""
    broken: list[str] = field(default_factory=list)
    kept: list[tuple[CrashState, Promises]] = field(default_factory=list)
    """Some of the states, each with the promises made by then."""

    def __str__(self) -> str:
        harder = (
            f", {self.scattered_refused} of {self.scattered} scattered ones refused"
            if self.scattered
            else ""
        )
        return (
            f"{self.program}: {self.moments} moments, {self.states} states, {self.starts}"
            f" different{harder}"
        )


class Starter:
    """The process that starts on states, replaced if it hangs or dies."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None

    def start(self, kind: str, state: CrashState) -> Found:
        """Return the findings of ``starts.kind``."""
        root = self._scratch / "state"
        shutil.rmtree(root, ignore_errors=True)
        state.put(root)
        process = self._process = self._process or self._begun()
        assert process.stdin is not None
        process.stdin.write(f"{kind} {root}\n")
        process.stdin.flush()
        line = _line_of(process)
        if line:
            found: Found = json.loads(line)
            return found
        self.close()
        return {"error": f"the start hangs or dies ({process.returncode})"}

    @staticmethod
    def _begun() -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("starts.py"))
        process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert _line_of(process) == "ready\n", "the process that starts on states can't begin"
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _matters(event: Event, following: Event | None) -> bool:
    return (
        following is None
        or isinstance(following, Synced)
        or isinstance(event, Synced | Renamed | Marked)
    )


def _line_of(process: subprocess.Popen[str]) -> str:
    """Return a line; empty if none arrives."""
    assert process.stdout is not None
    begun_s = used_s = _processor_s(process.pid)[0]
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(START_LIMIT_S):
            before_s, (used_s, waits) = used_s, _processor_s(process.pid)
            if (waits and used_s == before_s) or used_s - begun_s > START_LIMIT_S:
                return ""
        return process.stdout.readline()


def _processor_s(pid: int) -> tuple[float, bool]:
    """Return the processor time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _CLOCK_TICKS_PER_S, fields[0] not in ("R", "D")


def examine(
    program: str,
    recording: Recording,
    start: str,
    promises: Promises,
    starter: Starter,
    depth: Depth = GATE,
) -> Examined:
    """Examine a recording from where the program reports that it begins. The same recording and
    depth give the same states.
    """
    examined, disk = Examined(program), Disk(recording)
    found: dict[bytes, Found] = {}
    rng, keeping, begun = Random(program), Random(program), False
    for at, event in enumerate(recording.events):
        disk.apply(event)
        if isinstance(event, Marked):
            what, details = parse_mark(event.text)
            promises.said(what, details)
            begun = begun or what == "begins"
        following = recording.events[at + 1] if at + 1 < len(recording.events) else None
        if not begun:
            continue
        if not depth.each_event and not _matters(event, following):
            continue
        examined.moments += 1
        for state in crash_states(disk, rng, samples=depth.samples, scattered=depth.scattered):
            examined.states += 1
            digest = state.digest
            if digest not in found:
                found[digest] = starter.start(start, state)
                # Each of those seen so far is as likely to be kept as any other.
                place = keeping.randrange(len(found))
                if place < depth.keep and not state.scattered:
                    examined.kept[place : place + 1] = [(state, copy.deepcopy(promises))]
            broken = promises.broken_by(found[digest])
            if state.scattered:
                examined.scattered += 1
                if found[digest].get("kind") == "CorruptLogError":
                    examined.scattered_refused += 1
                    continue
            if broken is not None:
                examined.broken.append(
                    f"after event {at} ({brief(event)}), with {state.name}: {broken}"
                )
                if len(examined.broken) >= depth.broken_max:
                    examined.starts = len(found)
                    return examined
    examined.starts = len(found)
    return examined


def brief(event: Event) -> str:
    if isinstance(event, Written):
        return f"Written(file={event.file}, offset={event.offset}, {len(event.data)} bytes)"
    text = str(event)
    return text if len(text) < 200 else f"{text[:200]}…"
