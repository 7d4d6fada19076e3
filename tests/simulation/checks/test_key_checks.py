"""The checkers of keys, leases and locks."""

from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, refused

from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import Operation
from simulation.checks.compared import Compared
from simulation.checks.held import Held
from simulation.checks.ledger import Ledger
from simulation.swarm.config import SwarmConfig

KEY = "kv:compared/0"


def led(checker: Any, **config: Any) -> Trace:
    trace = Trace(checker, config=SwarmConfig(**config))
    trace.begin()
    trace.committed(1, pb.FeatureLevelRecord(name="metadata.version", feature_level=2))
    return trace


def begin(trace: Trace, number: int, value: str, expected: Any, key: str = KEY) -> Operation:
    operation = Operation(
        number=number, client="k", kind="compare", key=key, value=value, expected=expected
    )
    trace.tell("client_invoked", operation)
    return operation


def end(trace: Trace, operation: Operation, offset: int = -1, error: str = "") -> None:
    operation.outcome = "failed" if error else "ok"
    operation.error, operation.offset = error, offset
    trace.tell("client_returned", operation)


def put(value: str) -> pb.KeyValueRecord:
    return pb.KeyValueRecord(key="compared/0", value=value.encode())


def test_success_whose_condition_was_met_passes() -> None:
    trace = led(Compared)
    one = begin(trace, 1, "a", -1)
    first = trace.committed(1, put("a"))
    end(trace, one, first)
    end(trace, begin(trace, 2, "b", first), trace.committed(1, put("b")))
    third = begin(trace, 3, "c", first)
    end(trace, third, error="INVALID_UPDATE_VERSION")
    trace.tell("end")
    assert (trace.last.done, trace.last.undone) == (2, 1)


def test_success_whose_condition_was_not_met_is_refused() -> None:
    trace = led(Compared)
    one, other = begin(trace, 1, "a", -1), begin(trace, 2, "b", -1)
    end(trace, one, trace.committed(1, put("a")))
    with refused(r"I30.*expected -1, was"):
        end(trace, other, trace.committed(1, put("b")))


def test_config_that_differed_from_the_expected_one_is_refused() -> None:
    trace = led(Compared)
    operation = begin(trace, 1, "a", "old", "config:compared-0")
    record = pb.ConfigRecord(
        resource_type=16, resource_name="compared-0", name="metrics", value="a"
    )
    with refused(r"I30.*expected old, was None"):
        end(trace, operation, trace.committed(1, record))


def test_refusal_with_an_always_met_condition_is_refused() -> None:
    trace = led(Compared)
    with refused(r"I30.*as expected throughout"):
        end(trace, begin(trace, 1, "a", -1), error="INVALID_UPDATE_VERSION")


def test_refusal_of_a_change_in_the_log_is_refused() -> None:
    trace = led(Compared)
    one, other = begin(trace, 1, "a", -1), begin(trace, 2, "b", -1)
    end(trace, one, trace.committed(1, put("a")))
    end(trace, other, error="INVALID_UPDATE_VERSION")
    trace.committed(1, put("b"))
    with refused(r"I30.*refused, is in the log"):
        trace.tell("end")


def test_change_that_no_client_requested_or_that_is_repeated_is_refused() -> None:
    trace = led(Compared)
    with refused(r"I30.*nobody has asked for"):
        trace.committed(1, put("a"))
    trace = led(Compared)
    begin(trace, 1, "a", -1)
    trace.committed(1, put("a"))
    with refused(r"I30.*and again"):
        trace.committed(1, put("a"))


def leased(trace: Trace, ttl_ms: int = 1_000) -> int:
    return trace.committed(1, pb.LeaseRecord(name="k", ttl_ms=ttl_ms))


def expired(lease_id: int) -> pb.RemoveLeaseRecord:
    return pb.RemoveLeaseRecord(lease_id=lease_id, reason="expired")


@pytest.mark.parametrize(("drift", "after_s", "early"), [
    (0.0, 2.99, True), (0.0, 3.0, False), (0.1, 2.8, True), (0.1, 2.91, False),
])  # fmt: skip
def test_lease_that_ends_too_early_is_refused(drift: float, after_s: float, early: bool) -> None:
    trace = led(Held, drift=drift)
    lease = leased(trace)
    trace.tell("lease_confirmed", "k", lease, 0.0, 1_000)
    trace.tell("lease_confirmed", "k", lease, 2.0, 1_000)
    trace.time = after_s
    if early:
        with refused(r"I31.*before its time has passed"):
            trace.committed(1, expired(lease))
    else:
        trace.committed(1, expired(lease))
        assert trace.last.expired == 1


