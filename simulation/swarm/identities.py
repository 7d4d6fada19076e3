"""Identities in a run with an authorizer: certificates and source addresses. Nodes' certificates
have their names; ``CALLERS`` have changing permissions, several hosts per principal and principals
per address; every other host is the super user's.
"""

from typing import NamedTuple

from raftlog.identity import PeerIdentity
from raftlog.node.config.settings import Settings
from simulation.swarm.config import SwarmConfig

NODE_RULE = "CN=node-{id}"
MAPPING_RULES = "RULE:^CN=([^,]*).*$/$1/,DEFAULT"
OPERATOR, ROOT = "User:operator", "User:root"
"""The super user in the configuration, and the one with which the cluster is formatted."""


class Site(NamedTuple):
    """A client's host, as nodes see it."""

    principal: str
    address: str


CALLERS: dict[str, Site] = {
    "alice": Site("User:alice", "10.1.0.1"),
    "alice-away": Site("User:alice", "10.1.0.2"),
    "bob": Site("User:bob", "10.1.0.1"),
    "mallory": Site("User:mallory", "10.1.0.3"),
}
WARDEN, FORGER = "warden", "forger"
"""Hosts of the client that changes rights, and of a client that poses as a node."""


def principal_of(host: str, config: SwarmConfig) -> str:
    if host in CALLERS:
        return CALLERS[host].principal
    if host == FORGER:
        return "User:mallory"
    # Only a cluster that begins at a level with entries begins with hers.
    return ROOT if host == WARDEN else OPERATOR


def certificate_of_node(node_id: int) -> PeerIdentity:
    return _certificate(f"node-{node_id}")


def certificate_of_client(principal: str) -> PeerIdentity:
    return _certificate(principal.removeprefix("User:"))


def _certificate(name: str) -> PeerIdentity:
    return PeerIdentity(f"CN={name},O=simulated", frozenset({f"CN={name}"}))


def security_settings(config: SwarmConfig) -> dict[str, str | bool]:
    """Return the security settings of all nodes; none without an authorizer."""
    if not config.authorizer:
        return {}
    return {
        "node_principal_rule": NODE_RULE,
        "ssl_principal_mapping_rules": MAPPING_RULES,
        "authorizer_class_name": "StandardAuthorizer",
        "super_users": OPERATOR,
        "allow_everyone_if_no_acl_found": config.allow_everyone,
    }


def security_of_brokers(config: SwarmConfig) -> Settings:
    return Settings(**security_settings(config))  # type: ignore[arg-type]
