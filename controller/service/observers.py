"""Serves the committed log to brokers and other observers, which report the offset that they have
applied.

An observer keeps one fetch outstanding. The fetch is answered at once if there is something that
the observer does not know (records, a higher high watermark, another LAO); otherwise it is parked
until the next commit, a move of LAO, or its deadline. Changes that are due together share one
reply, and observers at the same offset get the same bytes.

If a fetch allows it, a move of LAO alone does not answer it: LAO is sent, the fetch stays parked,
and the next fetch reports that LAO. For a lone write this saves one message in four. If a writer
waits for that report, the fetch is answered.

Answers to registered brokers are sent in bursts (``Bursts``): the more brokers and the more writes,
the more records per answer.

Each turn of the event loop has a bound for all observers together, in answers, bytes and time; the
rest wait for the next turn. Registered brokers are served before strangers, and strangers'
connections take turns. (Otherwise 1,200 strangers that each fetched a 10 MB log would make this
node read and copy 10 GB at once; no follower would get an answer, and the leadership would be
lost.)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raftlog.bounds import (
    OBSERVER_ANSWER_MAX_BYTES,
    OBSERVERS_MAX_STRANGERS,
    OBSERVERS_TURN_MAX_BYTES,
    TURN_MAX_S,
    FairQueue,
    Shares,
)
from raftlog.errors import ApiError, ErrorCode, FatalError, InvariantError
from raftlog.limits import cluster_error
from raftlog.logger import get_logger
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.transport.api import Link, LinkClosedError
from raftlog.transport.statuses import error_to_wire
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

if TYPE_CHECKING:
    from controller.service.node import ControllerNode

log = get_logger(__name__)

SHORT_S = 0.0005
"""Longest burst, in seconds, that needs no pause: with few brokers, news is answered at once."""
LONG_S = 0.005
"""Length, in seconds, after which a burst ends even if answers remain: on a busy machine new
fetches arrive during a burst, so some answers always remain.
"""
PAUSES = 2
"""Length of a pause, as a multiple of the CPU time of the burst. (With a factor of 1, a hundred
brokers on a busy machine lengthen a write by half.)
"""
REST_MAX_S = 0.005
"""Longest rest in seconds that is saved up, and so the most loop time that a burst without a pause
uses.
"""


class Bursts:
    """Bursts of answers to brokers, and the pauses between them.

    ``soon``: call back in another turn of the loop, after a number of seconds. ``now``: seconds of
    the clock. ``cpu_clock``: CPU seconds that the loop's thread has used. ``more``: return whether
    brokers remain to be answered in this burst. ``over``: called after a pause.
    """

    def __init__(
        self,
        soon: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
        cpu_clock: Callable[[], float],
        more: Callable[[], bool],
        over: Callable[[], None],
    ) -> None:
        self._soon, self._now, self._cpu_clock = soon, now, cpu_clock
        self._more, self._over = more, over
        self._begun: float | None = None
        self._is_scheduled = False
        """True while a check is scheduled."""
        self._ended = now()
        self._rested_s = 0.0
        """Time in seconds without an answer that no burst has used up."""
        self._again = False
        """Whether brokers were answered since the last check was scheduled."""
        self.pausing = False
        """True while brokers wait for the end of a pause."""

    def begin(self) -> None:
        """Begin a burst, unless one is in progress, because brokers are answered now.

        The answers are sent in the next turn of the loop, before the callback that is scheduled
        here.
        """
        if self._begun is None:
            self._begun = self._cpu_clock()
            self._rested_s = min(REST_MAX_S, self._rested_s + self._now() - self._ended)
        self.check_soon()

    def check_soon(self) -> None:
        """Schedule a check whether the burst is over, after all due fetches were examined."""
        if self._is_scheduled:
            self._again = True
        elif self._begun is not None:
            self._is_scheduled = True
            self._soon(0.0, self._check)

    def _check(self) -> None:
        self._is_scheduled = False
        again, self._again = self._again, False
        begun = self._begun
        took_s = 0.0 if begun is None else self._cpu_clock() - begun
        owed_s = took_s - self._rested_s
        if self._more() and owed_s <= LONG_S:
            # The remaining brokers are answered in another turn of the loop, which may be a while
            # away: another check would not help.
            return
        if again and owed_s <= SHORT_S:
            self.check_soon()
            return
        self._begun = None
        self._ended = self._now()
        self._rested_s = max(0.0, -owed_s)
        if owed_s > SHORT_S:
            self.pausing = True
            self._soon(PAUSES * owed_s, self._end)

    def _end(self) -> None:
        # A pause does not count as rest: it was owed.
        self.pausing, self._ended = False, self._now()
        self._over()


MAX_WAIT_MS = 5_000
SAY_DIVERGENCE_EVERY_S = 10.0
ANSWER_BYTES = 256
"""Bytes charged for an answer without records: many small ones are work, too."""
SHARED_MAX_BYTES = 256 << 10
"""Maximum total size, in bytes, of the answers kept for further observers at the same offset; a
single larger answer is also kept.
"""
TURN_ANSWERS = 32
"""Maximum number of answers to registered brokers in one turn of the loop. Sending an answer takes
longer than deciding it, and no stopwatch here measures the sending. Between these turns the loop
serves followers and clients.
"""


class _Known(NamedTuple):
    """The values to send, the same for all observers that are examined together."""

    end: int
    """High watermark, exclusive; -1 if unknown."""
    lao: int
    epoch: int
    log_start_offset: int


@dataclass(slots=True, eq=False)
class MetadataStream:
    """The link of one observer: its parked fetch, and the last values sent to it."""

    link: Link
    fetch: pb.MetadataFetchRequest | None = None
    offset: int = 0
    """Offset that the observer fetches from."""
    high_watermark: int = -1
    """High watermark that the observer knows, copied from ``fetch``, as it is read more than once.
    """
    deadline: float = 0.0
    sent_lao: int = -2
    sent_epoch: int = -1
    stranger: bool = True
    """Whether the stream occupies one of the strangers' places."""
    lines_up: int = 0
    """Bit set of the strangers' two queues that the stream is in."""


