"""Whether a broker may read strictly: by its own clock, from the sending of a heartbeat, for one
registration.
"""

from __future__ import annotations

import pytest

from broker.metadata.read_gate import RETRY_S, WANTED_FOR_S, ReadLease
from raftlog.errors import ApiError, ErrorCode


class Broker:
    def __init__(self) -> None:
        self.epoch = 5
        self.hastened = 0
        self.lease = ReadLease(lambda: self.epoch, self._hasten)

    def _hasten(self) -> None:
        self.hastened += 1


def test_a_lease_runs_from_when_the_heartbeat_was_sent() -> None:
    lease = Broker().lease
    assert not lease.held(100.0)
    lease.answered(100.0, 6000, "")
    assert lease.held(105.9)
    assert not lease.held(106.0)
    assert (lease.remaining_ms(105.0), lease.remaining_ms(106.0)) == (1000, 0)


def test_an_answer_without_a_lease_takes_nothing_back_and_an_older_one_shortens_nothing() -> None:
    lease = Broker().lease
    lease.answered(100.0, 6000, "")
    lease.answered(101.0, 0, "about to be fenced")
    assert lease.held(105.9)
    assert lease.refusal() == "about to be fenced"
    lease.answered(99.0, 1000, "")
    assert lease.held(105.9)
    assert lease.refusal() == ""


def test_a_lease_is_of_one_registration() -> None:
    broker = Broker()
    broker.lease.answered(100.0, 6000, "")
    broker.epoch = 9
    assert not broker.lease.held(101.0)
    broker.lease.answered(101.0, 1000, "")
    assert broker.lease.held(101.9)
    assert not broker.lease.held(102.1), "what the former registration had does not count"
    broker.epoch = -1
    assert not broker.lease.held(101.5)
    broker.lease.answered(101.5, 1000, "")
    assert not broker.lease.held(101.6), "not registered: nobody's lease"


def test_a_process_that_stops_has_none_for_good() -> None:
    lease = Broker().lease
    lease.reader(100.0)
    lease.answered(100.0, 6000, "")
    lease.renounce()
    assert not lease.held(100.1)
    assert not lease.wanted(100.1)
    lease.answered(100.1, 6000, "")
    assert not lease.held(100.2)
    with pytest.raises(ApiError) as error:
        lease.reader(100.2)
    assert error.value.code is ErrorCode.NO_READ_LEASE


def test_it_is_wanted_while_there_are_readers_and_the_first_one_hastens_a_heartbeat() -> None:
    broker = Broker()
    lease = broker.lease
    assert not lease.wanted(100.0)
    assert lease.next_heartbeat_s(100.0, 0) == float("inf")
    lease.reader(100.0)
    lease.reader(100.1)
    assert broker.hastened == 1, "not once for each reader"
    assert lease.wanted(100.1)
    assert lease.next_heartbeat_s(100.1, 0) == RETRY_S
    lease.answered(100.0, 6000, "")
    assert lease.next_heartbeat_s(100.1, 6000) == 2.0
    lease.reader(103.0)
    assert broker.hastened == 1
    lease.reader(106.0)
    assert broker.hastened == 2, "it has lapsed"
    assert not lease.wanted(106.0 + WANTED_FOR_S)
    assert lease.next_heartbeat_s(106.0 + WANTED_FOR_S, 6000) == float("inf")
