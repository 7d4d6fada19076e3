"""Incidents of the generated cluster: failures and reactions, noted when over."""

from collections.abc import Callable, Sequence
from functools import partial

from raftlog.metadata.entities import Cause
from simulation.generate.cluster import Cluster
from simulation.generate.schedule import Incident, Rates, Schedule

SESSION_MS = 9_000
_MINUTE_MS = 60_000
_HOT_BROKER = 1


class Incidents:
    """Planner of the incidents. ``happened`` has those that are over, by their ends."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.happened: list[Incident] = []
        self._cluster, self._schedule = cluster, schedule
        self._rng = cluster.log.rng
        self._busy: set[int] = set()

    def plan(self, rates: Rates, begin_ms: int) -> None:
        every = self._schedule.every
        every(rates.rolling_restarts, begin_ms, self._roll, by_people=True)
        actions: list[tuple[float, Callable[[int], None]]] = [
            (rates.crashes, self._crash),
            (rates.rack_outages, self._lose_rack),
            (rates.site_outages, self._lose_site),
            (rates.slow_disks, self._slow_disk),
            (rates.stalls, self._stall),
            (rates.failovers, self._fail_over),
            (rates.hand_overs, self._hand_over),
        ]
        for per_day, action in actions:
            every(per_day, begin_ms, action)

    def _well(self) -> list[int]:
        return [id_ for id_ in self._cluster.active() if id_ not in self._busy]

    def _pick(self) -> int | None:
        """Return a broker that is well; with a hot one, that one half of the time."""
        live = self._well()
        if len(live) < 2:
            return None
        if self._cluster.profile.skew == "broker" and self._rng.random() < 0.5:
            return _HOT_BROKER if _HOT_BROKER in live else None
        return self._rng.choice(live)

    def _note(
        self,
        kind: str,
        begins_ms: int,
        first_offset: int,
        ends_ms: int,
        brokers: Sequence[int] = (),
    ) -> None:
        self.happened.append(
            Incident(
                kind=kind,
                begins_ms=begins_ms,
                ends_ms=ends_ms,
                first_offset=first_offset,
                last_offset=self._cluster.log.end_offset - 1,
                brokers=tuple(brokers),
            )
        )
        self._busy.difference_update(brokers)

    def _fail_over(self, at_ms: int) -> None:
        """Let the controller fail. Another one is elected at once, or after the fetch timeout if
        the host died.
        """
        first = self._cluster.log.end_offset
        longest = (1_000, 2_400) if self._rng.random() < 0.2 else (15, 60)
        pause_ms = self._rng.randrange(*longest)
        self._cluster.elect(at_ms + pause_ms, absent_ms=pause_ms)
        self._note("controller failover", at_ms, first, at_ms + pause_ms)

    def _hand_over(self, at_ms: int) -> None:
        first = self._cluster.log.end_offset
        self._cluster.elect(at_ms + 5, absent_ms=5)
        self._note("controller hand-over", at_ms, first, at_ms + 5)

    def _come_back(self, broker_id: int, at_ms: int, then: Callable[[int], None]) -> None:
        """Let a new process register, catch up, rejoin its ISRs, and lead again later."""
        cluster, at, rng = self._cluster, self._schedule.at, self._rng
        at(at_ms, partial(cluster.register, broker_id))
        unfenced_ms = at_ms + rng.randrange(20, 900)
        at(unfenced_ms, partial(cluster.unfence, broker_id))
        caught_up_ms = unfenced_ms + rng.randrange(200, 20_000)
        at(caught_up_ms, partial(cluster.expand, broker_id))
        at(caught_up_ms + rng.randrange(1_000, 30_000), then)
        at(caught_up_ms + 5 * _MINUTE_MS, partial(cluster.prefer, broker_id))

    def _crash(self, at_ms: int) -> None:
        broker_id = self._pick()
        if broker_id is not None:
            away_ms = self._rng.randrange(10_000, 40 * _MINUTE_MS)
            self._lose("broker crash", [broker_id], at_ms, away_ms)

    def _lose_rack(self, at_ms: int) -> None:
        rack = self._rng.randrange(self._cluster.profile.racks)
        lost = [id_ for id_ in self._well() if self._cluster.rack_of(id_) == rack]
        if lost:
            away_ms = self._rng.randrange(2 * _MINUTE_MS, 30 * _MINUTE_MS)
            self._lose("rack outage", lost, at_ms, away_ms)

    def _lose_site(self, at_ms: int) -> None:
        """Lose all brokers at once: no leaders until the last ISR members are back."""
        lost = self._well()
        if lost:
            self._lose("site outage", lost, at_ms, self._rng.randrange(_MINUTE_MS, 10 * _MINUTE_MS))

    def _lose(self, kind: str, brokers: list[int], at_ms: int, away_ms: int) -> None:
        cluster, rng, first = self._cluster, self._rng, self._cluster.log.end_offset
        self._busy.update(brokers)
        away = set(brokers)

        def back(broker_id: int, now_ms: int) -> None:
            away.discard(broker_id)
            if not away:
                self._note(kind, at_ms, first, now_ms, brokers)

        for broker_id in brokers:
            # It applies nothing from its death on: until its session has ended LAO waits for it.
            cluster.observed.stall(broker_id)
            fenced_ms = at_ms + SESSION_MS + rng.randrange(500)
            self._schedule.at(fenced_ms, partial(cluster.fence, broker_id, Cause.SESSION_TIMED_OUT))
            back_ms = max(at_ms + away_ms, fenced_ms + 1_000) + rng.randrange(3_000)
            self._come_back(broker_id, back_ms, partial(back, broker_id))

    def _roll(self, at_ms: int) -> None:
        first, rng, began_ms = self._cluster.log.end_offset, self._rng, at_ms
        for broker_id in self._cluster.broker_ids:
            self._schedule.at(at_ms, partial(self._restart, broker_id))
            at_ms += rng.randrange(60_000, 120_000)
        self._schedule.at(
            at_ms, lambda now_ms: self._note("rolling restart", began_ms, first, now_ms)
        )

    def _restart(self, broker_id: int, at_ms: int) -> None:
        cluster, at, rng = self._cluster, self._schedule.at, self._rng
        if broker_id in self._busy or broker_id not in cluster.active():
            return
        self._busy.add(broker_id)
        cluster.begin_shutdown(broker_id, at_ms)
        left_ms = at_ms + rng.randrange(200, 3_000)
        at(left_ms, partial(cluster.leave, broker_id))
        back_ms = left_ms + rng.randrange(2_000, 12_000)
        self._come_back(broker_id, back_ms, lambda _: self._busy.discard(broker_id))

    def _slow_disk(self, at_ms: int) -> None:
        """A broker falls out of ISRs and comes back, again and again."""
        broker_id = self._pick()
        if broker_id is None:
            return
        self._busy.add(broker_id)
        cluster, at, rng = self._cluster, self._schedule.at, self._rng
        first = cluster.log.end_offset
        held = [(each.topic_id, each.index) for each in cluster.held(broker_id)]
        began_ms = at_ms
        for _ in range(rng.randrange(2, 9)):
            count = max(1, len(held) * rng.randrange(10, 70) // 100) if held else 0
            keys = sorted(rng.sample(held, count))
            at(at_ms, partial(cluster.shrink, broker_id, keys))
            at_ms += rng.randrange(5_000, 60_000)
            at(at_ms, partial(cluster.expand, broker_id, keys=keys))
            at_ms += rng.randrange(10_000, 240_000)
        at(at_ms, lambda now_ms: self._note("slow disk", began_ms, first, now_ms, [broker_id]))

    def _stall(self, at_ms: int) -> None:
        """Let a broker heartbeat without applying: LAO waits until it continues or is fenced."""
        broker_id = self._pick()
        if broker_id is None:
            return
        self._busy.add(broker_id)
        cluster, at, rng = self._cluster, self._schedule.at, self._rng
        first = cluster.log.end_offset
        cluster.observed.stall(broker_id)
        began_ms, fenced = at_ms, rng.random() < 0.2
        at_ms += 30_000 + rng.randrange(500) if fenced else rng.randrange(300, 25_000)
        if fenced:
            at(at_ms, partial(cluster.fence, broker_id, Cause.METADATA_LAG))
            at_ms += rng.randrange(1_000, 60_000)
            at(at_ms, partial(cluster.unfence, broker_id))
            at_ms += rng.randrange(200, 5_000)
            at(at_ms, partial(cluster.expand, broker_id))

        def over(now_ms: int) -> None:
            cluster.observed.resume(broker_id)
            kind = "stalled broker" + ", fenced" * fenced
            self._note(kind, began_ms, first, now_ms, [broker_id])

        at(at_ms, over)
