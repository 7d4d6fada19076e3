"""Every configuration key: its name, type, default, unit, and reasons to change it.

A field's name with dots for underscores is its key (Kafka's, if Kafka has one); ``RAFTLOG_`` and
the name in capitals is its environment variable. ``raftlog config keys`` prints this file as a
table.

The quorum's defaults are defined in ``raftlog.quorum.config``. Other modules take their defaults
from here (``Settings.request_timeout_ms``), so this one imports nothing slow, such as pydantic,
which ``checked.py`` uses.
"""

# ruff: noqa: RUF009  (_key is dataclasses.field)

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple

from raftlog.bounds import TransportLimits
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.node.config.fields import (
    Endpoints,
    ListenerKeys,
    ListenerName,
    ListenerNames,
    NodeId,
    NonNegative,
    Positive,
    ProtocolMap,
    Strings,
    Voters,
    Within,
)
from raftlog.quorum import config as quorum

BOTH = ("controller", "broker")
CONTROLLER = ("controller",)
BROKER = ("broker",)
_TRANSPORT = TransportLimits()


class KeyInfo(NamedTuple):
    """The documentation of a key, in addition to its type and default. ``roles``: the roles that
    read it.
    """

    doc: str
    unit: str
    roles: tuple[str, ...]


def _key(default: Any, doc: str, *, unit: str = "", roles: tuple[str, ...] = BOTH) -> Any:
    return field(default=default, metadata={"info": KeyInfo(doc, unit, roles)})


