"""Fault names of simulated runs and their ranges."""

import math
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FaultRange:
    """A fault's strength: mean seconds between two, a probability, or (once) seconds."""

    kind: Literal["every", "probability", "once"]
    low: float
    high: float
    counts: tuple[str, ...] = ()
    """Names under which it is counted when it has really happened; empty: its own."""
    needs_brokers: bool = False
    needs_data: bool = False
    """Brokers that keep partitions."""

    def draw(self, rng: random.Random) -> float:
        """Return a strength, uniform on a logarithmic scale."""
        return float(f"{math.exp(rng.uniform(math.log(self.low), math.log(self.high))):.3g}")


def _every(low: float, high: float, *, needs_brokers: bool = False) -> FaultRange:
    return FaultRange("every", low, high, (), needs_brokers)


def _data(low: float, high: float) -> FaultRange:
    return FaultRange("every", low, high, (), True, True)


FAULTS: dict[str, FaultRange] = {
    # Nodes.
    "kill_controller": _every(1.0, 6.0),
    "kill_mid_write": _every(1.0, 6.0),
    "kill_between_steps": _every(0.5, 4.0),
    "kill_all_controllers": _every(4.0, 12.0),
    "pause": _every(1.0, 6.0),
    "long_pause": _every(8.0, 20.0),
    "loop_blocked": _every(0.5, 4.0),
    "clock_jump": _every(2.0, 8.0),
    "clocks_ahead": _every(4.0, 20.0),
    "resign": _every(1.0, 6.0),
    # Network.
    "partition": _every(1.0, 6.0),
    "one_way": _every(1.0, 6.0),
    "isolate": _every(1.0, 6.0),
    "split": _every(2.0, 8.0),
    "ring": _every(4.0, 12.0),
    "bridge": _every(4.0, 12.0),
    "flapping": _every(3.0, 10.0),
    "clog": _every(1.0, 6.0),
    "overtaken": _every(2.0, 8.0),
    "reset_links": _every(1.0, 6.0),
    "link_broken": FaultRange("probability", 0.0003, 0.03),
    "request_repeated": FaultRange("probability", 0.01, 0.5),
    "message_late": FaultRange("probability", 0.0005, 0.03),
    "snapshot_cut": _every(0.5, 3.0),
    "connect_refused": FaultRange("probability", 0.02, 0.3),
    # Disks.
    "disk_error": _every(1.0, 6.0),
    "disk_full": _every(2.0, 8.0),
    "disk_low": _every(2.0, 8.0),
    "disk_hang": _every(2.0, 8.0),
    "disk_slow": _every(2.0, 8.0),
    "bit_flip": _every(3.0, 12.0),
    "damaged_logs": _every(4.0, 15.0),
    # Operators.
    "change_voters": _every(1.0, 6.0),
    "lose_disk": _every(2.0, 8.0),
    "set_back_directory": _every(3.0, 10.0),
    "transfer": _every(1.0, 6.0),
    "raise_features": _every(1.0, 6.0),
    "lower_features": _every(1.0, 6.0),
    "change_build": _every(0.5, 3.0),
    "move_voter": _every(2.0, 8.0),
    "removed_campaigns": _every(3.0, 10.0),
    "unregister_broker": _every(2.0, 8.0, needs_brokers=True),
    "alter_hostnames": _every(1.0, 4.0, needs_brokers=True),
    # Brokers and clients.
    "kill_broker": _every(1.0, 6.0, needs_brokers=True),
    "twin_broker": _every(4.0, 12.0, needs_brokers=True),
    "heartbeats_lost": _every(2.0, 8.0, needs_brokers=True),
    "burst": _every(2.0, 8.0),
    "broker_behind": _every(1.0, 6.0, needs_brokers=True),
    "stranded": _every(2.0, 8.0, needs_brokers=True),
    "lose_broker_disk": _every(1.0, 4.0, needs_brokers=True),
    "newcomer": _every(2.0, 8.0, needs_brokers=True),
    "answers_late": _every(2.0, 8.0, needs_brokers=True),
    "stop_broker": _every(1.0, 6.0, needs_brokers=True),
    "roll_heartbeats": _every(2.0, 8.0, needs_brokers=True),
    "connection_dead": _every(1.0, 6.0),
    "conversation_cut": _every(2.0, 8.0),
    "broker_away": _every(3.0, 12.0, needs_brokers=True),
    "broker_refused": _every(2.0, 8.0, needs_brokers=True),
    # Once, at the end.
    "slow_fetch": FaultRange("once", 1.2, 1.8, needs_brokers=True),
    "thought_dead": FaultRange("once", 1.0, 2.0, needs_brokers=True),
    "whole_roll": FaultRange("once", 0.1, 0.3),
    "all_disks_low": FaultRange("once", 8.0, 12.0),
    "controllers_away": FaultRange("once", 0.1, 1.0, needs_brokers=True),
    # Brokers that keep partitions.
    "kill_all_brokers": _data(4.0, 12.0),
    "broker_pause": _data(2.0, 8.0),
    "brokers_cut": _data(1.0, 6.0),
    "broker_alone": _data(2.0, 8.0),
    "fetches_late": _data(1.0, 6.0),
    "isr_change_late": FaultRange("probability", 0.05, 0.5, needs_data=True),
    "broker_disk_error": _data(1.0, 6.0),
    "broker_disk_full": _data(3.0, 10.0),
    "broker_disk_hang": _data(2.0, 8.0),
    "broker_disk_slow": _data(2.0, 8.0),
    "broker_bit_flip": _data(4.0, 15.0),
    "replace_broker_disk": _data(2.0, 10.0),
    "broker_disk_low": _data(2.0, 8.0),
}

DATA_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.needs_data)
