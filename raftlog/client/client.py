"""``raftlog.Client``: the blocking client, and ``raftlog.connect``."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from typing_extensions import Unpack

from raftlog.client.async_client import SURROUNDINGS, AsyncClient
from raftlog.client.blocking import (
    Attribute,
    Blocking,
    BlockingContext,
    BlockingStream,
    LoopThread,
    begun,
    blocking,
    making,
    on_loop,
    waiting,
)
from raftlog.client.cluster import (
    AsyncAcls,
    AsyncBrokers,
    AsyncCluster,
    AsyncExportCursors,
    AsyncFeatures,
    AsyncHostnames,
    AsyncQuorum,
)
from raftlog.client.configs import AsyncConfigs
from raftlog.client.consumer import POLL_TIMEOUT_S, AsyncRecords, Record
from raftlog.client.key_values import AsyncKeyValues
from raftlog.client.leases import AsyncLease, AsyncLeases
from raftlog.client.options import Addresses, ClientOptions
from raftlog.client.topics import AsyncPartitions, AsyncTopics
from raftlog.client.values import PlaceResult
from raftlog.client.watch import AsyncChanges, Change
from raftlog.errors import RaftlogError
from raftlog.outcome import LogOffset, Token, WriteResult


class Topics(Blocking[AsyncTopics]):
    """Calls about topics: ``client.topics``."""

    create = blocking(AsyncTopics.create)
    create_all = blocking(AsyncTopics.create_all)
    create_partitions = blocking(AsyncTopics.create_partitions)
    delete = blocking(AsyncTopics.delete)
    describe = blocking(AsyncTopics.describe)
    describe_all = blocking(AsyncTopics.describe_all)
    list = blocking(AsyncTopics.list)
    page = blocking(AsyncTopics.page)


class Configs(Blocking[AsyncConfigs]):
    """Calls about dynamic configs: ``client.configs``."""

    alter = blocking(AsyncConfigs.alter)
    describe = blocking(AsyncConfigs.describe)


class Cluster(Blocking[AsyncCluster]):
    """Calls about the cluster as a whole: ``client.cluster``."""

    describe = blocking(AsyncCluster.describe)


class Brokers(Blocking[AsyncBrokers]):
    """Calls about registered brokers: ``client.brokers``."""

    list = blocking(AsyncBrokers.list)
    api_versions = blocking(AsyncBrokers.api_versions)
    unregister = blocking(AsyncBrokers.unregister)
    visibility = blocking(AsyncBrokers.visibility)


class Features(Blocking[AsyncFeatures]):
    """Calls about feature levels: ``client.features``."""

    describe = blocking(AsyncFeatures.describe)
    update = blocking(AsyncFeatures.update)


class Quorum(Blocking[AsyncQuorum]):
    """Calls about the controllers and their voter set: ``client.quorum``."""

    add_voter = blocking(AsyncQuorum.add_voter)
    describe = blocking(AsyncQuorum.describe)
    remove_voter = blocking(AsyncQuorum.remove_voter)
    transfer = blocking(AsyncQuorum.transfer)


class Acls(Blocking[AsyncAcls]):
    """Calls about access control entries: ``client.acls``."""

    create = blocking(AsyncAcls.create)
    delete = blocking(AsyncAcls.delete)
    list = blocking(AsyncAcls.list)


class KeyValueStore(Blocking[AsyncKeyValues]):
    """Calls to the key-value store: ``client.kv``."""

    alter = blocking(AsyncKeyValues.alter)
    delete = blocking(AsyncKeyValues.delete)
    get = blocking(AsyncKeyValues.get)
    list = blocking(AsyncKeyValues.list)
    put = blocking(AsyncKeyValues.put)


class Lease(BlockingContext[AsyncLease]):
    """A lease from :meth:`Client.leases.grant`, kept alive in the background; a context manager."""

    abandon = on_loop(AsyncLease.abandon)
    revoke = blocking(AsyncLease.revoke)
    wait_lost = waiting(AsyncLease.wait_lost)
    is_held = Attribute[bool](AsyncLease.is_held)
    remaining_s = Attribute[float](AsyncLease.remaining_s)
    why_lost = Attribute[str](AsyncLease.why_lost)

    @property
    def granted(self) -> WriteResult[PlaceResult]:
        """The write that granted the lease; its items are the keys that were put with it."""
        return self._twin.granted

    @property
    def id(self) -> LogOffset:
        """Id of the lease: keys put with it are deleted when it ends."""
        return self._twin.id

    @property
    def ttl_s(self) -> float:
        """Time to live without a keep-alive, in seconds."""
        return self._twin.ttl_s


class Leases(Blocking[AsyncLeases]):
    """Calls about leases: ``client.leases``."""

    keep_alive = blocking(AsyncLeases.keep_alive)
    list = blocking(AsyncLeases.list)
    revoke = blocking(AsyncLeases.revoke)

    grant = making(AsyncLeases.grant, Lease)


class Partitions(Blocking[AsyncPartitions]):
    """Calls about partitions, their replicas and leaders: ``client.partitions``."""

    cancel_reassignment = blocking(AsyncPartitions.cancel_reassignment)
    describe = blocking(AsyncPartitions.describe)
    elect_all = blocking(AsyncPartitions.elect_all)
    elect_leaders = blocking(AsyncPartitions.elect_leaders)
    reassign = blocking(AsyncPartitions.reassign)
    reassign_all = blocking(AsyncPartitions.reassign_all)
    reassignments = blocking(AsyncPartitions.reassignments)


class ExportCursors(Blocking[AsyncExportCursors]):
    """Calls about export cursors: ``client.export_cursors``."""

    delete = blocking(AsyncExportCursors.delete)
    delete_all = blocking(AsyncExportCursors.delete_all)
    list = blocking(AsyncExportCursors.list)
    set = blocking(AsyncExportCursors.set)


class Hostnames(Blocking[AsyncHostnames]):
    """Calls about the mapping of hosts to broker ids: ``client.hostnames``."""

    delete = blocking(AsyncHostnames.delete)
    delete_all = blocking(AsyncHostnames.delete_all)
    list = blocking(AsyncHostnames.list)
    set = blocking(AsyncHostnames.set)


class Records(BlockingStream[AsyncRecords]):
    """The stream returned by :meth:`Client.consume`; a context manager and an iterable."""

    def __init__(self, thread: LoopThread, twin: AsyncRecords) -> None:
        super().__init__(thread, twin)
        self._ready: deque[Record] = deque()

    def __next__(self) -> Record:
        with self._reader:
            if not self._ready:
                self._ready.extend(self._read(self._twin.next_batch, self._twin.idle_timeout_s))
            if not self._ready or self._twin.closed:
                raise StopIteration
            return self._ready.popleft()

    def poll(self, timeout_s: float = POLL_TIMEOUT_S) -> list[Record]:
        """Return records that are buffered or arrive within the time: several from one partition,
        or none. Raises RaftlogError once the consumer is closed.
        """
        with self._reader:
            if not self._ready:
                return self._thread.call(lambda: self._twin.poll(timeout_s))
            records = [*self._ready]
            self._ready.clear()
            return records


class Changes(BlockingStream[AsyncChanges]):
    """The stream returned by :meth:`Client.watch`; a context manager and an iterable."""

    token = Attribute[Token | None](AsyncChanges.token)

    def __next__(self) -> Change:
        async def next_change() -> Change | None:
            return await anext(self._twin, None)

        with self._reader:
            change = self._read(next_change, self._twin.idle_timeout_s)
        if change is None:
            raise StopIteration
        return change


class Client(Blocking[AsyncClient]):
    """A client of one cluster, for one or several threads.

    ``bootstrap``: ``host:port`` of brokers, separated by commas; one that is running is enough. If
    empty, the environment names them. Options: :class:`ClientOptions`. Nothing connects before the
    first call. Raises ConfigError. Its calls are those of :class:`AsyncClient`, which it runs in
    its own thread. Ctrl-C interrupts a call; whether an interrupted write was executed is unknown.
    """

    def __init__(self, bootstrap: Addresses = "", **options: Unpack[ClientOptions]) -> None:
        if SURROUNDINGS.get() is not None:
            raise RaftlogError(
                "raftlog.Client needs a thread, which a simulation cannot provide: use "
                "raftlog.AsyncClient"
            )
        twin = AsyncClient(bootstrap, **options)
        thread = LoopThread(twin.close)
        super().__init__(thread, twin)
        self.topics = Topics(thread, twin.topics)
        self.configs = Configs(thread, twin.configs)
        self.cluster = Cluster(thread, twin.cluster)
        self.brokers = Brokers(thread, twin.brokers)
        self.features = Features(thread, twin.features)
        self.quorum = Quorum(thread, twin.quorum)
        self.acls = Acls(thread, twin.acls)
        self.kv = KeyValueStore(thread, twin.kv)
        self.leases = Leases(thread, twin.leases)
        self.partitions = Partitions(thread, twin.partitions)
        self.export_cursors = ExportCursors(thread, twin.export_cursors)
        self.hostnames = Hostnames(thread, twin.hostnames)

    _let_in = blocking(AsyncClient._let_in)

    def __repr__(self) -> str:
        return repr(self._twin).replace("AsyncClient", "Client", 1)

    @property
    def parts(self) -> tuple[LoopThread, AsyncClient]:
        """The client's thread and its asynchronous twin, for objects built on them."""
        return self._thread, self._twin

    produce = blocking(AsyncClient.produce)
    see = blocking(AsyncClient.see)
    forget = blocking(AsyncClient.forget)
    token = Attribute[Token | None](AsyncClient.token)

    consume = making(AsyncClient.consume, Records)
    watch = making(begun(AsyncClient.watch), Changes)

    def __enter__(self) -> Self:
        self._thread.require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and connections, and the thread. Idempotent."""
        self._thread.stop()


def connect(bootstrap: Addresses = "", **options: Unpack[ClientOptions]) -> Client:
    """Return a blocking client, after checking that its servers exist and accept it; if they do
    not, raise at once instead of after the first call's timeout. Raises NetworkError, TlsError,
    SaslAuthenticationFailedError and ConfigError.
    """
    from raftlog.client.admission import require_servers

    client = Client(bootstrap, **options)
    checked = client._twin._options
    require_servers(checked)
    if checked.token is not None:
        try:
            client._let_in()
        except BaseException:
            client.close()
            raise
    return client