@dataclass(frozen=True)
class Settings:
    """The values of all keys, given or default, before the rules between them are checked.

    A class attribute is the key's default.
    """

    # --- identity --------------------------------------------------------------------------------
    process_roles: Strings = _key(
        (),
        'The role of this process: ["controller"] or ["broker"]. Required. A process has one role:'
        " a broker that is paused or out of memory must not stop a voter with it.",
    )
    node_id: NodeId | None = _key(
        None,
        "The node's number, unique in the cluster; `storage format` fixes it. Required for a"
        " controller. A broker without it gets an id at its first start: the id of its hostname,"
        " otherwise the only id whose broker is missing, otherwise a new id (KIP-426).",
    )
    cluster_id: str = _key(
        "",
        "The cluster's id, the same on every node. Required: a node with a wrong address list must"
        " not join another cluster. Make one with `raftlog storage random-uuid`.",
    )
    log_dirs: Strings = _key(
        (),
        "The data directory, exactly one. A relative path starts at the directory of the"
        " configuration file.",
    )
    metadata_log_dir: str = _key(
        "",
        "The directory of a controller's log; if empty, log.dirs. Use a separate disk: each commit"
        " waits for its fsync.",
    )

    # --- listeners and other nodes ---------------------------------------------------------------
    listeners: Endpoints = _key(
        (),
        "The addresses that this node listens on: host:port, or NAME://host:port for each of"
        " several. Port 0 means any free port. A controller's default is its own address in"
        " controller.quorum.voters.",
    )
    advertised_listeners: Endpoints = _key(
        (),
        "The addresses that other nodes and clients connect to, each with the name of its listener."
        " Default: listeners; for a controller with one listener, its own address in"
        " controller.quorum.voters. Required behind NAT, or when listening on 0.0.0.0.",
    )
    listener_security_protocol_map: ProtocolMap = _key(
        (),
        "The protocol of each listener by its name: NAME:PLAINTEXT or NAME:SSL. Listeners named"
        " PLAINTEXT and SSL need no entry; a node with one listener and no map has TLS if"
        " tls.certificate.file is set.",
    )
    controller_listener_names: ListenerNames = _key(
        (),
        "The listeners over which nodes reach controllers. On a controller: those of its listeners"
        " that serve nodes, first the one that it uses itself to reach the other controllers; the"
        " rest serve only clients. On a broker: the name, and so the protocol, of the controllers'"
        " listener to which it connects. Required with several listeners.",
    )
    inter_broker_listener_name: ListenerName = _key(
        "",
        "The listener on which brokers fetch from each other; the rest serve only clients."
        " Required with several listeners.",
        roles=BROKER,
    )
    listener_name: ListenerKeys = _key(
        (),
        "Keys of one listener, which override those of the node: listener.name.NAME.KEY with the"
        " name in lower case, where KEY is tls.certificate.file, tls.key.file, tls.ca.file or"
        " ssl.client.auth. They also apply when the node connects to listeners with this name.",
    )
    controller_quorum_voters: Voters = _key(
        (),
        'The initial voters, ["1@host:port", ...], the same on every controller. Use an odd number:'
        " three survive the loss of one, five of two. A new quorum elects its first leader only"
        " when all of them are up. Empty if `storage format` names the voters."
        " Once the log contains a voter set, that one applies; but a voter that does not answer"
        " at its address in the log is looked for here, too.",
    )
    controller_quorum_bootstrap_servers: Endpoints = _key(
        (),
        "Controllers to ask for the leader at startup, [host:port, ...]. Default: those in"
        " controller.quorum.voters. A controller that joins a running quorum needs it. Controllers"
        " also look here for voters that do not answer at their addresses in the log.",
    )
    controller_quorum_auto_join_enable: bool = _key(
        False,
        "A controller that is not a voter becomes one automatically as soon as it is caught up. On"
        " a new disk it replaces the voter that it was before (KIP-853). If its log is damaged, and"
        " a majority continues without it, it sets the damaged data aside and joins again.",
        roles=CONTROLLER,
    )
    controller_quorum_voter_replace_after_ms: NonNegative = _key(
        0,
        "A voter that has not fetched from the leader for this long is replaced by a spare: a"
        " controller that is not a voter, has this key set, too, and is caught up. 0: voters are"
        " replaced only by an operator. Must be longer than any restart of a controller, and the"
        " same on every controller.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_leader_priority: Annotated[int, Within(0, quorum.MAX_LEADER_PRIORITY)] = _key(
        0,
        "The leadership is transferred to the voter with the highest priority if that voter is"
        " caught up and has free disk space. Each time it then loses the leadership, it waits"
        " longer"
        " before it leads again. If all voters have the same priority, the elected leader stays.",
        roles=CONTROLLER,
    )
    http_listener: Endpoints = _key(
        (),
        "The address that serves /metrics, /livez and /readyz, host:port; empty for none. :port"
        " listens only on 127.0.0.1. Port 0 means any free port. https://host:port serves TLS with"
        " tls.certificate.file and so on (or listener.name.https.tls.certificate.file); then"
        " everything except /livez and /readyz requires a client certificate.",
    )
    lane_port_offset: Annotated[int, Within(0, 20_000)] = _key(
        LANE_PORT_OFFSET,
        "Each listener has a second TCP port on its host, this far above its own, to which links"
        " move once gRPC has admitted them: the requests and watches of clients, and at a"
        " controller the fetches of followers and brokers. It halves the cost of a message. It has"
        " TLS if the listener has. With 0 all messages stay on gRPC; so do those of peers that"
        " cannot reach the port.",
        roles=BOTH,
    )
    http_console_token_file: str = _key(
        "",
        "The file with the token that the console at /console of http.listener requires: one word"
        " of at least 16 characters, in a file that only its owner can read. A node with TLS has no"
        " console without it. A relative path starts at the directory of the configuration file.",
    )

    # --- the quorum ------------------------------------------------------------------------------
    controller_quorum_election_timeout_ms: Positive = _key(
        quorum.ELECTION_TIMEOUT_MS,
        "How long a node without a leader waits before it requests votes. It matters at cold starts"
        " and after failed elections; the death of a leader's process is detected at once.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_election_jitter_max_ms: Positive = _key(
        quorum.ELECTION_JITTER_MAX_MS,
        "Random time added to the election timeout, and half of it to the fetch timeout, so that"
        " two nodes do not request votes at the same instant.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_election_backoff_max_ms: Positive = _key(
        quorum.ELECTION_BACKOFF_MAX_MS,
        "The longest wait before a candidate tries again after a refused or split election.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_fetch_timeout_ms: Positive = _key(
        quorum.FETCH_TIMEOUT_MS,
        "A follower that hears nothing from the leader for this long requests votes. A leader"
        " resigns when no majority has fetched from it, or its disk has made no progress, for 1.5"
        " times as long. Raise it if pauses are longer, or if a round trip between voters takes"
        " more than half of it.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_fetch_max_wait_ms: Positive = _key(
        quorum.FETCH_MAX_WAIT_MS,
        "How long an idle leader parks a fetch. It must be well below the fetch timeout, because"
        " only the reply keeps that timeout from expiring.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_fetch_max_bytes: Positive = _key(
        quorum.FETCH_MAX_BYTES,
        "The maximum number of log bytes in one fetch reply. With more, a follower that is far"
        " behind catches up faster, but uses more memory.",
        unit="bytes",
        roles=CONTROLLER,
    )
    controller_quorum_request_timeout_ms: Positive = _key(
        quorum.REQUEST_TIMEOUT_MS,
        "How long a quorum request may stay unanswered. Then the node sends it again, and replaces"
        " the connection if nothing has arrived on it.",
        unit="ms",
        roles=CONTROLLER,
    )

    # --- brokers as the controller sees them -----------------------------------------------------
    broker_heartbeat_interval_ms: Positive = _key(
        2000,
        "How often a broker sends a heartbeat to the active controller.",
        unit="ms",
        roles=BROKER,
    )
    broker_session_timeout_ms: Positive = _key(
        9000,
        "The controller fences a broker that is silent for this long. Must be more than two"
        " heartbeat intervals, so that one lost message fences no broker.",
        unit="ms",
        roles=BOTH,
    )
    broker_metadata_lag_max_ms: Positive = _key(
        30000,
        "The controller fences a broker that sends heartbeats but whose applied metadata is older"
        " than this: otherwise it would hold back the lowest acknowledged offset forever.",
        unit="ms",
        roles=CONTROLLER,
    )
    broker_metadata_lag_probation_ms: Positive = _key(
        10000,
        "The shortest time that a broker stays fenced after it was fenced for its lag or its disk;"
        " it doubles each time.",
        unit="ms",
        roles=CONTROLLER,
    )
    broker_metadata_lag_probation_max_ms: Positive = _key(
        600_000,
        "The longest time that a broker stays fenced for its lag or its disk. A broker that is not"
        " fenced for this reason for so long starts over at the shortest time.",
        unit="ms",
        roles=CONTROLLER,
    )
    broker_id_adopt_after_ms: Positive = _key(
        600_000,
        "A broker id that holds replicas counts as missing when its broker has been fenced or"
        " unregistered for this long. If exactly one id is missing, a broker without an id gets it."
        " Must be longer than any restart of a broker.",
        unit="ms",
        roles=CONTROLLER,
    )
    reserved_broker_max_id: NonNegative = _key(
        1000,
        "Generated broker ids begin above this. Configured ids belong at or below it.",
        roles=CONTROLLER,
    )
    num_partitions: Positive = _key(
        1,
        "The number of partitions of a topic if the request does not specify it.",
        roles=CONTROLLER,
    )
    default_replication_factor: Positive = _key(
        3,
        "The replication factor of a topic if the request does not specify it; limited to the"
        " number of unfenced brokers.",
        roles=CONTROLLER,
    )
    auto_leader_rebalance_enable: bool = _key(
        True,
        "Preferred leaders (the first replicas) get their partitions back automatically when they"
        " can lead again.",
        roles=CONTROLLER,
    )
    leader_imbalance_check_interval_seconds: Positive = _key(
        300,
        "How often the controller looks for partitions whose preferred leader could lead but does"
        " not.",
        unit="s",
        roles=CONTROLLER,
    )
    unclean_leader_election_interval_ms: Positive = _key(
        300_000,
        "How often the controller looks for partitions without a leader in topics with"
        " unclean.leader.election.enable=true, which may have been set after the leader was lost."
        " `raftlog partitions elect --unclean` acts at once.",
        unit="ms",
        roles=CONTROLLER,
    )
    unclean_recovery_timeout_ms: Positive = _key(
        30_000,
        "How long a partition without an ISR and without eligible leader replicas waits for reports"
        " from all replicas if unclean.recovery.strategy is aggressive.",
        unit="ms",
        roles=CONTROLLER,
    )
    max_records_per_request: Positive = _key(
        10_000,
        "The maximum number of records that one request may write. They are committed as one batch,"
        " and every later write waits for it.",
        unit="records",
        roles=CONTROLLER,
    )
    config_value_max_bytes: Positive = _key(
        32_768, "The largest value of a topic or broker config.", unit="bytes", roles=CONTROLLER
    )
    progress_interval_ms: Positive = _key(
        1000,
        "The shortest time between two progress records, which write the lowest acknowledged offset"
        " and the brokers' applied offsets to the log.",
        unit="ms",
        roles=CONTROLLER,
    )
    producer_id_expiration_ms: Positive = _key(
        86_400_000,
        "The controller closes an exactly-once client that has written nothing for this long,"
        " according to the timestamps in the log, provided that the same time has also passed since"
        " this controller started. From then on a retry of one of its writes is an error.",
        unit="ms",
        roles=CONTROLLER,
    )
    max_clients: Positive = _key(
        1000,
        "The maximum number of open exactly-once clients. Above it, the controller closes the"
        " longest idle client of the principal that has the most. Each client may keep the results"
        " of 256 writes in memory.",
        roles=CONTROLLER,
    )

    kv_max_keys: Annotated[int, Within(1, 1_000_000)] = _key(
        10_000,
        "The maximum number of keys in the key-value store. Every node has all keys in memory.",
        roles=CONTROLLER,
    )
    kv_max_bytes: Positive = _key(
        16 << 20,
        "The maximum total size of all keys and values in the key-value store.",
        unit="bytes",
        roles=CONTROLLER,
    )

    lease_max_count: Positive = _key(
        10_000,
        "The maximum number of leases in the key-value store.",
        roles=CONTROLLER,
    )
    lease_ttl_min_ms: Positive = _key(
        1_000,
        "The shortest TTL of a lease. A lease that is shorter than a failover expires in each"
        " failover.",
        unit="ms",
        roles=CONTROLLER,
    )
    lease_ttl_max_ms: Positive = _key(
        86_400_000,
        "The longest TTL of a lease.",
        unit="ms",
        roles=CONTROLLER,
    )

    metadata_log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20,
        "Free space to keep on the file system of a controller's log, at most a twentieth of its"
        " size. A controller below it does not lead if another one can. While no majority of the"
        " voters has this much free space, writes are refused. 0: do not monitor the disk.",
        unit="bytes",
        roles=CONTROLLER,
    )

    # --- snapshots -------------------------------------------------------------------------------
    metadata_log_max_record_bytes_between_snapshots: Positive = _key(
        20 << 20,
        "A node takes a snapshot when it has applied this much log since the last one. If its state"
        " is larger than 4 MiB, it waits for at least four times the size of the state, which"
        " bounds the cost of snapshots. A smaller value means a faster start and more writing.",
        unit="bytes",
        roles=CONTROLLER,
    )
    metadata_log_max_snapshot_interval_ms: NonNegative = _key(
        3_600_000,
        "A node takes a snapshot when the last one is this old and it has applied a record since."
        " 0: never because of age.",
        unit="ms",
        roles=CONTROLLER,
    )
    metadata_max_retention_bytes: Positive = _key(
        100 << 20,
        "When the log and the snapshots of a node are larger than this, it drops the oldest"
        " snapshot, and the log up to the end of the next one. It always keeps the newest snapshot."
        " Dropped records can no longer be exported.",
        unit="bytes",
        roles=CONTROLLER,
    )
    metadata_max_retention_ms: Positive = _key(
        604_800_000,
        "A snapshot older than this is dropped in the same way, if there is a newer one.",
        unit="ms",
        roles=CONTROLLER,
    )
    metadata_export_cursor_max_bytes: Positive = _key(
        1 << 30,
        "Nodes keep the log that an export with a cursor (`raftlog export --cursor`) has yet to"
        " read, until the log and the snapshots of a node are larger than this: a forgotten cursor"
        " must not fill the disk. Then the log start passes the cursor; the node logs an error and"
        " counts it. At or below metadata.max.retention.bytes, cursors prevent no deletion because"
        " of size. The same limit applies to the log that a node keeps for nodes that fetch a"
        " snapshot from it.",
        unit="bytes",
        roles=CONTROLLER,
    )

    # --- the broker itself -----------------------------------------------------------------------
    broker_rack: str = _key(
        "",
        "The failure domain of this broker. The controller spreads the replicas of new partitions"
        " over racks, and clients see the rack.",
        roles=BROKER,
    )
    broker_fencing_timeout_ms: Positive = _key(
        12000,
        "A broker that has not reached the controller for this long fences itself (KIP-343). Must"
        " be longer than the session timeout, so that the controller has moved the broker's"
        " leaderships before the broker stops serving.",
        unit="ms",
        roles=BROKER,
    )
    broker_disk_hang_timeout_ms: Positive = _key(
        5000,
        "A broker whose disk takes this long for one flush of partitions reports that, and the"
        " controller fences it, so that other replicas lead; the disk is checked every second. The"
        " broker is unfenced after the disk recovers, later each time it hangs"
        " (broker.metadata.lag.probation.ms). If most brokers' disks hang, none is fenced.",
        unit="ms",
        roles=BROKER,
    )
    controlled_shutdown_timeout_ms: Positive = _key(
        30000,
        "How long a broker that shuts down waits for the controller to move its leaderships and to"
        " release it; after that it exits anyway. Must be at least two heartbeat intervals. A"
        " broker"
        " that cannot connect to any controller exits after 1.5 s.",
        unit="ms",
        roles=BROKER,
    )
    initial_broker_registration_timeout_ms: Positive = _key(
        60000,
        "A broker that cannot register within this time exits. A broker without an id that must"
        " wait for another broker waits longer.",
        unit="ms",
        roles=BROKER,
    )
    broker_id_generation_force: bool = _key(
        False,
        "A broker without an id, on a host that has none, gets a new id at once, even if another"
        " broker that holds replicas is absent. The absent broker's partitions keep one replica too"
        " few. Remove this key when the broker has its id.",
        roles=BROKER,
    )

    # --- partition replicas ----------------------------------------------------------------------
    replica_lag_time_max_ms: Positive = _key(
        30_000,
        "A follower that has not been caught up with its leader for this long leaves the in-sync"
        " replicas. If it is shorter, a slow disk costs redundancy; if it is longer, writes with"
        " acks=all wait longer for a dead follower.",
        unit="ms",
        roles=BROKER,
    )
    replica_fetch_wait_max_ms: Positive = _key(
        500,
        "How long a leader parks a follower's fetch while there is nothing new. Must be less than"
        " replica.lag.time.max.ms.",
        unit="ms",
        roles=BROKER,
    )
    replica_fetch_max_bytes: Positive = _key(
        1 << 20,
        "The maximum number of bytes from one partition in a reply to a follower. A single larger"
        " batch is sent anyway.",
        unit="bytes",
        roles=BROKER,
    )
    replica_fetch_response_max_bytes: Positive = _key(
        10 << 20,
        "The maximum number of bytes from all partitions in a reply to a follower.",
        unit="bytes",
        roles=BROKER,
    )
    replica_fetch_backoff_ms: Positive = _key(
        200,
        "How long a follower waits after a refused fetch before it fetches the partition again.",
        unit="ms",
        roles=BROKER,
    )
    replica_socket_timeout_ms: Positive = _key(
        30_000,
        "A follower closes the connection to a leader whose reply is later than the longest parking"
        " time plus this.",
        unit="ms",
        roles=BROKER,
    )
    log_retention_check_interval_ms: Positive = _key(
        300_000,
        "How often a broker deletes old records from the partitions that it leads (retention.ms,"
        " retention.bytes).",
        unit="ms",
        roles=BROKER,
    )
    log_segment_delete_delay_ms: NonNegative = _key(
        60_000,
        "How long a broker keeps a replica that is no longer assigned to it, for instance after the"
        " topic was deleted. If it is assigned again within this time, its records are still there."
        " 0: it is deleted at once.",
        unit="ms",
        roles=BROKER,
    )
    log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20,
        "Free space to keep on the file system of a broker's partitions, at most a twentieth of its"
        " size. A broker below it stores no records: it refuses producers, other brokers lead its"
        " partitions, and it leaves their ISRs until it has space. It continues to serve reads."
        " 0: do not monitor the disk.",
        unit="bytes",
        roles=BROKER,
    )

    # --- requests --------------------------------------------------------------------------------
    request_timeout_ms: Positive = _key(
        30000, "The timeout of a request that does not specify one.", unit="ms", roles=BOTH
    )
    request_timeout_max_ms: Positive = _key(
        300_000,
        "The longest timeout; a longer one in a request is reduced to it. A waiting request"
        " occupies a place that others need.",
        unit="ms",
        roles=BOTH,
    )
    socket_request_max_bytes: Positive = _key(
        _TRANSPORT.max_message_bytes,
        "The largest message; a larger one is refused. Requests to a server have lower limits: 32"
        " MiB for clients of a broker, 8 MiB for clients of a controller.",
        unit="bytes",
    )

    # --- watches ---------------------------------------------------------------------------------
    watch_max_watchers: Positive = _key(
        10_000,
        "The maximum number of metadata watches that a broker serves. One connection can have at"
        " most as many as it leaves free for the others.",
        roles=BROKER,
    )
    watch_history_max_bytes: Positive = _key(
        32 << 20,
        "The approximate memory that a broker uses for past changes. A watch can continue at"
        " another broker as long as that broker still has the changes after the watch's token.",
        unit="bytes",
        roles=BROKER,
    )
    watch_max_unsent_bytes: Positive = _key(
        1 << 20,
        "A watch with more unread bytes than this receives nothing new until it has read them. If"
        " the changes that it needs have left the history by then, it ends.",
        unit="bytes",
        roles=BROKER,
    )
    watch_progress_interval_ms: Positive = _key(
        30_000,
        "How often a watch without changes receives its position, if it does not request another"
        " interval.",
        unit="ms",
        roles=BROKER,
    )

    # --- connections -----------------------------------------------------------------------------
    max_connections: Positive = _key(
        _TRANSPORT.max_connections,
        "The maximum number of open connections on all listeners together; each listener has an"
        " equal share, and further connections are closed at once. It is lower if the process is"
        " not permitted to open enough files.",
    )
    connections_max_per_ip: Positive = _key(
        _TRANSPORT.max_connections_per_address,
        "The maximum number of connections from one address that have an open call; further ones"
        " are refused with a time to wait. Connections from other nodes count, too.",
    )
    connections_max_per_principal: Positive = _key(
        _TRANSPORT.max_connections_per_principal,
        "Like connections.max.per.ip, for one principal of a token or one certificate subject.",
    )
    connections_max_idle_ms: Positive = _key(
        _TRANSPORT.connection_max_idle_ms,
        "A node closes a connection that has had no open call for this long.",
        unit="ms",
    )
    queued_max_response_bytes: Positive = _key(
        _TRANSPORT.max_queued_total_bytes,
        "The maximum number of bytes of replies that all peers together may leave unread. Above it"
        " the node disconnects the peer that has read nothing for the longest time.",
        unit="bytes",
    )

    # --- TLS -------------------------------------------------------------------------------------
    security_plaintext_allow: bool = _key(
        False,
        "Allow listeners without TLS, and plain HTTP, on addresses that other hosts can reach. Any"
        " process that can connect to them can read, change and destroy the cluster: only for a"
        " network that contains nothing else.",
    )
    tls_certificate_file: str = _key(
        "",
        "This node's certificate chain, PEM. With the key and the certificate authorities it"
        " enables mutual TLS on every listener that listener.security.protocol.map does not"
        " exclude.",
    )
    tls_key_file: str = _key("", "The private key of the certificate, PEM.")
    tls_ca_file: str = _key(
        "", "The certificate authorities that sign the certificates of the other nodes, PEM."
    )
    grpc_reflection_enable: bool = _key(
        False,
        "Enable gRPC reflection on SSL listeners, for tools like grpcurl: it lists every service"
        " and message. PLAINTEXT listeners always have it.",
    )
    node_principal_rule: str = _key(
        "",
        "The name in a node's certificate that identifies the node, for instance CN=node-{id},"
        " DNS:node-{id}.example.org or URI:spiffe://example.org/raftlog/{id}. With it, messages"
        " under a node id (votes, fetches, registrations, heartbeats, reports) are accepted only"
        " with that node's own certificate, and the principal in the log is the one in a client's"
        " certificate. Empty: any certificate of the authority may send anything, and the"
        " principals that clients state are not verified. Must be the same on every node; needs"
        " TLS, and a node.id on every broker.",
    )
    ssl_principal_mapping_rules: str = _key(
        "DEFAULT",
        "How a client's certificate is mapped to a principal, if node.principal.rule is set. Rules,"
        " separated by commas: RULE:pattern/replacement/[LU], or DEFAULT. The first rule whose"
        " pattern matches the whole subject (RFC 2253) applies; DEFAULT uses the whole subject. For"
        " instance, RULE:CN=([^,]*).*/$1/L,DEFAULT maps CN=Alice,O=Example to User:alice. A subject"
        " that no rule matches has no principal.",
    )
    authorizer_class_name: Literal["", "StandardAuthorizer"] = _key(
        "",
        "StandardAuthorizer: each request must be allowed by an access control entry, see"
        " docs/security.md. Empty: any client that can connect may do everything. Needs"
        " node.principal.rule; must be the same on every node.",
    )
    super_users: str = _key(
        "",
        "Principals that may do everything, separated by semicolons, for instance"
        " User:alice;User:bob. Must be the same on every node.",
    )
    allow_everyone_if_no_acl_found: bool = _key(
        False,
        "Whether every principal may do everything to a resource without access control entries.",
    )
    max_requests_per_second_per_principal: NonNegative = _key(
        0,
        "How many requests per second one principal may send to this node, over all its"
        " connections; more are refused with the time to wait. Nodes have no limit. 0: no limit."
        " Needs node.principal.rule.",
    )
    max_requests_per_second_per_ip: NonNegative = _key(
        0, "Like max.requests.per.second.per.principal, for one address."
    )
    audit_log_file: str = _key(
        "",
        "The file in which this node records refused requests and every request that changes"
        " something, with their principals, one JSON object per line. Needs node.principal.rule."
        " Empty: no audit log.",
    )
    audit_log_max_bytes: Positive = _key(
        100 << 20, "The size above which the audit log starts a new file.", unit="bytes"
    )
    audit_log_max_backups: NonNegative = _key(10, "The number of older audit log files to keep.")
    audit_log_reads: bool = _key(
        False, "Record allowed reads and produced records in the audit log, too."
    )
    ssl_client_auth: Literal["required", "none"] = _key(
        "required",
        "Whether clients must present a certificate of the authority. With `none`, TLS requests no"
        " certificate, and each call needs a token; nodes could not identify themselves, so it is"
        " only for listeners of clients. Kafka's `requested` does not exist: gRPC for Python cannot"
        " request an optional certificate.",
    )

    # --- tokens ----------------------------------------------------------------------------------
    sasl_oauthbearer_jwks_endpoint_url: str = _key(
        "",
        "The URL of the token issuer's public keys (a JWK set): https://, file:///, or http:// on"
        " this host. Together with the issuer and the audience it allows clients to present bearer"
        " tokens (JWT) signed by one of these keys; the principal in the log is then the token's."
        " Needs TLS and node.principal.rule.",
    )
    sasl_oauthbearer_expected_issuer: str = _key(
        "", "The token issuer: the claim iss of a token must equal it."
    )
    sasl_oauthbearer_expected_audience: Strings = _key(
        (), "The token audiences: the claim aud of a token must contain one of them."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Positive = _key(
        3_600_000,
        "How often the issuer's keys are fetched. A file is read again when it changes.",
        unit="ms",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Positive = _key(
        10_000,
        "How long to wait after a fetch before the next one, if it failed or if a token names an"
        " unknown key. Anybody can send such a token, so this limits the requests that strangers"
        " can cause at the issuer's endpoint. Known keys stay valid while fetches fail.",
        unit="ms",
    )
    sasl_oauthbearer_clock_skew_seconds: Annotated[NonNegative, Within(0, 3_600)] = _key(
        30,
        "How much the issuer's clock may differ: a token is valid this much earlier and longer.",
        unit="s",
    )
    sasl_oauthbearer_sub_claim_name: str = _key(
        "sub", "The claim that contains the principal: User: followed by the claim's value."
    )

    # --- logs ------------------------------------------------------------------------------------
    log_level: Literal["debug", "info", "warning", "error"] = _key(
        "info", "The lowest severity that is logged."
    )
    log_format: Literal["auto", "console", "json"] = _key(
        "auto", "The format of log lines on stderr; auto: console on a terminal, otherwise JSON."
    )


def key_of(field_name: str) -> str:
    """Return the configuration key of a field."""
    return field_name.replace("_", ".")


KEYS: dict[str, KeyInfo] = {one.name: one.metadata["info"] for one in fields(Settings)}
"""Documentation of each key, by field name of :class:`Settings`."""

FIELD_OF_KEY: dict[str, str] = {key_of(name): name for name in KEYS}
"""Field name of :class:`Settings` by configuration key."""


def values_of(kind: type[Any], settings: Settings) -> dict[str, Any]:
    """Return the values of the keys that are also fields of the dataclass ``kind``, by
    field name.
    """
    return {one.name: getattr(settings, one.name) for one in fields(kind) if one.name in KEYS}
