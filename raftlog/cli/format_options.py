"""How a new quorum begins, as ``raftlog storage format`` is told: its first voters and its
metadata.version.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from raftlog.config.fields import parse_voter
from raftlog.config.load import load_config
from raftlog.config.node import NodeConfig
from raftlog.config.sources import environment_configures
from raftlog.errors import ConfigError
from raftlog.metadata.versions import ACLS, LATEST_METADATA_VERSION, MIN_METADATA_VERSION
from raftlog.principals import parse_super_users
from raftlog.storage.bootstrap_file import Bootstrap
from raftlog.voter import Voter


def beginning(
    config: NodeConfig | None,
    node_id: int,
    *,
    standalone: bool,
    initial_controllers: str,
    no_initial_controllers: bool,
    release_version: int | None,
    super_users: Sequence[str] = (),
) -> tuple[str, Bootstrap]:
    """The node's directory id, a new one unless it was given, and what its directory is to say.

    Raises ConfigError.
    """
    level = _level(release_version)
    administrators = _administrators(super_users, level)
    directory_id = str(uuid.uuid4())
    ways = sum((standalone, bool(initial_controllers), no_initial_controllers))
    controller = config.controller if config is not None else None
    if ways > 1:
        raise ConfigError(
            "only one of --standalone, --initial-controllers and --no-initial-controllers"
        )
    if (standalone or initial_controllers) and controller is not None and controller.voters:
        raise ConfigError(
            "the voters are given by controller.quorum.voters: leave that empty, or the option away"
        )
    if not ways:
        if controller is not None and not controller.voters:
            raise ConfigError(
                "controller.quorum.voters is empty: give --standalone, --initial-controllers or"
                " --no-initial-controllers"
            )
        return directory_id, Bootstrap(None, level, administrators)
    if no_initial_controllers:
        if administrators:
            raise ConfigError(
                "--super-user is for the first controllers of a cluster: a node that joins takes"
                " the entries from the log"
            )
        return directory_id, Bootstrap((), level)
    if standalone:
        if controller is None:
            raise ConfigError(
                "--standalone needs a controller's configuration, which says where it listens"
            )
        return directory_id, Bootstrap(
            (Voter(node_id, controller.advertised, directory_id),), level, administrators
        )
    voters = parse_initial_controllers(initial_controllers)
    own = next((voter for voter in voters if voter.node_id == node_id), None)
    if own is None:
        raise ConfigError(f"--initial-controllers: node {node_id} is not among them")
    if controller is not None and own.endpoint != controller.advertised:
        raise ConfigError(
            f"--initial-controllers: node {node_id} is at {own.endpoint} there, and at"
            f" {controller.advertised} by its configuration"
        )
    return own.directory_id, Bootstrap(voters, level, administrators)


def parse_initial_controllers(value: str) -> tuple[Voter, ...]:
    """Parse ``id@host:port:directory-id,...``. Raises ConfigError."""
    voters: list[Voter] = []
    for part in value.split(","):
        address, _, directory_id = part.strip().rpartition(":")
        try:
            voter = parse_voter(address)
            known = str(uuid.UUID(directory_id))
        except ValueError as error:
            raise ConfigError(
                f"--initial-controllers: {part.strip()!r} is not id@host:port:directory-id, the"
                f" last a UUID ({error})"
            ) from error
        voters.append(Voter(voter.node_id, voter.endpoint, known))
    for what, values in (
        ("id", [voter.node_id for voter in voters]),
        ("address", [voter.endpoint for voter in voters]),
        ("directory id", [voter.directory_id for voter in voters]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"--initial-controllers: the same {what} twice")
    return tuple(sorted(voters, key=lambda voter: voter.node_id))


def _administrators(super_users: Sequence[str], level: int) -> tuple[str, ...]:
    """Raises ConfigError."""
    try:
        found = tuple(sorted(parse_super_users(";".join(super_users))))
    except ValueError as error:
        raise ConfigError(f"--super-user: {error}") from error
    if found and 0 < level < ACLS:
        raise ConfigError(f"--super-user needs --release-version {ACLS} or later")
    return found


def _level(release_version: int | None) -> int:
    if release_version is None:
        return 0
    if not MIN_METADATA_VERSION <= release_version <= LATEST_METADATA_VERSION:
        raise ConfigError(
            f"--release-version: {MIN_METADATA_VERSION} to {LATEST_METADATA_VERSION}, not"
            f" {release_version}"
        )
    return release_version


def identity_asked(
    config: Path | None,
    flags: list[str],
    directory: Path | None,
    cluster_id: str,
    node_id: int | None,
) -> tuple[Path, str, int]:
    """What to format, from a configuration (of the environment, too) or from the three options,
    never from both.
    """
    options_given = directory is not None or cluster_id or node_id is not None
    if config is None and not flags and (options_given or not environment_configures()):
        missing = [
            option
            for option, value in (
                ("--directory", directory),
                ("--cluster-id", cluster_id),
                ("--node-id", node_id),
            )
            if value in (None, "")
        ]
        if directory is None or not cluster_id or node_id is None:
            raise ConfigError(
                f"give --config FILE, or {', '.join(missing)}, or set RAFTLOG_... variables"
            )
        return directory, cluster_id, node_id
    if options_given:
        raise ConfigError(
            "give either a configuration or --directory, --cluster-id and --node-id, not both"
        )
    loaded = load_config(config, flags=flags)
    return loaded.directory, loaded.cluster_id, loaded.node_id
