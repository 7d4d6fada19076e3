"""Rules of LAO dropped or bent, one at a time: what the model must catch."""

from lao_model import Answer, Entry, ModelBroker, Report

from controller.visibility.lao import LaoTracker, Registration, Registrations


class IgnoresTail(LaoTracker):
    """A tracker that takes unfenced brokers from the committed image and its own proposals alone."""

    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        super().__init__(epoch, epoch_start_offset)

        class Proposed(Registrations):
            def set_fenced(self, broker: Registration, fenced: bool, batch_end: int) -> None:
                if batch_end < 0 or batch_end > epoch_start_offset:
                    super().set_fenced(broker, fenced, batch_end)

        self._registrations = Proposed()


class _EndAtOnce(Registrations):
    def set_fenced(self, broker: Registration, fenced: bool, batch_end: int) -> None:
        super().set_fenced(broker, fenced, batch_end)
        if fenced and broker.member:
            broker.member, broker.leaves_at = False, -1
            self.by_applied.remove((broker.applied, broker.broker_id, broker.epoch))
            self.by_known_lao.remove((broker.known_lao, broker.broker_id, broker.epoch))


class FencesWhenProposed(LaoTracker):
    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        super().__init__(epoch, epoch_start_offset)
        self._registrations = _EndAtOnce()


class _Endless(Registrations):
    def _end_membership(self, broker: Registration) -> None:
        broker.leaves_at = -1


class NeverEndsMembership(LaoTracker):
    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        super().__init__(epoch, epoch_start_offset)
        self._registrations = _Endless()


class FenceOutlivesUnfence(LaoTracker):
    """fence, unfence: the commit of the fence ends the membership all the same."""

    def committed(self, high_watermark: int) -> None:
        for leaves_at, broker in self._registrations._leaving:
            if broker.member and leaves_at <= high_watermark:
                broker.leaves_at = leaves_at
        super().committed(high_watermark)


class _UnfencedLater(Registrations):
    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[int, Registration]] = []

    def set_fenced(self, broker: Registration, fenced: bool, batch_end: int) -> None:
        if fenced or batch_end < 0:
            super().set_fenced(broker, fenced, batch_end)
            self.later = [(at, other) for at, other in self.later if other is not broker]
        else:
            self.later.append((batch_end, broker))

    def unfence(self, high_watermark: int) -> None:
        while self.later and self.later[0][0] <= high_watermark:
            _, broker = self.later.pop(0)
            super().set_fenced(broker, False, 0)


class UnfencesWhenCommitted(LaoTracker):
    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        super().__init__(epoch, epoch_start_offset)
        self._registrations = self.later = _UnfencedLater()

    def committed(self, high_watermark: int) -> None:
        super().committed(high_watermark)
        self.later.unfence(self._high_watermark)


class NeverParks(LaoTracker):
    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        high_watermark, self._high_watermark = self._high_watermark, self._log_end
        super().report(broker_id, broker_epoch, controller_epoch, applied, known_lao)
        self._high_watermark = high_watermark


class FollowersHighWatermarkCounts(LaoTracker):
    """A tracker for which a high watermark known before the claim releases reports before the first
    commit of this epoch.
    """

    def committed(self, high_watermark: int) -> None:
        start, self._epoch_start_offset = self._epoch_start_offset, -1
        super().committed(high_watermark)
        self._epoch_start_offset = start


class TakesReportsOfOlderEpochs(LaoTracker):
    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        super().report(
            broker_id, broker_epoch, max(controller_epoch, self.epoch), applied, known_lao
        )


class DeposedTakesNewerReports(LaoTracker):
    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        super().report(
            broker_id, broker_epoch, min(controller_epoch, self.epoch), applied, known_lao
        )


class TakesReportsOfOtherBrokerEpochs(LaoTracker):
    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        broker = self._registrations.current.get(broker_id)
        super().report(
            broker_id, broker.epoch if broker else -1, controller_epoch, applied, known_lao
        )


class KnowsBeforeAllReported(LaoTracker):
    def _advance(self) -> None:
        heard = [key[0] for key in self._registrations.by_applied if key[0] >= 0]
        self._highest_lao = max(self._highest_lao, min(heard, default=-1))
        self._highest_min_known_lao = max(self._highest_min_known_lao, self.min_known_lao)

    @property
    def lao(self) -> int:
        return self._highest_lao


