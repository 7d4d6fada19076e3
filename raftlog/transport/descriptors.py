"""File descriptors: as many as the system allows, and never all of them for connections."""

from __future__ import annotations

import sys

from raftlog.logger import get_logger
from raftlog.resource_limits import RESERVED_DESCRIPTORS

if sys.platform != "win32":
    import resource

log = get_logger(__name__)


def raise_file_limit() -> None:
    """Use what the system allows: the soft limit is often 1,024 for the sake of programs that use
    select().
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning(
                "the limit of open files stays as it is", limit=soft, allowed=hard, error=str(error)
            )


def connections_allowed(wanted: int) -> int:
    """How many connections may be open, so that the disk, HTTP and other nodes find descriptors all
    the same.
    """
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    # Of few descriptors half: RocksDB opens files as it needs them.
    allowed = min(wanted, max(soft - RESERVED_DESCRIPTORS, soft // 2))
    if allowed < wanted:
        log.warning(
            "fewer connections than max.connections are accepted",
            accepted=allowed,
            open_files_limit=soft,
        )
    return allowed


def lanes_allowed(wanted: int, taken: int, whose: str) -> int:
    """How many of these (brokers, clients) may have a second connection that nobody else could
    have. ``taken``: by connections, and by the lanes of others.
    """
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = min(wanted, max(0, soft - RESERVED_DESCRIPTORS - taken))
    if allowed < wanted:
        log.info(
            "fewer than usual may have a connection beside gRPC",
            whose=whose,
            allowed=allowed,
            open_files_limit=soft,
        )
    return allowed
