"""Every configuration key: its name, type, default, unit, and why one would change it.

A field's name with dots for underscores is its key (Kafka's where Kafka has one); ``RAFTLOG_`` and
the name in capitals is its environment variable. ``raftlog config keys`` prints this file as a
table.

The defaults of the quorum are its own; other parts of the program take their defaults from here
(``Settings.request_timeout_ms``), so this file imports nothing heavy: pydantic checks values in
``load.py``.
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
    """The documentation of a key beside its type and default. ``roles``: the roles that read it."""

    doc: str
    unit: str
    roles: tuple[str, ...]


def _key(default: Any, doc: str, *, unit: str = "", roles: tuple[str, ...] = BOTH) -> Any:
    return field(default=default, metadata={"info": KeyInfo(doc, unit, roles)})


@dataclass(frozen=True)
class Settings:
    """The values of all keys, as given or defaulted, before they are checked against each other.

    A field of the class itself is the key's default.
    """

    # --- who this node is ------------------------------------------------------------------------
    process_roles: Strings = _key(
        (),
        'The role of this process: ["controller"] or ["broker"]. Required. A process has one role:'
        " a broker that is paused or out of memory must not stop a voter with it.",
    )
    node_id: NodeId | None = _key(
        None,
        "The node's number, unique in the cluster; `storage format` fixes it. Required for a"
        " controller. A broker without it gets an id at its first start: the one of its hostname,"
        " or else the one id whose broker is missing, or else a new one (KIP-426).",
    )
    cluster_id: str = _key(
        "",
        "The cluster's id, the same on every node. Required: a node with a wrong address list must"
        " not join another cluster. Make one with `raftlog storage random-uuid`.",
    )
    log_dirs: Strings = _key(
        (),
        "The data directory, exactly one. A relative path counts from the directory of the"
        " configuration file.",
    )
    metadata_log_dir: str = _key(
        "",
        "The directory of a controller's log; empty: log.dirs. Give it a disk of its own: each"
        " commit waits for its fsync.",
    )

    # --- where it listens, and whom it knows -----------------------------------------------------
    listeners: Endpoints = _key(
        (),
        "The addresses that this node listens on, host:port, or NAME://host:port of each of"
        " several. Port 0 takes a free port. The default of a controller is its own address in"
        " controller.quorum.voters.",
    )
    advertised_listeners: Endpoints = _key(
        (),
        "The addresses that other nodes and clients are given, each under the name of its listener."
        " Default: listeners; for a controller with one listener, its own address in"
        " controller.quorum.voters. Needed behind NAT, or when listening on 0.0.0.0.",
    )
    listener_security_protocol_map: ProtocolMap = _key(
        (),
        "The protocol of each listener by its name: NAME:PLAINTEXT or NAME:SSL. Where it does not"
        " say: PLAINTEXT:PLAINTEXT,SSL:SSL; a node with one listener and no map has TLS if"
        " tls.certificate.file is set.",
    )
    controller_listener_names: ListenerNames = _key(
        (),
        "The listeners of controllers that nodes use. On a controller: those of its own that serve"
        " nodes, first the one that it uses itself to reach the others; the rest serves clients"
        " alone. On a broker: the name, and so the protocol, by which it connects to controllers."
        " Required with several listeners.",
    )
    inter_broker_listener_name: ListenerName = _key(
        "",
        "The listener on which brokers fetch from each other; the rest serves clients alone."
        " Required with several listeners.",
        roles=BROKER,
    )
    listener_name: ListenerKeys = _key(
        (),
        "Keys of one listener, before those of the node: listener.name.NAME.KEY with the name in"
        " lower case, where KEY is tls.certificate.file, tls.key.file, tls.ca.file or"
        " ssl.client.auth. They count where the node connects to listeners of this name, too.",
    )
    controller_quorum_voters: Voters = _key(
        (),
        'The initial voters, ["1@host:port", ...], the same on every controller. Use an odd number:'
        " three survive the loss of one, five of two. All of them must be up once before a new"
        " quorum has a leader. Empty if `storage format` names the voters."
        " Once the log contains a voter set, that one counts; but a voter that does not answer"
        " where the log has it is looked for here, too.",
    )
    controller_quorum_bootstrap_servers: Endpoints = _key(
        (),
        "Controllers to ask for the leader at the start, [host:port, ...]. Default: those of"
        " controller.quorum.voters. A controller that joins a running quorum needs it. Controllers"
        " look here for voters that do not answer where the log has them.",
    )
    controller_quorum_auto_join_enable: bool = _key(
        False,
        "A controller that is not a voter becomes one by itself as soon as it is caught up. On a"
        " new disk it replaces the voter that it was before (KIP-853). If its log is damaged, and a"
        " majority goes on without it, it sets the damaged data aside and joins anew.",
        roles=CONTROLLER,
    )
    controller_quorum_voter_replace_after_ms: NonNegative = _key(
        0,
        "A voter that has not fetched from the leader for this long is replaced by a spare: a"
        " controller that is not a voter, has this key too, and follows without a gap. 0: voters"
        " are replaced by hand only. Longer than any restart of a controller takes; the same on"
        " every controller.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_leader_priority: Annotated[int, Within(0, quorum.MAX_LEADER_PRIORITY)] = _key(
        0,
        "The leadership is transferred to the voter with the highest priority while that one is"
        " caught up and has room on its disk. After a loss of its leadership it waits longer before"
        " it leads again. The same on all: whoever is elected stays.",
        roles=CONTROLLER,
    )
    http_listener: Endpoints = _key(
        (),
        "The address that serves /metrics, /livez and /readyz, host:port; empty: none. :port is"
        " on 127.0.0.1 alone. Port 0 takes a free port. https://host:port: with TLS, by"
        " tls.certificate.file and so on (or listener.name.https.tls.certificate.file); then all"
        " but /livez and /readyz asks for a client certificate.",
    )
    lane_port_offset: Annotated[int, Within(0, 20_000)] = _key(
        LANE_PORT_OFFSET,
        "Each listener has a second TCP port on its host, so much above its own, to which links"
        " move once gRPC has let them in: the requests and watches of clients, and at a controller"
        " the fetches of followers and brokers. It halves what a message costs. It has TLS if the"
        " listener has. 0 leaves all on gRPC, where it also stays as long as the port cannot be"
        " reached.",
        roles=BOTH,
    )
    http_console_token_file: str = _key(
        "",
        "The token that the console at /console of http.listener asks for: one word of at least 16"
        " characters in a file that only its owner reads. A node with TLS shows no console without"
        " it. Relative paths count from the configuration file.",
    )

    # --- the quorum ------------------------------------------------------------------------------
    controller_quorum_election_timeout_ms: Positive = _key(
        quorum.ELECTION_TIMEOUT_MS,
        "How long a node without a leader waits before it asks for votes. It matters at cold starts"
        " and after failed elections; the death of a leader's process is noticed at once.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_election_jitter_max_ms: Positive = _key(
        quorum.ELECTION_JITTER_MAX_MS,
        "Random time added to the election timeout, and half of it to the fetch timeout, so that"
        " two nodes do not ask for votes at the same instant.",
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
        "A follower that hears nothing from the leader for this long asks for votes. A leader"
        " resigns when no majority has fetched from it for 1.5 times as long. Raise it where pauses"
        " or network delays are longer.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_fetch_max_wait_ms: Positive = _key(
        quorum.FETCH_MAX_WAIT_MS,
        "How long an idle leader parks a fetch. It must be well below the fetch timeout, because"
        " the reply is what keeps that timeout from expiring.",
        unit="ms",
        roles=CONTROLLER,
    )
    controller_quorum_fetch_max_bytes: Positive = _key(
        quorum.FETCH_MAX_BYTES,
        "The most log bytes in one fetch reply. With more, a follower that is far behind catches up"
        " faster, at the price of memory.",
        unit="bytes",
        roles=CONTROLLER,
    )
    controller_quorum_request_timeout_ms: Positive = _key(
        quorum.REQUEST_TIMEOUT_MS,
        "How long a request of the quorum may stay unanswered. Then the node sends it again, and"
        " replaces the connection if nothing has arrived on it.",
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
        "The controller fences a broker that is silent for this long. More than two heartbeat"
        " intervals, so that one lost message fences no broker.",
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
        "The least time that a broker stays fenced after it was fenced for its lag or its disk; it"
        " doubles each time.",
        unit="ms",
        roles=CONTROLLER,
    )
    broker_metadata_lag_probation_max_ms: Positive = _key(
        600_000,
        "The longest such time. A broker that is not fenced so for this long starts over at the"
        " shortest.",
        unit="ms",
        roles=CONTROLLER,
    )
    broker_id_adopt_after_ms: Positive = _key(
        600_000,
        "A broker id that holds replicas counts as missing when its broker has been fenced or"
        " unregistered for this long. If exactly one id is missing, a broker without an id gets it."
        " Longer than any restart of a broker takes.",
        unit="ms",
        roles=CONTROLLER,
    )
    reserved_broker_max_id: NonNegative = _key(
        1000,
        "Generated broker ids begin above this. Configured ids belong at or below it.",
        roles=CONTROLLER,
    )
    num_partitions: Positive = _key(
        1, "The number of partitions of a topic whose request names none.", roles=CONTROLLER
    )
    default_replication_factor: Positive = _key(
        3,
        "The replication factor of a topic whose request names none; at most the number of live"
        " brokers.",
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
        "How often the controller looks for partitions whose preferred leader could lead and does"
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
        "How long a partition without ISR and eligible leader replicas waits for reports of all"
        " replicas where unclean.recovery.strategy is aggressive.",
        unit="ms",
        roles=CONTROLLER,
    )
    max_records_per_request: Positive = _key(
        10_000,
        "The most records that one request may write. They are committed as one batch, and every"
        " later write waits for it.",
        unit="records",
        roles=CONTROLLER,
    )
    config_value_max_bytes: Positive = _key(
        32_768, "The largest value of a topic or broker config.", unit="bytes", roles=CONTROLLER
    )
    progress_interval_ms: Positive = _key(
        1000,
        "The least time between two progress records, which write the lowest acknowledged offset"
        " and the applied offsets of the brokers to the log.",
        unit="ms",
        roles=CONTROLLER,
    )
    producer_id_expiration_ms: Positive = _key(
        86_400_000,
        "The controller closes an exactly-once client that has written nothing for this long: by"
        " the timestamps of the log, as far as the same time has also passed since this controller"
        " began. A retry of one of its writes is an error from then on.",
        unit="ms",
        roles=CONTROLLER,
    )
    max_clients: Positive = _key(
        1000,
        "The most exactly-once clients open at a time. Above it, the controller closes the longest"
        " idle client of the principal that has the most. Each client may keep the results of 256"
        " writes in memory.",
        roles=CONTROLLER,
    )

    kv_max_keys: Annotated[int, Within(1, 1_000_000)] = _key(
        10_000,
        "The most keys in the key-value store. Each is in the memory of every node.",
        roles=CONTROLLER,
    )
    kv_max_bytes: Positive = _key(
        16 << 20,
        "The most bytes of all keys and values in the key-value store together.",
        unit="bytes",
        roles=CONTROLLER,
    )

    lease_max_count: Positive = _key(
        10_000,
        "The most leases of the key-value store at a time.",
        roles=CONTROLLER,
    )
    lease_ttl_min_ms: Positive = _key(
        1_000,
        "The shortest time that a lease may be granted for. A lease that lives for less than a"
        " failover takes is lost in each.",
        unit="ms",
        roles=CONTROLLER,
    )
    lease_ttl_max_ms: Positive = _key(
        86_400_000,
        "The longest time that a lease may be granted for.",
        unit="ms",
        roles=CONTROLLER,
    )

    metadata_log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20,
        "Free space to keep on the file system of a controller's log, at most a twentieth of its"
        " size. A controller below it does not lead if another one can. While no majority of the"
        " voters has this much free, writes are refused. 0: do not watch the disk.",
        unit="bytes",
        roles=CONTROLLER,
    )

    # --- snapshots -------------------------------------------------------------------------------
    metadata_log_max_record_bytes_between_snapshots: Positive = _key(
        20 << 20,
        "A node takes a snapshot when it has applied this much log since the last one; if its state"
        " is larger than 4 MiB, also at least four times the size of the state. That bounds the"
        " cost of snapshots of a large state. A smaller value means a faster start and more"
        " writing.",
        unit="bytes",
        roles=CONTROLLER,
    )
    metadata_log_max_snapshot_interval_ms: NonNegative = _key(
        3_600_000,
        "A node takes a snapshot when the last one is this old and it has applied something since."
        " 0: never because of age.",
        unit="ms",
        roles=CONTROLLER,
    )
    metadata_max_retention_bytes: Positive = _key(
        100 << 20,
        "When the log and the snapshots of a node are larger than this, it drops the oldest"
        " snapshot, and the log up to the end of the next one. It always keeps the newest snapshot."
        " What it has dropped can no longer be exported.",
        unit="bytes",
        roles=CONTROLLER,
    )
    metadata_max_retention_ms: Positive = _key(
        604_800_000,
        "A snapshot older than this goes in the same way, if there is a newer one.",
        unit="ms",
        roles=CONTROLLER,
    )
    metadata_export_cursor_max_bytes: Positive = _key(
        1 << 30,
        "Nodes keep the log that an export with a cursor (`raftlog export --cursor`) has yet to"
        " read, until the log and the snapshots of a node are larger than this: a forgotten cursor"
        " must not fill the disk. Then the log start passes the cursor; the node logs an error and"
        " counts it. At or below metadata.max.retention.bytes, cursors hold back nothing that is"
        " dropped because of size. The same bounds what a node keeps for those that fetch a"
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
        "A broker that has not reached the controller for this long fences itself (KIP-343). Longer"
        " than the session timeout, so that the controller has moved its leaderships before it"
        " stops serving.",
        unit="ms",
        roles=BROKER,
    )
    broker_disk_hang_timeout_ms: Positive = _key(
        5000,
        "A broker whose disk has worked on one flush of partitions for this long says so, and the"
        " controller fences it, so that other replicas lead; the disk is looked at each second. The"
        " broker comes back after the disk does, later each time it hangs"
        " (broker.metadata.lag.probation.ms). If most brokers' disks hang, none is fenced.",
        unit="ms",
        roles=BROKER,
    )
    controlled_shutdown_timeout_ms: Positive = _key(
        30000,
        "How long a broker that shuts down waits for the controller to move its leaderships and to"
        " release it; after that it ends without. At least two heartbeat intervals. A broker that"
        " cannot connect to any controller ends without after 1.5 s.",
        unit="ms",
        roles=BROKER,
    )
    initial_broker_registration_timeout_ms: Positive = _key(
        60000,
        "A broker that cannot register within this time exits. A broker without an id that has to"
        " wait for another broker waits longer.",
        unit="ms",
        roles=BROKER,
    )
    broker_id_generation_force: bool = _key(
        False,
        "A broker without an id, on a host without one, gets a new id at once, even if another"
        " broker that holds replicas is absent. The absent broker's replicas stay one short. Remove"
        " this key when the broker has its id.",
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
        "How long a leader parks a follower's fetch while there is nothing new. Below"
        " replica.lag.time.max.ms.",
        unit="ms",
        roles=BROKER,
    )
    replica_fetch_max_bytes: Positive = _key(
        1 << 20,
        "The most bytes of one partition in a reply to a follower. A single larger batch is sent"
        " all the same.",
        unit="bytes",
        roles=BROKER,
    )
    replica_fetch_response_max_bytes: Positive = _key(
        10 << 20,
        "The most bytes of all partitions in a reply to a follower.",
        unit="bytes",
        roles=BROKER,
    )
    replica_fetch_backoff_ms: Positive = _key(
        200,
        "How long a follower waits before it fetches a partition again whose fetch was refused.",
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
        "How often a broker looks at what the topics that it leads need not keep (retention.ms,"
        " retention.bytes).",
        unit="ms",
        roles=BROKER,
    )
    log_segment_delete_delay_ms: NonNegative = _key(
        60_000,
        "How long a broker keeps a replica that the metadata does not assign to it any more, as"
        " that of a deleted topic. If it is assigned again within this time, its records are still"
        " there. 0: it is deleted at once.",
        unit="ms",
        roles=BROKER,
    )
    log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20,
        "Free space to keep on the file system of a broker's partitions, at most a twentieth of its"
        " size. A broker below it stores no records: it refuses producers, others lead its"
        " partitions, and it leaves their ISRs until it has space. It continues to serve reads."
        " 0: do not watch the disk.",
        unit="bytes",
        roles=BROKER,
    )

    # --- requests --------------------------------------------------------------------------------
    request_timeout_ms: Positive = _key(
        30000, "The timeout of a request that names none.", unit="ms", roles=BOTH
    )
    request_timeout_max_ms: Positive = _key(
        300_000,
        "The longest timeout; a request that names a longer one gets this one. A waiting request"
        " takes a place that others need.",
        unit="ms",
        roles=BOTH,
    )
    socket_request_max_bytes: Positive = _key(
        _TRANSPORT.max_message_bytes,
        "The largest message; a larger one is refused. Requests to a server have smaller bounds: 32"
        " MiB for clients of a broker, 8 MiB for clients of a controller.",
        unit="bytes",
    )

    # --- watches ---------------------------------------------------------------------------------
    watch_max_watchers: Positive = _key(
        10_000,
        "The most watches of the metadata that a broker serves at a time. One connection has at"
        " most half of what is left.",
        roles=BROKER,
    )
    watch_history_max_bytes: Positive = _key(
        32 << 20,
        "About how much memory a broker spends on the changes of the past. A watch goes on where it"
        " was at another broker as long as the changes after its token are kept there.",
        unit="bytes",
        roles=BROKER,
    )
    watch_max_unsent_bytes: Positive = _key(
        1 << 20,
        "A watch with more that it has not read gets nothing new until it has read. If what it"
        " needs has left the history by then, it ends.",
        unit="bytes",
        roles=BROKER,
    )
    watch_progress_interval_ms: Positive = _key(
        30_000,
        "How often a watch without changes receives its position, if it does not ask for"
        " another interval.",
        unit="ms",
        roles=BROKER,
    )

    # --- connections -----------------------------------------------------------------------------
    max_connections: Positive = _key(
        _TRANSPORT.max_connections,
        "The most open connections on all listeners together, of which each has an equal share; a"
        " node closes further ones at once. It is lower if the process may not open enough files.",
    )
    connections_max_per_ip: Positive = _key(
        _TRANSPORT.max_connections_per_address,
        "The most connections from one address that have a call open; further ones are refused with"
        " a time to wait. Other nodes count like everybody.",
    )
    connections_max_per_principal: Positive = _key(
        _TRANSPORT.max_connections_per_principal,
        "The same for one principal of a token, or one subject of a certificate.",
    )
    connections_max_idle_ms: Positive = _key(
        _TRANSPORT.connection_max_idle_ms,
        "A node closes a connection that has had no open call for this long.",
        unit="ms",
    )
    queued_max_response_bytes: Positive = _key(
        _TRANSPORT.max_queued_total_bytes,
        "The most bytes of replies that all peers together may leave unread. Above it the node"
        " disconnects the peer that has read nothing for the longest time.",
        unit="bytes",
    )

    # --- TLS -------------------------------------------------------------------------------------
    security_plaintext_allow: bool = _key(
        False,
        "Listen without TLS on an address that other machines reach, and serve plain HTTP there."
        " Any process that reaches it can read, change and destroy the cluster: for a network in"
        " which nothing else is.",
    )
    tls_certificate_file: str = _key(
        "",
        "This node's certificate chain, PEM. With the key and the certificate authorities it turns"
        " on mutual TLS, on every listener that listener.security.protocol.map does not except.",
    )
    tls_key_file: str = _key("", "The private key of the certificate, PEM.")
    tls_ca_file: str = _key(
        "", "The certificate authorities that sign the certificates of the other nodes, PEM."
    )
    grpc_reflection_enable: bool = _key(
        False,
        "gRPC reflection on SSL listeners, for tools like grpcurl: it names every service and"
        " message. PLAINTEXT listeners always have it.",
    )
    node_principal_rule: str = _key(
        "",
        "How a node's certificate says which node it is, for instance CN=node-{id},"
        " DNS:node-{id}.example.org or URI:spiffe://example.org/raftlog/{id}. With it, what is sent"
        " under a node id is taken only from that node's own certificate: votes, fetches,"
        " registrations, heartbeats, reports; and the principal in the log is the one that a"
        " client's certificate names. Empty: any certificate of the authority may send anything,"
        " and clients state their principal. The same on every node; needs TLS, and a node.id on"
        " every broker.",
    )
    ssl_principal_mapping_rules: str = _key(
        "DEFAULT",
        "Which principal a client's certificate names, with node.principal.rule. Rules, separated"
        " by commas: RULE:pattern/replacement/[LU], or DEFAULT. The first whose pattern matches the"
        " whole subject (RFC 2253) counts; DEFAULT takes all of it. For instance"
        " RULE:CN=([^,]*).*/$1/L,DEFAULT makes User:alice of CN=Alice,O=Example. A subject that no"
        " rule matches has no principal.",
    )
    authorizer_class_name: Literal["", "StandardAuthorizer"] = _key(
        "",
        "StandardAuthorizer: each request needs the permission of an access control entry, see"
        " docs/security.md. Empty: any client that may connect may do everything. Needs"
        " node.principal.rule; the same on every node.",
    )
    super_users: str = _key(
        "",
        "Principals that may do everything, separated by semicolons, for instance"
        " User:alice;User:bob. The same on every node.",
    )
    allow_everyone_if_no_acl_found: bool = _key(
        False,
        "Whether everybody may do everything to a resource that no access control entry is about.",
    )
    max_requests_per_second_per_principal: NonNegative = _key(
        0,
        "How many requests a second one principal may make of this node, over all its connections;"
        " more are refused with the time to wait. Nodes have no limit. 0: no client has. Needs"
        " node.principal.rule.",
    )
    max_requests_per_second_per_ip: NonNegative = _key(0, "The same for one address.")
    audit_log_file: str = _key(
        "",
        "Where this node writes who asked for what, one JSON object a line: refused requests, and"
        " every request that changes something. Needs node.principal.rule. Empty: nowhere.",
    )
    audit_log_max_bytes: Positive = _key(
        100 << 20, "The size above which the audit log begins a new file.", unit="bytes"
    )
    audit_log_max_backups: NonNegative = _key(10, "How many older files of the audit log are kept.")
    audit_log_reads: bool = _key(
        False, "Write reads and produced records that are allowed to the audit log, too."
    )
    ssl_client_auth: Literal["required", "none"] = _key(
        "required",
        "Whether clients must show a certificate of the authority. With none, TLS asks for none,"
        " and each call needs a token; nodes could not say who they are, so it is for a listener of"
        " clients. Kafka's `requested` is not there: gRPC's Python cannot ask for a certificate and"
        " do without.",
    )

    # --- tokens ----------------------------------------------------------------------------------
    sasl_oauthbearer_jwks_endpoint_url: str = _key(
        "",
        "Where the public keys of the issuer of tokens are (a JWK set): https://, file:///, or"
        " http:// on this machine. With the issuer and the audience, clients may show bearer tokens"
        " (JWT) signed by one of these keys; the principal in the log is then the token's. Needs"
        " TLS and node.principal.rule.",
    )
    sasl_oauthbearer_expected_issuer: str = _key(
        "", "The issuer of tokens: their claim iss is exactly this."
    )
    sasl_oauthbearer_expected_audience: Strings = _key(
        (), "For whom tokens are: one of these is in their claim aud."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Positive = _key(
        3_600_000,
        "How often the keys of the issuer are fetched. A file is read again when it changes.",
        unit="ms",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Positive = _key(
        10_000,
        "How long to wait after a fetch before the next one, if it failed or if a token names a key"
        " that is not known. Anybody can write such a name, so this bounds what strangers make the"
        " issuer's endpoint serve. Known keys stay valid while fetches fail.",
        unit="ms",
    )
    sasl_oauthbearer_clock_skew_seconds: Annotated[NonNegative, Within(0, 3_600)] = _key(
        30,
        "How much the clock of the issuer may differ: so much longer, and earlier, a token is"
        " valid.",
        unit="s",
    )
    sasl_oauthbearer_sub_claim_name: str = _key(
        "sub", "The claim whose value names the principal: User: and the value."
    )

    # --- logs ------------------------------------------------------------------------------------
    log_level: Literal["debug", "info", "warning", "error"] = _key(
        "info", "The lowest severity that is logged."
    )
    log_format: Literal["auto", "console", "json"] = _key(
        "auto", "The format of log lines on stderr; auto: for people on a terminal, otherwise JSON."
    )


def key_of(field_name: str) -> str:
    """The configuration key of a field."""
    return field_name.replace("_", ".")


KEYS: dict[str, KeyInfo] = {one.name: one.metadata["info"] for one in fields(Settings)}
"""Documentation of each key by field name of :class:`Settings`."""

FIELD_OF_KEY: dict[str, str] = {key_of(name): name for name in KEYS}
"""Field name of :class:`Settings` by configuration key."""


def values_of(kind: type[Any], settings: Settings) -> dict[str, Any]:
    """Return the values of the keys that are also fields of ``kind``, a dataclass, by name."""
    return {one.name: getattr(settings, one.name) for one in fields(kind) if one.name in KEYS}
