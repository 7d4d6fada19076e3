"""Tests for programs that use raftlog: a cluster of real processes, and a simulated one.

Guide: docs/testing.md. The names are imported on first use: pytest imports this package with its
plug-in, whether or not a test needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # As typing has it.

if TYPE_CHECKING:
    from typing import Any

    from raftlog.testing.fault_rates import DEFAULT_FAULTS, FAULTS
    from raftlog.testing.real_cluster import RealCluster
    from raftlog.testing.simulated_cluster import Program, SimulatedCluster
    from raftlog.testing.simulated_run import Run, SeedFailedError, simulated, sweep

_FROM = {
    "raftlog.testing.fault_rates": ("DEFAULT_FAULTS", "FAULTS"),
    "raftlog.testing.real_cluster": ("RealCluster",),
    "raftlog.testing.simulated_cluster": ("Program", "SimulatedCluster"),
    "raftlog.testing.simulated_run": ("Run", "SeedFailedError", "simulated", "sweep"),
}
_HOME = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "DEFAULT_FAULTS",
    "FAULTS",
    "Program",
    "RealCluster",
    "Run",
    "SeedFailedError",
    "SimulatedCluster",
    "simulated",
    "sweep",
]


if not TYPE_CHECKING:  # Type checkers see the names above, and no others.

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'raftlog.testing' has no attribute {name!r}")
        import importlib

        from raftlog.testing.needed import needs_testing_extra

        with needs_testing_extra():
            value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
