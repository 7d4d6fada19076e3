"""Changing the quorum: voters come and go, the leadership is handed over."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    ConfigFile,
    Json,
    SetFlags,
    Timeout,
    controllers,
)
from raftlog.cli.output import print_error, print_json, print_line
from raftlog.errors import ConfigError

_AUTO_JOIN = "controller.quorum.auto.join.enable"
_VOTER_ID = typer.Option("--voter-id", metavar="N", min=0, help="The node's id.")
_VOTER = typer.Option(
    "--voter-id",
    metavar="N",
    min=0,
    help="The voter's node id.",
    autocompletion=completion.voter_ids,
)
DirectoryId = Annotated[
    str,
    typer.Option(
        "--directory-id", metavar="UUID", help="Its directory id, as `storage format` printed it."
    ),
]


def add_voter(
    bootstrap_controller: BootstrapController = "",
    config: ConfigFile = None,
    flags: SetFlags = None,
    voter_id: Annotated[int | None, _VOTER_ID] = None,
    directory_id: DirectoryId = "",
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="HOST:PORT", help="Where the other nodes reach it.")
    ] = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a running observer a voter.

    The observer was formatted with --no-initial-controllers, runs, and has caught up. Give its
    configuration, on its own machine, or all three of --voter-id, --directory-id and --endpoint.

    \b
    Examples:
      raftlog quorum add-voter -c node4.toml --bootstrap-controller 127.0.0.1:9093
      raftlog quorum add-voter --voter-id 4 --directory-id UUID --endpoint 10.0.0.4:9093
    """
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    if config is not None or flags:
        if voter_id is not None or directory_id or endpoint:
            raise ConfigError(
                "give either a configuration or --voter-id, --directory-id and --endpoint, not both"
            )
        voter_id, directory_id, endpoint = _of_configuration(config, flags)
    elif voter_id is None or not directory_id or not endpoint:
        raise ConfigError("give --config FILE, or all of --voter-id, --directory-id and --endpoint")
    request = pb.AddRaftVoterRequest(
        voter_id=voter_id, voter_directory_id=directory_id, endpoint=endpoint
    )
    _change(request, bootstrap_controller, timeout)
    _say(
        as_json,
        f"node {voter_id} is a voter",
        {"voter_id": voter_id, "directory_id": directory_id, "endpoint": endpoint},
    )


def remove_voter(
    voter_id: Annotated[int, _VOTER],
    bootstrap_controller: BootstrapController = "",
    directory_id: DirectoryId = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove a voter, dead or alive, from the quorum.

    A leader that is removed resigns when the removal is committed.

    Without --directory-id, the directory that the voter set has for it. Stop a node with
    controller.quorum.auto.join.enable before: it comes back by itself within seconds, and the
    command says so of a node that runs.

    \b
    Examples:
      raftlog quorum remove-voter --voter-id 3 --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    listed = _voter(voter_id, bootstrap_controller, timeout)
    directory_id = directory_id or (listed.replica_directory_id if listed else "")
    request = pb.RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory_id)
    _change(request, bootstrap_controller, timeout)
    joins = _joins_by_itself(listed.endpoint, timeout) if listed and listed.endpoint else None
    _say(
        as_json,
        f"node {voter_id} is no voter any more",
        {"voter_id": voter_id, "directory_id": directory_id, "auto_join": joins},
    )
    if joins:
        print_error(
            f"warning: node {voter_id} runs with {_AUTO_JOIN}, and becomes a voter again by itself"
            " within seconds: stop it, then remove it again"
        )


def transfer(
    bootstrap_controller: BootstrapController = "",
    to: Annotated[
        int,
        typer.Option(
            "--to",
            metavar="N",
            help="The voter that is to lead; default: the one with the most complete log.",
            autocompletion=completion.voter_ids,
        ),
    ] = -1,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Transfer the leadership to another voter.

    No accepted write is lost; writes wait a moment.

    \b
    Examples:
      raftlog quorum transfer --to 2 --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    response = _change(pb.TransferLeadershipRequest(target_id=to), bootstrap_controller, timeout)
    target_id = response.transfer_leadership.target_id
    _say(as_json, f"node {target_id} takes over", {"target_id": target_id})


def _change(body: Any, bootstrap_controller: str, timeout_s: float) -> Any:
    from raftlog.cli.session import Session, run
    from raftlog.principals import os_user

    async def send(session: Session) -> Any:
        client = session.controllers(bootstrap_controller)
        return await client.call(body, timeout_s=timeout_s, principal=os_user())

    return run(send, timeout_s)


def _say(as_json: bool, text: str, document: dict[str, Any]) -> None:
    if as_json:
        print_json(document)
    else:
        print_line(text)


def _of_configuration(config: Any, flags: list[str] | None) -> tuple[int, str, str]:
    from raftlog.config.load import load_config
    from raftlog.storage.meta_file import read_identity

    loaded = load_config(config, flags=flags or [])
    if loaded.controller is None:
        raise ConfigError("only a controller can vote; the configuration is a broker's")
    identity = read_identity(loaded.directory)
    return loaded.node_id, identity.directory_id, loaded.controller.advertised


def _voter(voter_id: int, bootstrap_controller: str, timeout_s: float) -> Any:
    """The voter, as the leader's voter set has it; None: there is none of that id. The controller
    says then what is wrong.
    """
    import asyncio

    from raftlog.client.quorum_queries import ask_quorum
    from raftlog.client.security import security_of_environment

    addresses = controllers(bootstrap_controller)
    quorum = asyncio.run(ask_quorum(addresses, timeout_s, security_of_environment()))
    voters = [
        voter
        for one in ([quorum.leader] if quorum.leader else quorum.descriptions)
        for voter in one.voters
    ]
    return next((voter for voter in voters if voter.replica_id == voter_id), None)


def _joins_by_itself(address: str, timeout_s: float) -> bool | None:
    """Whether the node at an address becomes a voter by itself; None: it does not say."""
    import asyncio

    from raftlog.client.quorum_queries import call
    from raftlog.client.security import security_of_environment
    from raftlog.wire.node.v1 import node_pb2

    called = asyncio.run(
        call(
            address,
            "/raftlog.wire.node.v1.Node/DescribeNode",
            node_pb2.DescribeNodeRequest(),
            node_pb2.DescribeNodeResponse,
            min(timeout_s, 1.0),
            security_of_environment(),
        )
    )
    if called.response is None:
        return None
    config = {one.name: one.value for one in called.response.config}
    return config.get(_AUTO_JOIN) == "true"
