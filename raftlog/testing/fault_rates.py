"""The faults of a simulated run: their names and default rates."""

from __future__ import annotations

from collections.abc import Mapping

FAULTS: Mapping[str, str] = {
    "kill_controller": "A controller is killed as if by kill -9, and restarted.",
    "kill_all_controllers": "All controllers die at once, and are restarted.",
    "kill_broker": "A broker is killed as if by kill -9, and restarted.",
    "stop_broker": "A broker shuts down, and is restarted.",
    "pause": "A node is paused for up to 3 s.",
    "long_pause": "A node is paused for 5 to 30 s.",
    "clock_jump": "The wall clock of a controller is set wrong by up to 5 hours, or corrected.",
    "resign": "The leading controller resigns.",
    "partition": "Two nodes cannot reach each other for up to 15 s.",
    "one_way": "One node cannot reach another, or any other, but they can reach it.",
    "isolate": "A controller, often the leader, cannot reach any other node.",
    "split": "The nodes are partitioned into two groups.",
    "flapping": "The connection between two nodes fails and recovers many times.",
    "clog": "Messages from one node to another arrive late.",
    "reset_links": "All connections of a node are reset.",
    "pause_program": "A program is paused for up to 30 s.",
    "cut_program": "A program cannot reach a broker, or any broker, for up to 15 s.",
    "kill_program": "A program is killed as if by kill -9, and restarted from its beginning.",
}
"""Name of a fault -> its effect."""

DEFAULT_FAULTS: Mapping[str, float] = {
    "kill_controller": 10.0,
    "kill_broker": 10.0,
    "pause": 10.0,
    "clock_jump": 15.0,
    "resign": 20.0,
    "partition": 10.0,
    "isolate": 20.0,
    "reset_links": 20.0,
    "pause_program": 6.0,
    "cut_program": 10.0,
}
"""Mean time between two faults of a kind, in virtual seconds."""


def checked(faults: Mapping[str, float]) -> dict[str, float]:
    """Return the faults of a run. Raises ValueError for an unknown name or an invalid time."""
    for name, mean_s in faults.items():
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}: use one of {', '.join(FAULTS)}")
        if not 0 < mean_s < float("inf"):
            raise ValueError(
                f"{name}={mean_s!r}: must be the mean time between two faults, in seconds"
            )
    return dict(faults)
