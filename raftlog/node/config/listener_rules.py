"""Rules between the keys of listeners.

Each rule returns None if another rule already reports the mistake.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.endpoint import LISTENERS_MAX, PORT_MAX, WILDCARD_HOSTS, Endpoint
from raftlog.node.config.fields import PLAINTEXT, SSL
from raftlog.node.config.listeners import (
    HTTP_NAMES,
    HTTPS,
    TLS_FILES,
    advertised_on,
    bound,
    controllers_name,
    is_broker,
    is_controller,
    key_of_listener,
    protocol_of,
    serves_https,
)
from raftlog.node.config.rule import Rule
from raftlog.node.config.settings import Settings, key_of


def _listeners(settings: Settings) -> str | None:
    if settings.listeners:
        return _each_of_several(settings.listeners)
    if is_broker(settings):
        return 'required for a broker, for instance ["127.0.0.1:9092"]'
    if settings.controller_quorum_bootstrap_servers and not settings.controller_quorum_voters:
        return (
            "required for a controller that is not in controller.quorum.voters, for instance"
            ' ["127.0.0.1:9093"]'
        )
    return None


def _each_of_several(listeners: tuple[Endpoint, ...]) -> str | None:
    if len(listeners) == 1:
        return None
    if len(listeners) > LISTENERS_MAX:
        return f"a node can have at most {LISTENERS_MAX} listeners, not {len(listeners)}"
    if nameless := [one.address for one in listeners if not one.name]:
        return f"each of several listeners needs a name, for instance NAME://{nameless[0]}"
    if twice := _twice(one.name for one in listeners):
        return f"the name {twice} occurs more than once"
    if twice := _twice(one.address for one in listeners if one.port):
        return f"the address {twice} occurs more than once"
    return None


def _twice(values: Iterable[str]) -> str:
    seen = list(values)
    return ", ".join(sorted({value for value in seen if seen.count(value) > 1}))


def _advertised(settings: Settings) -> str | None:
    listeners, given = bound(settings), settings.advertised_listeners
    if len(given) > len(listeners):
        return (
            f"{len(given)} advertised addresses, but {len(listeners)}"
            f" listener{'s' if len(listeners) > 1 else ''}"
        )
    if len(listeners) > 1:
        if strange := [str(one) for one in given if one.name not in listeners]:
            return f"{strange[0]}: there is no listener with this name"
        if twice := _twice(one.name for one in given):
            return f"the name {twice} occurs more than once"
    for name in listeners:
        if wrong := _not_advertisable(settings, advertised_on(settings, name)):
            return wrong
    return None


def _not_advertisable(settings: Settings, one: Endpoint | None) -> str | None:
    if one is None:
        return None
    if is_controller(settings) and (one.host in WILDCARD_HOSTS or not one.port):
        return f"required, with a real host and port: other nodes cannot connect to {one.address}"
    if is_broker(settings) and one.host in WILDCARD_HOSTS:
        return f"required, with a real host: clients cannot connect to {one.address}"
    return None


def _port_without_id(settings: Settings) -> str | None:
    if not is_broker(settings) or settings.node_id is not None:
        return None
    for name in bound(settings):
        one = advertised_on(settings, name)
        if one is not None and not one.port:
            return (
                "port 0 is not allowed without node.id: the port distinguishes the brokers on one"
                " host"
            )
    return None


def _controller_names(settings: Settings) -> str | None:
    names, given = bound(settings), settings.controller_listener_names
    if twice := _twice(given):
        return f"the name {twice} occurs more than once"
    if len(names) > 1 and not given:
        return "required with several listeners: the ones that nodes use to reach controllers"
    if (
        is_controller(settings)
        and names
        and (strange := [one for one in given if one not in names])
    ):
        return f"{strange[0]}: there is no listener with this name"
    return None


def _inter_broker(settings: Settings) -> str | None:
    names, given = bound(settings), settings.inter_broker_listener_name
    if not is_broker(settings) or not names:
        return None
    if given and given not in names:
        return f"{given}: there is no listener with this name"
    if len(names) > 1 and not given:
        return "required with several listeners: the one on which brokers fetch from each other"
    return None


def _protocols(settings: Settings) -> str | None:
    if twice := _twice(one.name for one in settings.listener_security_protocol_map):
        return f"the name {twice} occurs more than once"
    used = [*bound(settings), controllers_name(settings)]
    if unknown := [name for name in used if name and not protocol_of(settings, name)]:
        return f"must give the protocol of {unknown[0]}: PLAINTEXT or SSL"
    return None


def _own_keys(settings: Settings) -> str | None:
    known = {*bound(settings), controllers_name(settings)}
    if serves_https(settings):
        known.add(HTTPS)
    strange = [one.listener for one in settings.listener_name if one.listener not in known]
    return f"there is no listener with the name {strange[0].lower()}" if strange else None


def _tls_complete(settings: Settings) -> str | None:
    general = [bool(getattr(settings, field)) for field in TLS_FILES]
    return None if all(general) or not any(general) else f"TLS needs all three: {_keys()}"


def _tls_of_each(settings: Settings) -> str | None:
    if _tls_complete(settings):
        return None
    for name in (*bound(settings), controllers_name(settings)):
        if name and protocol_of(settings, name) == SSL:
            files = [key_of_listener(settings, name, field) for field in TLS_FILES]
            if not all(files):
                return f"listener {name} has SSL, which needs all three: {_keys()}"
    return None


def _keys() -> str:
    *first, last = (key_of(field) for field in TLS_FILES)
    return f"{', '.join(first)} and {last}"


def listens_in_plaintext(settings: Settings) -> Endpoint | None:
    """Return a listener without TLS that other hosts can reach, or None."""
    for name, one in bound(settings).items():
        if protocol_of(settings, name) == PLAINTEXT and not one.is_loopback:
            return one
    return None


def _plaintext(settings: Settings) -> str | None:
    reached = None if settings.security_plaintext_allow else listens_in_plaintext(settings)
    if reached is None or _listeners(settings):
        return None
    return (
        f"{reached.address} is not a loopback address, and without TLS every process that can"
        f" connect to it can read, change and destroy the cluster: set {_keys()}, or"
        " security.plaintext.allow = true in a private network"
    )


def _http_listener(settings: Settings) -> str | None:
    if len(settings.http_listener) > 1:
        return f"at most one address is allowed, not {len(settings.http_listener)}"
    for one in settings.http_listener:
        if one.name not in {"", *HTTP_NAMES}:
            return f"{one} must have the form http://host:port or https://host:port"
        if serves_https(settings):
            if not all(key_of_listener(settings, HTTPS, field) for field in TLS_FILES):
                return f"https needs all three: {_keys()}"
        elif one.host and not one.is_loopback and not settings.security_plaintext_allow:
            return (
                f"{one.address} is not a loopback address, and plain HTTP shows the node's state to"
                f" every process that can connect to it: use https://{one.address}, or set"
                " security.plaintext.allow = true in a private network"
            )
    return None


def _http_port(settings: Settings) -> str | None:
    return _taken(settings, settings.http_listener)


def _lane_ports(settings: Settings) -> str | None:
    offset = settings.lane_port_offset
    if not offset:
        return None
    for one in bound(settings).values():
        if one.port + offset > PORT_MAX:
            return (
                f"{one.address} plus lane.port.offset is port {one.port + offset}: the highest is"
                f" {PORT_MAX}"
            )
        beside = Endpoint(one.host, one.port + offset)
        if one.port and (wrong := _taken(settings, (beside,))):
            return wrong
        for http in settings.http_listener:
            if one.port and _collide(beside, http):
                return f"{beside.address} is already http.listener: {http}"
    return None


def _taken(settings: Settings, wanted: Iterable[Endpoint]) -> str | None:
    for one in wanted:
        for listener in bound(settings).values():
            if _collide(one, listener):
                return f"{one.address} is already a gRPC listener: {listener}"
    return None


def _collide(one: Endpoint, other: Endpoint) -> bool:
    """Return whether one process cannot listen on both endpoints."""
    hosts = {one.host or "127.0.0.1", other.host or "127.0.0.1"}
    return one.port == other.port > 0 and (len(hosts) == 1 or not hosts.isdisjoint(WILDCARD_HOSTS))


_BOUND = ("listeners", "controller_quorum_voters", "node_id", "process_roles")
_NAMED = (*_BOUND, "tls_certificate_file", "listener_name", "listener_security_protocol_map")
LISTENER_RULES: tuple[Rule, ...] = (
    Rule(
        (
            "listeners",
            "controller_quorum_voters",
            "controller_quorum_bootstrap_servers",
            "process_roles",
        ),
        _listeners,
    ),
    Rule(("advertised_listeners", *_BOUND), _advertised),
    Rule(("listeners", "advertised_listeners", *_BOUND[1:]), _port_without_id),
    Rule(("controller_listener_names", *_NAMED), _controller_names),
    Rule(("inter_broker_listener_name", *_NAMED), _inter_broker),
    Rule(("listener_security_protocol_map", "controller_listener_names", *_NAMED), _protocols),
    Rule(("listener_name", "controller_listener_names", "http_listener", *_NAMED), _own_keys),
    Rule(TLS_FILES, _tls_complete),
    Rule((*TLS_FILES, "controller_listener_names", *_NAMED), _tls_of_each),
    Rule((*_NAMED, "security_plaintext_allow"), _plaintext),
    Rule(
        ("http_listener", *TLS_FILES, "listener_name", "security_plaintext_allow"), _http_listener
    ),
    Rule(("http_listener", *_BOUND), _http_port),
    Rule(
        ("lane_port_offset", "http_listener", *_BOUND),
        _lane_ports,
    ),
)