class FallsWithItsMembers(LaoTracker):
    """LAO is the minimum of the last reports, whatever was said before."""

    def _count(self, broker: Registration, applied: int, known_lao: int) -> None:
        if applied < broker.applied and broker.member:
            self._registrations.by_applied.remove((broker.applied, broker.broker_id, broker.epoch))
            self._registrations.by_applied.add((applied, broker.broker_id, broker.epoch))
            broker.applied = applied
        super()._count(broker, applied, known_lao)

    def _advance(self) -> None:
        super()._advance()
        if self._registrations.by_applied:
            self._highest_lao = self._registrations.by_applied.lowest


class EmptySetIsInfinite(LaoTracker):
    @property
    def lao(self) -> int:
        return super().lao if self._registrations.by_applied else 2**63 - 1


class JoinsWithoutApplied(LaoTracker):
    def may_join(self, broker_id: int) -> bool:
        broker = self._registrations.current.get(broker_id)
        if broker is None:
            return False
        applied, broker.applied = broker.applied, 1 << 62
        answer = super().may_join(broker_id)
        broker.applied = applied
        return answer


class JoinsBelowLao(LaoTracker):
    """The first record of the epoch is enough."""

    def may_join(self, broker_id: int) -> bool:
        broker = self._registrations.current.get(broker_id)
        return (
            broker is not None
            and broker.applied >= self._epoch_start_offset
            and (
                self._highest_lao < 0
                or broker.known_lao
                >= (
                    self._highest_min_known_lao
                    if self._registrations.by_known_lao
                    else self._highest_lao
                )
            )
        )


class JoinsBelowEpochStart(LaoTracker):
    def may_join(self, broker_id: int) -> bool:
        start, self._epoch_start_offset = self._epoch_start_offset, -1
        answer = super().may_join(broker_id)
        self._epoch_start_offset = start
        return answer and self.applied_of(broker_id) >= 0


class JoinsUntold(LaoTracker):
    def may_join(self, broker_id: int) -> bool:
        broker = self._registrations.current.get(broker_id)
        return broker is not None and broker.applied >= max(
            self._highest_lao, self._epoch_start_offset
        )


class ListensToDeposed(ModelBroker):
    """Takes answers from controllers below the highest epoch it has seen, and reports under the
    last one.
    """

    def answered(self, answer: Answer, log: list[Entry], end: int) -> bool:
        self.seen = answer.controller_epoch
        return super().answered(answer, log, end)


class ReportsUnderOlderEpochs(ModelBroker):
    """Ignores the answers of older controllers, but goes on reporting to them."""

    def report(self) -> Report:
        self.reports = getattr(self, "reports", 0) + 1
        return super().report()._replace(controller_epoch=max(1, self.seen - self.reports % 2))


class ReadsFromOldTold(ModelBroker):
    """A told LAO stays good whoever unfences the broker."""

    def repeatable(self) -> int:
        return self.known_lao


TRACKERS: list[type[LaoTracker]] = [
    IgnoresTail,
    FencesWhenProposed,
    NeverEndsMembership,
    FenceOutlivesUnfence,
    UnfencesWhenCommitted,
    NeverParks,
    FollowersHighWatermarkCounts,
    TakesReportsOfOlderEpochs,
    DeposedTakesNewerReports,
    TakesReportsOfOtherBrokerEpochs,
    KnowsBeforeAllReported,
    FallsWithItsMembers,
    EmptySetIsInfinite,
    JoinsWithoutApplied,
    JoinsBelowLao,
    JoinsBelowEpochStart,
    JoinsUntold,
]
BROKERS: list[type[ModelBroker]] = [ListensToDeposed, ReportsUnderOlderEpochs, ReadsFromOldTold]
FIRST_SEED: dict[type, int] = {
    DeposedTakesNewerReports: 115,
    TakesReportsOfOtherBrokerEpochs: 435,
    JoinsBelowEpochStart: 225,
    ListensToDeposed: 115,
    ReportsUnderOlderEpochs: 625,
}
"""Seeds at which the search starts: shortly before one known to kill the mutant, to save time only.
"""
