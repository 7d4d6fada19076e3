"""The simulated cluster, as a test's coroutine uses it."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from typing_extensions import Unpack

from raftlog.client.async_client import AsyncClient
from raftlog.client.options import ClientOptions
from raftlog.testing.story import Story
from simulation.guest_world import Guest, GuestWorld

if TYPE_CHECKING:
    from raftlog.transport.api import Transport

P = ParamSpec("P")
T = TypeVar("T")
MAIN = "main"
"""Host of the test's own coroutine, which no fault affects."""


class HostSurroundings:
    """The process of one host, in which clients use the simulated network."""

    def __init__(self, world: GuestWorld, story: Story, host: str) -> None:
        self._world, self._story, self._host = world, story, host
        self._clients = 0
        self.bootstrap = ",".join(broker.endpoint for broker in world.members)

    def admit(self, client: AsyncClient) -> tuple[Callable[[], Transport], random.Random]:
        """See :class:`raftlog.client.async_client.Surroundings`."""
        self._clients += 1
        self._story.record(client, self._host)
        rng = self._world.rng(f"client {self._clients} of {self._host}")
        return (lambda: self._world.network.transport_for(self._host)), rng

    def killed(self) -> None:
        """See :class:`simulation.guest_world.GuestSurroundings`."""
        self._story.give_up(self._host)


class Program(Generic[T]):
    """A program on its own host; ``await`` it for the result of its coroutine."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    @property
    def name(self) -> str:
        """Name of the program, and of its host."""
        return self._guest.name

    @property
    def runs(self) -> bool:
        """Whether its process exists; also true while it is paused."""
        return self._guest.task is not None

    def __await__(self) -> Generator[Any, None, T]:
        return self._guest.ended.__await__()


class SimulatedCluster:
    """A cluster on virtual time, its faults, and the programs that use it. Nodes are named in
    ``controllers`` and ``brokers``; a program has the name given to it.
    """

    def __init__(self, world: GuestWorld, story: Story) -> None:
        self._world, self._story = world, story
        self.rng = world.rng("test")
        """Random numbers for the test, the same for the same seed."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self._world.seed

    @property
    def now(self) -> float:
        """Virtual seconds since the start, independent of the hosts' clocks."""
        return self._world.now()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers, separated by commas."""
        return ",".join(broker.endpoint for broker in self._world.members)

    @property
    def bootstrap_controllers(self) -> str:
        """Addresses of the controllers, separated by commas."""
        return ",".join(controller.endpoint for controller in self._world.controllers)

    @property
    def controllers(self) -> list[str]:
        """Names of the controllers."""
        return [host.name for host in self._world.controllers]

    @property
    def brokers(self) -> list[str]:
        """Names of the brokers."""
        return [host.name for host in self._world.members]

    @property
    def leader(self) -> str | None:
        """Name of the controller that leads, or None."""
        active = self._world.active()
        return None if active is None else f"c{active.quorum.node_id}"

    def connect_async(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a client. In a simulated run, ``raftlog.AsyncClient()`` returns the same."""
        return AsyncClient(self.bootstrap_servers, **options)

    def program(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Program[T]:
        """Start ``function(*args, **kwargs)`` as a separate program: a process on another host.

        The run fails if it raises. Raises ValueError for a name that is taken.
        """
        world = self._world
        if name in (MAIN, *world.guests, *self.controllers, *self.brokers):
            raise ValueError(f"the name {name!r} is already in use")
        guest = Guest(
            world,
            name,
            lambda: function(*args, **kwargs),
            HostSurroundings(world, self._story, name),
        )
        world.guests[name] = guest
        self.note("started", who=name)
        guest.start()
        return Program(guest)

    def note(self, what: str, *, who: str = "") -> None:
        """Add a line to the story."""
        self._world.note(who or MAIN, what)

    # --- faults by hand --------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a node or program as if by kill -9; a node loses its unflushed data."""
        self.note("killed", who=name)
        (self._guest(name) or self._world.named(name)).kill()

    def start(self, name: str) -> None:
        """Start a stopped node or program; a program starts from its beginning."""
        guest = self._guest(name)
        self.note("started", who=name)
        if guest is not None:
            guest.start()
        elif (host := self._world.named(name)).service is None:
            host.start()

    def pause(self, name: str) -> None:
        """Pause a node or program, as if by SIGSTOP."""
        self._check(name)
        self.note("paused", who=name)
        self._world.network.pause(name)

    def resume(self, name: str) -> None:
        """Resume a paused node or program."""
        self._check(name)
        self.note("resumed", who=name)
        self._world.network.resume(name)

    def cut(self, one: str, other: str) -> None:
        """Block all messages between two nodes or programs."""
        self._check(one)
        self._check(other)
        self.note(f"cut off from {other}", who=one)
        self._world.network.partition(one, other)

    def heal(self, one: str, other: str) -> None:
        """Let messages between two nodes or programs pass again."""
        self._check(one)
        self._check(other)
        self.note(f"reaches {other} again", who=one)
        self._world.network.heal(one, other)

    async def calm(self) -> None:
        """Stop injecting faults, undo their effects, and wait until the cluster is healthy. A
        killed program stays down.
        """
        await self._world.calm()

    def _guest(self, name: str) -> Guest | None:
        self._check(name)
        return self._world.guests.get(name)

    def _check(self, name: str) -> None:
        names = [*self.controllers, *self.brokers, *self._world.guests]
        if name not in names:
            raise ValueError(f"there is no {name!r}: use one of {', '.join(names)}")