def test_revoked_lease_may_end_at_once() -> None:
    trace = led(Held)
    lease = leased(trace)
    trace.tell("lease_confirmed", "k", lease, 0.0, 1_000)
    trace.committed(1, pb.RemoveLeaseRecord(lease_id=lease, reason="revoked"))
    assert trace.last.revoked == 1


def test_lease_that_leaves_a_key_is_refused() -> None:
    trace = led(Held)
    lease, key = leased(trace), pb.KeyValueRecord(key="a", value=b"")
    moved = pb.KeyValueRecord(key="b", value=b"", lease_id=lease)
    trace.committed(1, moved)
    moved.lease_id = 0
    trace.committed(1, moved)
    key.lease_id = lease
    trace.committed(1, key)
    with refused(r"I31.*leaves keys \['a'\]"):
        trace.committed(1, expired(lease))
    trace = led(Held)
    trace.committed(1, pb.KeyValueRecord(key="a", value=b"", lease_id=leased(trace)))
    trace.committed(1, pb.KeyValueRecord(key="a"), expired(trace.ledger.golden.end - 2))


def test_key_with_an_ended_lease_is_refused() -> None:
    trace = led(Held)
    with refused(r"I31.*missing lease"):
        trace.committed(1, pb.KeyValueRecord(key="a", value=b"", lease_id=77))


def test_two_holders_of_one_lock_are_a_failure() -> None:
    trace = led(Held)
    one, other = SimpleNamespace(token=5, is_held=True), SimpleNamespace(token=7, is_held=True)
    trace.tell("lock_taken", "k1", one)
    one.is_held = False
    trace.tell("lock_taken", "k2", other)
    third = SimpleNamespace(token=9, is_held=True)
    with refused(r"I31: k3 has the lock.*k2 relies on it"):
        trace.tell("lock_taken", "k3", third)


def test_decreasing_token_is_refused() -> None:
    trace = led(Held)
    for token in (5, 5, 7):
        trace.tell("lock_used", "k", SimpleNamespace(generation=1, token=token))
    with refused(r"I31: k1 uses 5 of 1, after .1: 7."):
        trace.tell("lock_used", "k1", SimpleNamespace(generation=1, token=5))


def test_token_of_an_abandoned_generation_is_refused() -> None:
    trace = led(Held)
    for generation, token in ((1, 7), (3, 2)):
        trace.tell("lock_used", "k", SimpleNamespace(generation=generation, token=token))
    with refused(r"I31: k1 uses 8 of 1, after"):
        trace.tell("lock_used", "k1", SimpleNamespace(generation=1, token=8))


def test_keep_alive_of_a_foreign_lease_is_refused() -> None:
    trace = led(Held)
    lease = leased(trace)
    with refused(rf"I31: k2 keeps lease {lease} alive, which is k's"):
        trace.tell("lease_confirmed", "k2", lease, 0.0, 1_000)


def guarded(trace: Trace, host: str, generation: int, token: int) -> None:
    says = f"{host} {generation} {token}".encode()
    trace.committed(1, pb.KeyValueRecord(key="guarded", value=says))


def test_guarded_write_of_a_former_lock_holder_is_refused() -> None:
    trace = led(Held)
    tokens = [
        trace.committed(1, pb.KeyValueRecord(key=f"locks/turn/{host}", value=host.encode()))
        for host in ("k1", "k2")
    ]
    guarded(trace, "k1", 1, tokens[0])
    trace.committed(1, pb.KeyValueRecord(key="locks/turn/k1"))
    guarded(trace, "k2", 1, tokens[1])
    assert trace.last.guarded == 2
    with refused(r"I31: what the lock guards is put .* by k1.*k2 has"):
        guarded(trace, "k1", 1, tokens[0])


def test_guard_of_an_abandoned_log_is_refused() -> None:
    trace = led(Held)
    key = pb.KeyValueRecord(key="locks/turn/k1", value=b"k1")
    # While the log that was recovered is read again, it is of any generation.
    trace.last.begin_after(Held(Ledger()))
    token = trace.committed(1, key)
    guarded(trace, "k1", 0, token)
    trace.last.listen()
    guarded(trace, "k1", 1, token)
    with refused(r"I31: .*generation 0; k1 has it.*generation 1"):
        guarded(trace, "k1", 0, token)
