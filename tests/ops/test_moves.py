"""Moves of replicas restore the throttle that was set before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.errors import ErrorCode, InvalidUpdateVersionError
from raftlog.metadata.config_keys import FOLLOWER_THROTTLE, LEADER_THROTTLE, ResourceType
from raftlog.ops.moves import ASK_S, BytesLeft, Move, MovePlan, Mover


def test_bytes_to_copy_are_shown_with_an_estimate_once_some_are_copied() -> None:
    left = BytesLeft()
    assert left.is_due(0.0)
    left.saw(30_000_000, 0.0)
    assert (left.is_due(ASK_S - 0.1), left.is_due(ASK_S)) == (False, True)
    assert left.in_words() == "; 30.0 MB to copy"
    left.saw(20_000_000, 5.0)
    assert left.in_words() == "; 20.0 MB to copy, about 10 s (estimate)"
    left.saw(0, 15.0)
    assert left.in_words() == ""


def test_growing_bytes_are_not_progress() -> None:
    left = BytesLeft()
    for size_bytes, least in ((100, 100), (150, 100), (None, 100), (90, 90)):
        left.saw(size_bytes, 0.0)
        assert left.least == least


def test_unknown_bytes_are_not_shown() -> None:
    left = BytesLeft()
    left.saw(100, 0.0)
    left.saw(None, 5.0)
    assert left.in_words() == ""


RATE = 3_000_000
OWN = {LEADER_THROTTLE: RATE, FOLLOWER_THROTTLE: RATE}


class Moving:
    """A cluster with the configs of all brokers, and a plan of three moves, one at a time."""

    def __init__(self, rates: Mapping[str, int]) -> None:
        self.rates, self.left, self.reports = dict(rates), 3, list[str]()
        self.rates_at_begin: list[dict[str, int]] = []
        self.on_begin: Callable[[], None] = lambda: None
        client: Any = SimpleNamespace(
            core=SimpleNamespace(log_reader=lambda _: None),
            options=SimpleNamespace(timeout_s=1.0),
            brokers=SimpleNamespace(visibility=self._visibility),
            configs=SimpleNamespace(alter=self._alter),
            partitions=SimpleNamespace(reassign_all=self._begin),
        )
        self.mover = Mover(
            client, self._plan, at_once=1, stalled_s=9, report=self.reports.append, throttle=RATE
        )
        patched: Any = self.mover
        patched._committed = SimpleNamespace(read=self._image)
        patched._ask_leaders = self._ask_leaders

    async def _image(self) -> Any:
        configs = {key: str(rate) for key, rate in self.rates.items()}
        return SimpleNamespace(topic_ids={}, configs={(int(ResourceType.BROKER), ""): configs})

    async def _visibility(self) -> Any:
        return SimpleNamespace(brokers=[])

    async def _ask_leaders(self, *_: object) -> None:
        pass

    def _plan(self, _image: object, _low_on_space: object) -> MovePlan:
        return MovePlan(tuple(Move("t", i, (1,), (2,)) for i in range(self.left)), (), 0)

    async def _alter(
        self,
        _kind: str,
        _name: str,
        *,
        set: Mapping[str, int] = {},
        delete: Iterable[str] = (),
        expected: Mapping[str, int | None] | None = None,
    ) -> None:
        if expected is not None and any(self.rates.get(key) != expected[key] for key in expected):
            raise InvalidUpdateVersionError(ErrorCode.INVALID_UPDATE_VERSION, "another value")
        self.rates.update(set)
        for key in delete:
            self.rates.pop(key, None)

    async def _begin(self, *_: object, **__: object) -> Any:
        self.rates_at_begin.append(dict(self.rates))
        self.left -= 1
        self.on_begin()
        return SimpleNamespace(items=[])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({LEADER_THROTTLE: 4, FOLLOWER_THROTTLE: 5}, {LEADER_THROTTLE: 4, FOLLOWER_THROTTLE: 5}),
        ({FOLLOWER_THROTTLE: 5}, {FOLLOWER_THROTTLE: 5}),
        (OWN, {}),
    ],
)
async def test_earlier_throttle_applies_again_after_the_moves(
    before: Mapping[str, int], after: Mapping[str, int]
) -> None:
    """cruise-control #2078. Its own rate is what an interrupted command has left."""
    cluster = Moving(before)
    assert (await cluster.mover.run()).is_complete
    assert (cluster.rates_at_begin, cluster.rates) == ([OWN] * 3, after)


async def test_throttle_that_another_command_removes_is_set_again_while_moves_are_left() -> None:
    """cruise-control #1511."""
    cluster = Moving({})
    cluster.on_begin = cluster.rates.clear
    assert (await cluster.mover.run()).is_complete
    assert cluster.rates_at_begin == [OWN] * 3


async def test_throttle_that_another_command_changes_stays() -> None:
    cluster, other = Moving({}), {LEADER_THROTTLE: 7, FOLLOWER_THROTTLE: 7}
    cluster.on_begin = lambda: cluster.rates.update(other)
    assert (await cluster.mover.run()).is_complete
    assert (cluster.rates_at_begin, cluster.rates) == ([OWN, other, other], other)


async def test_interrupted_command_prints_how_to_set_the_earlier_throttle_again() -> None:
    cluster = Moving({LEADER_THROTTLE: 4})

    def break_down() -> None:
        raise KeyboardInterrupt

    cluster.on_begin = break_down
    with pytest.raises(KeyboardInterrupt):
        await cluster.mover.run()
    assert cluster.rates == OWN
    assert cluster.reports[-1] == (
        "the throttle stays. Restore the previous one: raftlog configs alter broker ''"
        f" --set {LEADER_THROTTLE}=4 --delete {FOLLOWER_THROTTLE}"
    )
