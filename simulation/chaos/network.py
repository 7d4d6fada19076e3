"""Hosts as network namespaces around one router namespace, which can drop the packets of a pair of
hosts in either direction. A host has the address 10.77.N.2, the router 10.77.N.1. Dropped packets
are not refused: both ends see silence.
"""

import ctypes
from collections.abc import Iterable
from pathlib import Path

from simulation.chaos.power import run

_CLONE_NEWNET = 0x40000000
_PRIORITY = "100"


class Network:
    """The namespaces ``PREFIX-r`` (the router) and ``PREFIX-N`` per host number. Needs root."""

    def __init__(self, prefix: str, hosts: Iterable[int]) -> None:
        self._prefix = prefix
        self.hosts = sorted(hosts)
        self._cut: set[tuple[int, int]] = set()

    def create(self) -> None:
        """Make all namespaces and links. Raises OSError with the output of ``ip``."""
        self.delete()
        _ip(f"netns add {self.router}")
        _ip(f"-n {self.router} link set lo up")
        _ip(f"netns exec {self.router}", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for host in self.hosts:
            space = self.space(host)
            _ip(f"netns add {space}")
            link = f"v{host} type veth peer name eth0 netns {space}"
            _ip(f"-n {self.router} link add {link}")
            _ip(f"-n {self.router} addr add 10.77.{host}.1/24 dev v{host}")
            _ip(f"-n {self.router} link set v{host} up")
            _ip(f"-n {space} addr add {self.address(host)}/24 dev eth0")
            for link in ("eth0", "lo"):
                _ip(f"-n {space} link set {link} up")
            _ip(f"-n {space} route add default via 10.77.{host}.1")

    def delete(self) -> None:
        for space in (self.router, *map(self.space, self.hosts)):
            if Path("/var/run/netns", space).exists():
                _ip(f"netns del {space}")

    @property
    def router(self) -> str:
        """The router's namespace. Clients live there: no cut of a pair concerns them."""
        return f"{self._prefix}-r"

    def space(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        return f"10.77.{host}.2"

    def enter_router(self) -> None:
        """Move the calling thread and those it starts to the router's namespace. Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/var/run/netns", self.router).open() as space:
            if libc.setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(
                    ctypes.get_errno(), f"cannot enter the network namespace {self.router}"
                )

    def cut(self, source: int, target: int) -> None:
        if (source, target) not in self._cut:
            self._cut.add((source, target))
            self._rule("add", source, target)

    def split(self, one_side: Iterable[int], other_side: Iterable[int]) -> None:
        others = list(other_side)
        for one in one_side:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def isolate(self, host: int) -> None:
        """Take a host's link down: no host and no client reaches it."""
        _ip(f"-n {self.router} link set v{host} down")

    def heal(self) -> None:
        for source, target in sorted(self._cut):
            self._rule("del", source, target)
        self._cut.clear()
        for host in self.hosts:
            _ip(f"-n {self.router} link set v{host} up")

    def _rule(self, verb: str, source: int, target: int) -> None:
        ends = f"from {self.address(source)} to {self.address(target)}"
        _ip(f"-n {self.router} rule {verb} {ends} blackhole prio {_PRIORITY}")


def _ip(words: str, *command: str) -> None:
    run("ip", *words.split(), *command)