class Observers:
    """All observer links of this node."""

    def __init__(
        self,
        source: ControllerNode,
        report: Callable[[pb.MetadataFetchRequest], None],
        must_report: Callable[[], Container[int]],
        soon: Callable[[float, Callable[[], None]], object],
        stopwatch: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        """``report``: called with each broker's fetch. ``must_report``: returns the brokers that
        must report their known LAO at once. ``soon``: calls back in another turn of the loop, after
        a number of seconds. ``stopwatch``: a clock in seconds that advances within a turn.
        ``cpu_clock``: CPU seconds that the loop's thread has used.
        """
        self._source = source
        self._report, self._must_report = report, must_report
        self._soon = soon
        self._stopwatch, self._cpu_clock = stopwatch, cpu_clock
        # Insertion-ordered, so that replies leave in the same order in every run of a simulation.
        self._streams: dict[int, MetadataStream] = {}
        self._strangers = Shares(OBSERVERS_MAX_STRANGERS)
        self._brokers: dict[int, MetadataStream] = {}
        """Broker id -> the stream that last presented the id with its epoch.

        Strangers never replace it.
        """
        self._due: dict[MetadataStream, None] = {}
        """Streams of brokers to examine, in order."""
        self._lines: tuple[FairQueue[MetadataStream], FairQueue[MetadataStream]] = (
            FairQueue(),
            FairQueue(),
        )
        """Streams of strangers: a queue to examine, and a queue of examined streams that wait for
        news.
        """
        self._front = 0
        """Index of the queue to examine."""
        self._news = False
        """Whether there has been news: the waiting streams are examined again after the front
        queue.
        """
        self._spent_bytes, self._spent_s = 0, 0.0
        self._turn_begun = False
        self._shared: dict[Any, pb.MetadataFetchResponse] = {}
        """Answers by key: offset, size, kind."""
        self._shared_known: _Known | None = None
        """The news for which these answers are valid."""
        self._shared_bytes = 0
        self._turn_cpu_at = 0.0
        """CPU clock at the beginning of this turn of the loop."""
        self._bursts = Bursts(soon, source.now, cpu_clock, lambda: bool(self._due), self._serve)
        self.lao_is_held = False
        """True while a move of LAO alone is not news: it is sent with the next answer."""
        self.unreported = False
        """Whether an observer may have received an LAO without an answer to its fetch since reports
        were last requested.
        """
        self.contradiction = ""
        """Describes a batch that an observer reported as its last applied one and that this log
        lacks; "" if none.
        """
        self._say_divergence_at = 0.0

    def accept(self, link: Link) -> Observers:
        """Register a new observer, and return its handler, which is this object."""
        if self._strangers.take(link.peer):
            self._streams[id(link)] = MetadataStream(link)
        else:
            link.close("too many observers")
        return self

    def closed(self, link: Link, reason: str) -> None:
        """Remove an observer, and its parked fetch."""
        stream = self._streams.pop(id(link), None)
        if stream is not None:
            stream.fetch = None
        if stream is not None and stream.stranger:
            self._strangers.give_back(link.peer)
        elif stream is not None:
            self._brokers = {
                broker_id: one for broker_id, one in self._brokers.items() if one is not stream
            }

    def _identify(self, stream: MetadataStream, fetch: pb.MetadataFetchRequest) -> None:
        """Register the stream on which a registered broker fetches; it no longer occupies a
        stranger's place.

        The stream that had this id before becomes a stranger again.
        """
        if not self._source.is_broker(fetch.replica_id, fetch.broker_epoch):
            return
        stream.stranger = False
        self._strangers.give_back(stream.link.peer)
        before, self._brokers[fetch.replica_id] = self._brokers.get(fetch.replica_id), stream
        if before is not None:
            before.stranger = self._strangers.take(before.link.peer)
            if not before.stranger:
                before.link.close("another link has presented this broker's id and epoch")
            elif before.fetch is not None:
                self._line_up(before)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Process fetches. Only the newest counts: an observer has one outstanding."""
        stream = self._streams.get(id(link))
        if stream is None or not messages:
            return
        fetch = messages[-1]
        source = self._source
        error = self._refusal(fetch)
        if error is not None:
            self._send_error(stream, error)
            return
        if fetch.HasField("last_applied") and self._report_divergence(stream, fetch):
            return
        if fetch.replica_id >= 0:
            if stream.stranger:
                self._identify(stream, fetch)
            self._report(fetch)
        stream.fetch = fetch
        stream.offset, stream.high_watermark = fetch.fetch_offset, fetch.high_watermark
        wait_ms = min(max(fetch.max_wait_ms, 0), MAX_WAIT_MS)
        stream.deadline = source.now() + wait_ms / 1000
        end = source.committed_end
        # Nearly every fetch acknowledges the newest records, and waits: it needs no answer at once.
        # ``_answer`` decides precisely.
        if (
            stream.stranger
            or wait_ms == 0
            or end > stream.offset
            or end > stream.high_watermark
            or source.controller_epoch != stream.sent_epoch
            or source.lowest_acknowledged_offset != stream.sent_lao
        ):
            self._line_up(stream)
            # If others were served in this turn of the loop, this stream is served in the next one,
            # with later arrivals.
            if stream.stranger or not self._turn_begun:
                self._serve()

    def _refusal(self, fetch: pb.MetadataFetchRequest) -> ApiError | None:
        source = self._source
        generation = fetch.generation
        if (other := cluster_error(source.cluster_id, fetch.cluster_id)) is not None:
            return other
        if fetch.fetch_offset < 0:
            return ApiError(
                ErrorCode.INVALID_REQUEST,
                f"fetch_offset is {fetch.fetch_offset}; it must be 0 or more",
                field="fetch_offset",
            )
        committed = source.committed_generation
        refusal = source.not_controller()
        if refusal is not None or not committed:
            return refusal
        if committed != source.generation:
            # [A broker follows this leader, and reports under its epoch what it has applied of the
            # earlier log: the report would count in the recovered one.]
            return ApiError(
                ErrorCode.NOT_CONTROLLER,
                "the log was recovered, and no record of its new generation is committed yet",
                leader_id=-1,
            )
        if generation not in (NO_GENERATION, committed):
            return ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the request names generation {generation}, but the log has {committed}",
                field="generation",
            )
        return None

    def _report_divergence(self, stream: MetadataStream, fetch: pb.MetadataFetchRequest) -> bool:
        """Answer an observer that has applied records which this log does not have. Return whether
        the observer has applied such records.

        They were committed in an epoch no later than the newest that the observer has seen, so the
        leader of that epoch or a later one has them; an older leader may lack them.
        """
        source = self._source
        if fetch.controller_epoch > source.controller_epoch:
            return False
        diverging = source.divergence(fetch.fetch_offset, fetch.last_applied)
        if diverging is None:
            return False
        epoch, end_offset = diverging
        parted_at = "the logs are equal, but the states are not"
        if end_offset < fetch.fetch_offset:
            parted_at = f"the logs diverge at offset {end_offset}: committed records are lost"
        self.contradiction = (
            f"observer {fetch.replica_id} had applied offset {fetch.fetch_offset - 1} of epoch"
            f" {fetch.last_applied.epoch}; {parted_at}"
        )
        if source.now() >= self._say_divergence_at:
            self._say_divergence_at = source.now() + SAY_DIVERGENCE_EVERY_S
            log.error(
                "an observer has applied records that contradict this log", why=self.contradiction
            )
        stream.fetch = None
        response = self._about_the_log()
        response.diverging_epoch.epoch, response.diverging_epoch.end_offset = epoch, end_offset
        self._send(stream, response)
        return True

    def _about_the_log(self) -> pb.MetadataFetchResponse:
        """Return an answer without records."""
        source = self._source
        return pb.MetadataFetchResponse(
            leader_id=source.leader_id,
            controller_epoch=source.controller_epoch,
            generation=source.committed_generation,
            high_watermark=source.committed_end,
            lowest_acknowledged_offset=source.lowest_acknowledged_offset,
            log_start_offset=source.log_start_offset,
            cluster_id=source.cluster_id,
        )

    def release(self, *, expired_only: bool = False) -> None:
        """Answer every parked fetch for which there is news, or whose deadline has passed."""
        if not self._streams:
            return
        now = self._source.now()
        for stream in self._brokers.values():
            if stream.fetch is not None and (not expired_only or stream.deadline <= now):
                self._due[stream] = None
        self._news = True
        self._serve()

    def request_reports(self) -> None:
        """Answer every parked fetch: some observers may know an LAO that they have not reported."""
        self.unreported = False
        for stream in self._streams.values():
            if stream.fetch is not None:
                stream.deadline = 0.0
        self.release()

    def refuse_all(self) -> None:
        """Answer every parked fetch with an error, without a pause, as the leadership is lost."""
        self._bursts.pausing = False
        self.release()

    # --- turns -----------------------------------------------------------------------------------

    def _line_up(self, stream: MetadataStream) -> None:
        if stream.stranger:
            self._push(stream, self._front)
        else:
            self._due[stream] = None

    def _push(self, stream: MetadataStream, line: int) -> None:
        if not stream.lines_up & 1 << line:
            stream.lines_up |= 1 << line
            self._lines[line].push(stream.link.peer, stream)

    def _next_stranger(self) -> MetadataStream | None:
        """Return the next stranger's stream to examine when no broker is due, or None; connections
        take turns.
        """
        if not self._lines[self._front] and self._news:
            self._news = False
            self._front = 1 - self._front
        stranger = self._lines[self._front].pop()
        if stranger is not None:
            stranger.lines_up &= ~(1 << self._front)
        return stranger

    @property
    def _more(self) -> bool:
        return bool(
            (self._due and not self._bursts.pausing)
            or self._lines[self._front]
            or (self._news and self._lines[1 - self._front])
        )

    def _serve(self) -> None:
        """Examine the streams that may be due, within the bounds of this turn of the loop."""
        if not self._more:
            return
        source, now = self._source, self._source.now()
        error = source.not_controller()
        known = _Known(
            source.committed_end,
            source.lowest_acknowledged_offset,
            source.controller_epoch,
            source.log_start_offset,
        )
        if known != self._shared_known:
            self._shared_known = known
            self._forget_answers()
        begun = self._stopwatch()
        if not self._turn_begun:
            # Once per turn, not per fetch, as it is a system call.
            self._turn_cpu_at = self._cpu_clock()
        spent_s, left_bytes = self._spent_s, OBSERVERS_TURN_MAX_BYTES - self._spent_bytes
        looked = to_brokers = 0
        due_now, bursts, must_report = self._due, self._bursts, self._must_report()
        while spent_s < TURN_MAX_S and left_bytes > 0 and to_brokers < TURN_ANSWERS:
            stream: MetadataStream | None
            if due_now and not bursts.pausing:
                stream = next(iter(due_now))
                del due_now[stream]
            else:
                stream = self._next_stranger()
                if stream is None:
                    break
            looked += 1
            if stream.fetch is not None:
                if error is not None:
                    self._send_error(stream, error)
                    sent_bytes = ANSWER_BYTES
                else:
                    due = stream.deadline <= now
                    sent_bytes = self._answer(stream, stream.fetch, known, must_report, due)
                left_bytes -= sent_bytes
                if not stream.stranger:
                    to_brokers += sent_bytes > 0
                elif stream.fetch is not None:
                    self._push(stream, 1 - self._front)
            spent_s = self._spent_s + self._stopwatch() - begun
            if spent_s >= TURN_MAX_S:
                # On a busy machine other threads may have used that time.
                spent_s = min(spent_s, self._cpu_clock() - self._turn_cpu_at)
        if looked:
            self._spent_s, self._spent_bytes = spent_s, OBSERVERS_TURN_MAX_BYTES - left_bytes
        if to_brokers:
            bursts.begin()
        elif looked:
            bursts.check_soon()
        if (looked or self._more) and not self._turn_begun:
            self._turn_begun = True
            # A full turn is followed by a pause of the same length: gRPC accepts one new call per
            # turn of the loop, and a new call would otherwise wait for as many full turns as there
            # are calls before it.
            full = spent_s >= TURN_MAX_S or left_bytes <= 0
            self._soon(spent_s if full and self._more else 0.0, self._begin_turn)

    def _begin_turn(self) -> None:
        """Begin another turn of the loop."""
        self._turn_begun = False
        self._spent_bytes, self._spent_s = 0, 0.0
        if self._more:
            self._serve()

    def _answer(
        self,
        stream: MetadataStream,
        fetch: pb.MetadataFetchRequest,
        known: _Known,
        must_report: Container[int],
        due: bool,
    ) -> int:
        """Answer a fetch, if there is an answer. Return the bytes charged for it."""
        end, lao, epoch, log_start_offset = known
        offset = stream.offset
        if offset < log_start_offset:
            self._send_to_snapshot(stream)
            return ANSWER_BYTES
        has_data, other_epoch = end > offset, epoch != stream.sent_epoch
        # An unknown high watermark or LAO is not worth an answer.
        answers = has_data or due or other_epoch or end > max(stream.high_watermark, -1)
        news = lao != stream.sent_lao and not self.lao_is_held and end >= 0
        if not (answers or news):
            return 0
        stands = not answers and fetch.takes_lao_alone and fetch.replica_id not in must_report
        key = (offset if has_data else -1, fetch.max_bytes, stands, not fetch.generation)
        response = self._shared.get(key)
        if response is None:
            response = self._response(stream, fetch, known, has_data=has_data, stands=stands)
            if response is None:
                return ANSWER_BYTES
            self._keep_answer(key, response)
        stream.sent_lao, stream.sent_epoch = lao, epoch
        if stands:
            self.unreported = True
        else:
            stream.fetch = None
        self._send(stream, response)
        return ANSWER_BYTES + (len(response.records) if has_data else 0)

    def _keep_answer(self, key: Any, response: pb.MetadataFetchResponse) -> None:
        """Keep an answer for all observers at the same offset: brokers examined one by one get the
        same bytes.
        """
        size = ANSWER_BYTES + len(response.records)
        if self._shared_bytes + size > SHARED_MAX_BYTES:
            self._forget_answers()
        self._shared[key] = response
        self._shared_bytes += size

    def _forget_answers(self) -> None:
        self._shared.clear()
        self._shared_bytes = 0

    def _response(
        self,
        stream: MetadataStream,
        fetch: pb.MetadataFetchRequest,
        known: _Known,
        *,
        has_data: bool,
        stands: bool,
    ) -> pb.MetadataFetchResponse | None:
        """Return an answer for all observers at the same offset, or None if an error was sent
        instead.
        """
        source = self._source
        records = b""
        if has_data:
            max_bytes = min(fetch.max_bytes, OBSERVER_ANSWER_MAX_BYTES)
            try:
                records = source.read(fetch.fetch_offset, known.end, max_bytes)
            except ValueError as error:
                self._send_error(
                    stream,
                    ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, str(error), field="fetch_offset"),
                )
                return None
            except FatalError:
                # The replica has failed and reported it: this node sends no more answers.
                self._give_up()
                return None
        response = self._about_the_log()
        response.records, response.fetch_stands = records, stands
        if not fetch.generation:
            response.previous_generations.extend(source.previous_generations)
        return response

    def _give_up(self) -> None:
        for stream in self._streams.values():
            stream.fetch = None
        self._streams.clear()

    def _send_to_snapshot(self, stream: MetadataStream) -> None:
        """Answer that the requested offset lies below the log start: the observer must begin with a
        snapshot.
        """
        source = self._source
        snapshot_id = source.newest_snapshot
        if snapshot_id is None:
            raise InvariantError("the log begins above offset 0, but there is no snapshot")
        stream.sent_lao, stream.sent_epoch = (
            source.lowest_acknowledged_offset,
            source.controller_epoch,
        )
        response = self._about_the_log()
        if stream.fetch is not None and not stream.fetch.generation:
            response.previous_generations.extend(source.previous_generations)
        response.snapshot_id.CopyFrom(
            quorum_pb2.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)
        )
        stream.fetch = None
        self._send(stream, response)

    def _send_error(self, stream: MetadataStream, error: ApiError) -> None:
        stream.fetch = None
        response = pb.MetadataFetchResponse(
            error=error_to_wire(error),
            leader_id=error.leader_id,
            leader_endpoint=self._source.leader_endpoint(error.leader_id, stream.link.listener),
            controller_epoch=self._source.controller_epoch,
            generation=self._source.committed_generation,
            previous_generations=self._source.previous_generations,
            high_watermark=-1,
            lowest_acknowledged_offset=-1,
            cluster_id=self._source.cluster_id,
        )
        self._send(stream, response)

    @staticmethod
    def _send(stream: MetadataStream, response: pb.MetadataFetchResponse) -> None:
        try:
            stream.link.send(response)
        except LinkClosedError:
            return
        except ApiError as error:
            # Sent in the turn of a commit: only this stream may end.
            stream.link.close(f"cannot send the answer: {error}")
