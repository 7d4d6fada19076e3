"""Watches (I29): a watcher receives each selected change once, in order, with its values, and not
before the change may be shown.

* The first change is the first selected one after the token, or after the initial list.
* A watcher with a token has received every selected change up to the token.
* An initial list has the contents of the committed image at its offset.
* A watch at LAO shows nothing above the highest announced LAO; a watch at the tip only committed
  records.
* An entity is left out only if the watcher may not see it.
* After a recovery a watch of the former log ends without a token, and receives nothing of the new
  log.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.json import decode

from broker.watch.responses import listing
from raftlog.client.watch import Change
from raftlog.errors import ErrorCode
from raftlog.metadata.changes import WHOLE, ChangeRecorder, Position, ordered_changes
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record
from raftlog.metadata.selectors import parse_selectors, path_of
from raftlog.metadata.words import to_json
from raftlog.outcome import Token
from raftlog.wire.broker.v1 import broker_pb2
from simulation.checks import acl_history
from simulation.checks.api import BrokerView, Checker, ControllerView, fail, present
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.swarm.identities import CALLERS
from simulation.swarm.wanted import is_watcher, wanted_by

Said = tuple[str, object, object]
"""A change: the path of its entity, and its values before and after; None if not there."""


class _True(NamedTuple):
    """A change, as the committed log has it."""

    position: Position
    said: Said


class _Stream:
    """The progress of one watcher."""

    def __init__(self, generation: int | None = None) -> None:
        self.generation = generation
        """Generation of the log; None: the watcher has received nothing yet."""
        self.position: Position | None = None
        """Position up to which the watcher has all changes; None before its start."""
        self.next = 0
        """Index of the first change in the log that the watcher may receive next."""
        self.listed: dict[str, object] = {}
        """Entities of the initial list, until the list is checked."""


class Watches(Checker):
    """Checker of I29."""

    def __init__(self, ledger: Ledger, rights: acl_history.AclHistory) -> None:
        self._ledger, self._golden, self._rights = ledger, ledger.golden, rights
        self._draft = ChangeRecorder(Image())
        self._changes: list[_True] = []
        self._streams: dict[str, _Stream] = {}
        self.told = self.resumed = self.listed = 0
        self.outlived = 0
        """Number of tokens of an earlier log received after that log ended."""
        self.allowed = self.left_out = 0
        """Numbers of entities shown to, and left out for, watchers with limited permissions."""
        ledger.golden.listeners.append(self._committed)

    def going_on(self) -> dict[str, int | None]:
        """Return the log generation of each watcher; None before its first response."""
        return {watcher: stream.generation for watcher, stream in self._streams.items()}

    def begin_after(self, before: Watches) -> None:
        """Take over watches that continue for a while after the log they watch has ended."""
        self._streams = {
            watcher: _Stream(generation) for watcher, generation in before.going_on().items()
        }

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for one in ordered_changes(self._draft, logged.data):
            value = one.after if one.after is not None else one.before
            before, after = (
                None if each is None else decode(to_json(each)) for each in (one.before, one.after)
            )
            said = (path_of(one.kind, one.key, value), before, after)
            self._changes.append(_True(one.position, said))

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: object) -> None:
        if isinstance(message, broker_pb2.WatchManyResponse):
            message = message.response
        if not isinstance(message, broker_pb2.WatchResponse) or not is_watcher(peer):
            return
        if message.error.error_code == ErrorCode.INCONSISTENT_GENERATION and message.HasField(
            "token"
        ):
            fail(f"I29: {host.name} ends the watch of {peer} with its log, and sends a token")
        told = [one.offset for one in message.changes]
        shown = max([message.token.offset if message.HasField("token") else -1, *told])
        limit = self._golden.end - 1 if wanted_by(peer).tip else self._ledger.announced_lao
        if shown > limit:
            fail(f"I29: {host.name} shows {peer} {shown}, above {limit}")

    def watch_begun(self, host: str, since: Token | None) -> None:
        stream = self._streams[host] = _Stream(None if since is None else since.generation)
        if since is not None and since.generation == self._golden.generation:
            self.resumed += 1
            self._move(stream, Position(since.offset, since.part or WHOLE))

    def watch_told(self, host: str, change: Change) -> None:
        stream = self._streams[host]
        if not self._is_of(host, stream, change.token):
            return
        if change.initial:
            self.listed += 1
            stream.listed[change.path] = change.after
            self._move(stream, Position(change.offset))
            return
        self.told += 1
        if stream.listed:
            self._check_list(host, stream)
        if stream.position is None:
            # A watch that began without a token: its first change is the start.
            self._move(stream, Position(change.offset - 1))
        found = self._following(host, stream)
        said = (change.path, change.before, change.after)
        position = Position(change.offset, change.token.part or WHOLE)
        while found is not None and found.position < position:
            self._require_hidden(host, found.said[0], found.position.offset)
            found = self._next(host, stream)
        self._require_allowed(host, change.path, change.offset)
        if found is None or (found.position, found.said) != (position, said):
            fail(f"I29: {host} is told {said} at {tuple(position)}, not {found}")
        stream.position = position

    def watch_ended(self, host: str, token: Token) -> None:
        stream = self._streams[host]
        if not self._is_of(host, stream, token):
            return
        if stream.listed:
            self._check_list(host, stream)
        if stream.position is None:
            return
        found = self._following(host, stream)
        position = Position(token.offset, token.part or WHOLE)
        while found is not None and found.position <= position:
            self._require_hidden(host, found.said[0], found.position.offset)
            found = self._next(host, stream)

    def _is_of(self, host: str, stream: _Stream, token: Token) -> bool:
        """Return whether a token is of the current log: only that can be compared."""
        if stream.generation is None:
            stream.generation = token.generation
        if stream.generation != token.generation:
            fail(f"I29: {host} is told of {token}, and watches {stream.generation}")
        self.outlived += token.generation != self._golden.generation
        return token.generation == self._golden.generation

    def _move(self, stream: _Stream, position: Position) -> None:
        stream.position = position
        while stream.next < len(self._changes) and self._changes[stream.next].position <= position:
            stream.next += 1

    def _following(self, host: str, stream: _Stream) -> _True | None:
        selection = parse_selectors(wanted_by(host).selectors)
        self._move(stream, present(stream.position))
        for index in range(stream.next, len(self._changes)):
            if selection.matches(self._changes[index].said[0]):
                stream.next = index
                return self._changes[index]
        return None

    def _next(self, host: str, stream: _Stream) -> _True | None:
        stream.position = self._changes[stream.next].position
        return self._following(host, stream)

    def _require_allowed(self, host: str, path: str, offset: int) -> None:
        """Require that the watcher was permitted to see an entity at some time since a change."""
        site = CALLERS.get(host.partition(".")[0])
        if site is None:
            return
        self.allowed += 1
        right = _right_of(path)
        if not self._rights.ever_allows(
            site.principal, site.address, right, offset, self._golden.end - 1
        ):
            fail(
                f"I29: {host} is shown {path} of offset {offset}; since then {site.principal} at"
                f" {site.address} has not been allowed {right} (operation, type, name)"
            )

    def _require_hidden(self, host: str, path: str, offset: int) -> None:
        """Require that the watcher was forbidden to see an entity at some time since a change."""
        site = CALLERS.get(host.partition(".")[0])
        last = self._golden.end - 1
        if site is None or self._rights.always_allows(
            site.principal, site.address, _right_of(path), offset, last
        ):
            fail(f"I29: {host} was not told {path} of offset {offset}")
        self.left_out += 1

    def _check_list(self, host: str, stream: _Stream) -> None:
        image = self._golden.images[present(stream.position).offset]
        selection = parse_selectors(wanted_by(host).selectors)
        there = {
            one.path: decode(to_json(one.value))
            for one in listing(image, selection)
            if one is not None
        }
        if not stream.listed.items() <= there.items():
            fail(f"I29: {host} is shown {stream.listed} at {image.offset}, where there is {there}")
        for path in there:
            if path in stream.listed:
                self._require_allowed(host, path, image.offset)
            else:
                self._require_hidden(host, path, image.offset)
        stream.listed = {}


def _right_of(path: str) -> acl_history.Right:
    kind, _, rest = path.partition("/")
    if kind in ("topics", "partitions"):
        return acl_history.DESCRIBE, acl_history.TOPIC, rest.partition("/")[0]
    if kind == "configs":
        type_, name, _ = rest.split("/")
        of = {"topic": (acl_history.TOPIC, name), "group": (acl_history.GROUP, name)}.get(
            type_, (acl_history.CLUSTER, acl_history.OF_CLUSTER)
        )
        return acl_history.DESCRIBE_CONFIGS, *of
    if kind == "kv":
        return acl_history.DESCRIBE, acl_history.KEY_VALUE, rest
    named = {"hostnames": acl_history.HOSTNAME, "export_cursors": acl_history.EXPORT_CURSOR}
    if kind in named:
        return acl_history.DESCRIBE, named[kind], rest
    return acl_history.DESCRIBE, acl_history.CLUSTER, acl_history.OF_CLUSTER
