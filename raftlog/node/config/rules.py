"""Rules between keys.

A rule is skipped if a key that it reads is already invalid.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.endpoint import WILDCARD_HOSTS
from raftlog.identity import NodeRule, PrincipalMapping, parse_super_users
from raftlog.limits import CLUSTER_ID_TEXT, RACK
from raftlog.node.config import token_rules
from raftlog.node.config.fields import SSL, fencing_fits, heartbeats_fit
from raftlog.node.config.listener_rules import LISTENER_RULES
from raftlog.node.config.listeners import (
    controllers_protocol,
    for_nodes,
    is_broker,
    is_controller,
    protocol_of,
)
from raftlog.node.config.rule import Rule
from raftlog.node.config.settings import Settings, key_of


def broken_rules(settings: Settings, skip: set[str]) -> Iterator[str]:
    """Yield the messages of all broken rules, except those that read a field in ``skip``."""
    for rule in RULES:
        if skip.isdisjoint(rule.fields):
            message = rule.check(settings)
            if message is not None:
                yield f"{key_of(rule.fields[0])}: {message}"


def _one_role(settings: Settings) -> str | None:
    if settings.process_roles in {("controller",), ("broker",)}:
        return None
    if not settings.process_roles:
        return 'required: ["controller"] or ["broker"]'
    return (
        f'must be ["controller"] or ["broker"], not {list(settings.process_roles)}: a process has'
        " one role"
    )


def _node_id(settings: Settings) -> str | None:
    if settings.node_id is None and not is_broker(settings):
        return "required"
    return None


def _cluster_id(settings: Settings) -> str | None:
    if wrong := CLUSTER_ID_TEXT.error(settings.cluster_id):
        return wrong
    return (
        None
        if settings.cluster_id.strip()
        else "required (make one with: raftlog storage random-uuid)"
    )


def _directory(settings: Settings) -> str | None:
    if len(settings.log_dirs) > 1:
        return f"exactly one directory is allowed, not {len(settings.log_dirs)}"
    if not all(path.strip() for path in settings.log_dirs):
        return "the path must not be empty"
    if not settings.log_dirs and not settings.metadata_log_dir:
        return "required" + (", or metadata.log.dir" if is_controller(settings) else "")
    if not settings.log_dirs and is_broker(settings):
        return "required for a broker (only controllers use metadata.log.dir)"
    return None


def _voters_given(settings: Settings) -> str | None:
    if (
        is_controller(settings)
        and not settings.controller_quorum_voters
        and not settings.controller_quorum_bootstrap_servers
    ):
        return (
            'required for a controller, for instance ["1@127.0.0.1:9093"], or'
            " controller.quorum.bootstrap.servers"
        )
    if (
        is_broker(settings)
        and not settings.controller_quorum_voters
        and not settings.controller_quorum_bootstrap_servers
    ):
        return "required for a broker, or controller.quorum.bootstrap.servers"
    return None


def _voters_differ(settings: Settings) -> str | None:
    voters = settings.controller_quorum_voters
    for what, values in (
        ("id", [str(voter.node_id) for voter in voters]),
        ("address", [v.endpoint for v in voters]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            return f"the {what} {', '.join(twice)} occurs more than once"
    return None


def _node_among_voters(settings: Settings) -> str | None:
    ids = {voter.node_id for voter in settings.controller_quorum_voters}
    if (
        ids
        and is_controller(settings)
        and settings.node_id is not None
        and settings.node_id not in ids
    ):
        return f"{settings.node_id} is not among controller.quorum.voters"
    if is_broker(settings) and settings.node_id in ids:
        return (
            f"{settings.node_id} is a controller's id (controller.quorum.voters): a broker needs"
            " a different one"
        )
    return None


def _bootstrap(settings: Settings) -> str | None:
    for endpoint in settings.controller_quorum_bootstrap_servers:
        if endpoint.host in WILDCARD_HOSTS or not endpoint.port:
            return f"{endpoint.address} needs a real host and a port other than 0"
    return None


def _rack(settings: Settings) -> str | None:
    return RACK.error(settings.broker_rack) or None


def _heartbeats_in_session(settings: Settings) -> str | None:
    session, heartbeat = settings.broker_session_timeout_ms, settings.broker_heartbeat_interval_ms
    if heartbeats_fit(heartbeat, session):
        return None
    return (
        f"{session} ms must be more than two heartbeats (broker.heartbeat.interval.ms ="
        f" {heartbeat} ms)"
    )


def _fencing_after_session(settings: Settings) -> str | None:
    fencing, session = settings.broker_fencing_timeout_ms, settings.broker_session_timeout_ms
    if fencing_fits(fencing, session):
        return None
    return f"{fencing} ms must be more than broker.session.timeout.ms = {session} ms"


def _shutdown_beyond_heartbeats(settings: Settings) -> str | None:
    shutdown, heartbeat = (
        settings.controlled_shutdown_timeout_ms,
        settings.broker_heartbeat_interval_ms,
    )
    if shutdown >= 2 * heartbeat:
        return None
    return (
        f"{shutdown} ms must be at least two heartbeats (broker.heartbeat.interval.ms ="
        f" {heartbeat} ms)"
    )


def _lag_beyond_heartbeat(settings: Settings) -> str | None:
    lag, heartbeat = settings.broker_metadata_lag_max_ms, settings.broker_heartbeat_interval_ms
    return (
        None
        if lag > heartbeat
        else f"{lag} ms must be more than broker.heartbeat.interval.ms = {heartbeat} ms"
    )


def _probation(settings: Settings) -> str | None:
    most, least = (
        settings.broker_metadata_lag_probation_max_ms,
        settings.broker_metadata_lag_probation_ms,
    )
    return (
        None
        if most >= least
        else f"{most} ms must be at least broker.metadata.lag.probation.ms = {least} ms"
    )


def _wait_below_timeout(settings: Settings) -> str | None:
    wait, timeout = (
        settings.controller_quorum_fetch_max_wait_ms,
        settings.controller_quorum_fetch_timeout_ms,
    )
    if 2 * wait <= timeout:
        return None
    return f"{wait} ms must be at most half of controller.quorum.fetch.timeout.ms = {timeout} ms"


def _replacement_beyond_elections(settings: Settings) -> str | None:
    after, timeout = (
        settings.controller_quorum_voter_replace_after_ms,
        settings.controller_quorum_fetch_timeout_ms,
    )
    if 0 < after < 3 * timeout:
        return (
            f"{after} ms must be at least three times controller.quorum.fetch.timeout.ms ="
            f" {timeout} ms: a restart must not count as a permanent loss"
        )
    if after and settings.controller_quorum_auto_join_enable:
        return (
            "cannot be combined with controller.quorum.auto.join.enable: a replaced voter would"
            " rejoin, and the voter set would grow"
        )
    return None


def _fetch_fits_message(settings: Settings) -> str | None:
    fetch, message = settings.controller_quorum_fetch_max_bytes, settings.socket_request_max_bytes
    return (
        None
        if fetch < message
        else f"{fetch} bytes must be less than socket.request.max.bytes = {message} bytes"
    )


def _fetch_wait_below_lag(settings: Settings) -> str | None:
    wait, lag = settings.replica_fetch_wait_max_ms, settings.replica_lag_time_max_ms
    return None if wait < lag else f"{wait} ms must be less than replica.lag.time.max.ms = {lag} ms"


def _replica_fetch_fits_message(settings: Settings) -> str | None:
    fetch, message = settings.replica_fetch_response_max_bytes, settings.socket_request_max_bytes
    return (
        None
        if fetch < message
        else f"{fetch} bytes must be less than socket.request.max.bytes = {message} bytes"
    )


def _node_rule(settings: Settings) -> str | None:
    if not settings.node_principal_rule:
        return None
    try:
        NodeRule.parse(settings.node_principal_rule)
    except ValueError as error:
        return str(error)
    protocols = {protocol_of(settings, name) for name in for_nodes(settings)[:1]}
    if protocols | {controllers_protocol(settings)} != {SSL}:
        return "needs TLS between nodes: without certificates no node can be authenticated"
    if settings.node_id is None:
        return "needs node.id: a certificate belongs to one node"
    return None


def _super_users(settings: Settings) -> str | None:
    try:
        parse_super_users(settings.super_users)
    except ValueError as error:
        return str(error)
    return None


def _authorizer_needs_names(settings: Settings) -> str | None:
    if settings.authorizer_class_name and not settings.node_principal_rule:
        return (
            "needs node.principal.rule: without it any client can act as any node, and the"
            " principals that clients state are not verified"
        )
    return None


def _audit_needs_names(settings: Settings) -> str | None:
    if settings.audit_log_file and not settings.node_principal_rule:
        return (
            "needs node.principal.rule: without it the principals that clients state are not"
            " verified"
        )
    return None


def _quotas_need_names(settings: Settings) -> str | None:
    limited = (
        settings.max_requests_per_second_per_principal or settings.max_requests_per_second_per_ip
    )
    if limited and not settings.node_principal_rule:
        return (
            "needs node.principal.rule: nodes have no limit, and must be distinguished from clients"
        )
    return None


def _principal_rules(settings: Settings) -> str | None:
    try:
        PrincipalMapping.parse(settings.ssl_principal_mapping_rules)
    except ValueError as error:
        return str(error)
    return None


def _timeouts(settings: Settings) -> str | None:
    if settings.request_timeout_ms > settings.request_timeout_max_ms:
        return (
            f"{settings.request_timeout_ms} ms must be at most request.timeout.max.ms ="
            f" {settings.request_timeout_max_ms} ms"
        )
    return None


RULES: tuple[Rule, ...] = (
    Rule(("request_timeout_ms", "request_timeout_max_ms"), _timeouts),
    Rule(("process_roles",), _one_role),
    Rule(("node_id", "process_roles"), _node_id),
    Rule(("cluster_id",), _cluster_id),
    Rule(("log_dirs", "metadata_log_dir", "process_roles"), _directory),
    Rule(
        ("controller_quorum_voters", "controller_quorum_bootstrap_servers", "process_roles"),
        _voters_given,
    ),
    Rule(("controller_quorum_voters",), _voters_differ),
    Rule(("node_id", "controller_quorum_voters", "process_roles"), _node_among_voters),
    Rule(("controller_quorum_bootstrap_servers",), _bootstrap),
    Rule(("broker_rack",), _rack),
    Rule(("broker_session_timeout_ms", "broker_heartbeat_interval_ms"), _heartbeats_in_session),
    Rule(("broker_fencing_timeout_ms", "broker_session_timeout_ms"), _fencing_after_session),
    Rule(
        ("controlled_shutdown_timeout_ms", "broker_heartbeat_interval_ms"),
        _shutdown_beyond_heartbeats,
    ),
    Rule(("broker_metadata_lag_max_ms", "broker_heartbeat_interval_ms"), _lag_beyond_heartbeat),
    Rule(("broker_metadata_lag_probation_max_ms", "broker_metadata_lag_probation_ms"), _probation),
    Rule(
        ("controller_quorum_fetch_max_wait_ms", "controller_quorum_fetch_timeout_ms"),
        _wait_below_timeout,
    ),
    Rule(
        (
            "controller_quorum_voter_replace_after_ms",
            "controller_quorum_fetch_timeout_ms",
            "controller_quorum_auto_join_enable",
        ),
        _replacement_beyond_elections,
    ),
    Rule(("controller_quorum_fetch_max_bytes", "socket_request_max_bytes"), _fetch_fits_message),
    Rule(("replica_fetch_wait_max_ms", "replica_lag_time_max_ms"), _fetch_wait_below_lag),
    Rule(
        ("replica_fetch_response_max_bytes", "socket_request_max_bytes"),
        _replica_fetch_fits_message,
    ),
    *LISTENER_RULES,
    Rule(("node_principal_rule",), _node_rule),
    Rule(("ssl_principal_mapping_rules",), _principal_rules),
    Rule(("super_users",), _super_users),
    Rule(("authorizer_class_name", "node_principal_rule"), _authorizer_needs_names),
    Rule(("audit_log_file", "node_principal_rule"), _audit_needs_names),
    Rule(
        (
            "max_requests_per_second_per_principal",
            "max_requests_per_second_per_ip",
            "node_principal_rule",
        ),
        _quotas_need_names,
    ),
    Rule(
        (
            "sasl_oauthbearer_jwks_endpoint_url",
            "sasl_oauthbearer_expected_issuer",
            "sasl_oauthbearer_expected_audience",
        ),
        token_rules.complete,
    ),
    Rule(("sasl_oauthbearer_jwks_endpoint_url",), token_rules.url),
    Rule(("sasl_oauthbearer_jwks_endpoint_url", "node_principal_rule"), token_rules.secured),
    Rule(("sasl_oauthbearer_sub_claim_name",), token_rules.claim),
    Rule(
        ("ssl_client_auth", "listeners", "sasl_oauthbearer_jwks_endpoint_url"),
        token_rules.client_auth,
    ),
)
