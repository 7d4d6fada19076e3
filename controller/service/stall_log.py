"""Says in the log and in the journal who holds LAO back, and when it goes on."""

from __future__ import annotations

import structlog

from controller.decider import Decider
from raftlog.observability.journal import Journal, Kind

log = structlog.get_logger(__name__)


def log_stall(decider: Decider, now: float, journal: Journal) -> None:
    """Say who holds LAO back, and when it goes on."""
    lao = decider.state.log.lao
    # Without members nobody waits.
    reason = lao.unknown_reason if lao.lao < 0 and lao.members else ""
    news = decider.state.lao_stall.look(
        now, lao.lao, decider.state.log.committed.offset, lao.held_back_by(), reason
    )
    if news is None:
        return
    for_ms = round(news.for_s * 1000)
    if news.by or news.reason:
        journal.note(
            Kind.LAO_STALLED,
            offset=lao.lao,
            brokers=",".join(map(str, news.by[:10])),
            reason=news.reason,
        )
    else:
        journal.note(Kind.LAO_RESUMED, offset=lao.lao, stood_ms=for_ms)
    if news.reason:
        log.warning("the lowest acknowledged offset is unknown", reason=news.reason, for_ms=for_ms)
    elif news.by:
        applied = {broker_id: lao.applied_of(broker_id) for broker_id in news.by[:10]}
        log.warning(
            "the lowest acknowledged offset is held back",
            lowest_acknowledged_offset=lao.lao if lao.lao >= 0 else None,
            high_watermark=decider.state.log.committed.offset + 1,
            applied=applied,
            for_ms=for_ms,
        )
    else:
        log.info(
            "the lowest acknowledged offset goes on",
            lowest_acknowledged_offset=lao.lao,
            stood_ms=for_ms,
        )
