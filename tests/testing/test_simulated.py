"""``raftlog.testing.simulated``."""

import asyncio
import gc
import logging
import os
import random
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import structlog
from command_runs import run_text
from scenarios import scenario

import raftlog
from raftlog import testing
from raftlog.errors import ApiError, UnknownOutcomeError
from raftlog.recipes import AsyncLock, PlaceLostError
from simulation.guest_world import GUEST_FAULTS
from simulation.twins.loop import run

MANY_FAULTS = {
    name: 30.0 if name in ("kill_program", "kill_all_controllers", "long_pause", "split") else 4.0
    for name in testing.FAULTS
}


async def count(key: str, times: int) -> int:
    """Increment a key, each time on the condition that it is unchanged."""
    done = 0
    async with raftlog.AsyncClient(timeout_s=3) as client:
        while done < times:
            try:
                found = await client.kv.get(key)
                value = str(1 if found is None else int(found.text) + 1)
                expected = raftlog.ABSENT if found is None else found.offset
                await client.kv.put(key, value, expected=expected)
                done += 1
            except UnknownOutcomeError:
                done += 1
            except ApiError:
                pass
            await asyncio.sleep(0.5)
    return done


async def counting(cluster: testing.SimulatedCluster) -> int:
    programs = [cluster.program(name, count, "visits", 8) for name in ("ann", "bob")]
    for program in programs:
        assert await program == 8
    await cluster.calm()
    found = await cluster.connect_async().kv.get("visits", read="strict")
    assert found is not None
    return int(found.text)


async def everything(cluster: testing.SimulatedCluster) -> str:
    """Return all that might depend on an address or hash: task sets, leases ending together."""

    async def sleeper(number: int) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            cluster.note(f"sleeper {number} is cancelled")

    async def group_that_fails() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(sleeper(number))
            await asyncio.sleep(0.1)
            raise KeyError

    with pytest.raises(ExceptionGroup):
        await group_that_fails()
    tasks = {asyncio.create_task(asyncio.sleep(1, number)) for number in range(30)}
    done, _ = await asyncio.wait(tasks)
    cluster.note(str([task.result() for task in done]))
    async with cluster.connect_async() as client:
        for _ in range(10):
            await client.leases.grant(10)
        watches = [client.watch("kv") for _ in range(5)]
        cluster.note(f"{random.random()} {cluster.rng.random()} {len(watches)}")
    cluster.connect_async()  # forgotten
    return str(await counting(cluster))


def test_run_reports_result_time_faults_and_story() -> None:
    ran = testing.simulated(counting, seed=3)
    assert ran.seed == 3
    assert ran.result <= 16
    assert ran.virtual_s > 4
    assert sum(ran.faults.values()) > 0
    assert set(ran.faults) <= set(testing.FAULTS)
    for line in (
        r"ann         started",
        r"ann         kv.get('visits') -> None",
        r"ann         returned",
        r"controllers c",
        r"cluster     calm: no more faults, all nodes run",
    ):
        assert line in ran.story, ran.story


def test_same_seed_produces_the_same_transcript_in_any_process() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_simulated import MANY_FAULTS, everything\n"
        "from raftlog.testing import simulated\n"
        "print(simulated(everything, seed=1, faults=MANY_FAULTS).story)\n"
    )
    stories = []
    for number in (1, 2):
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "RAFTLOG_BOOTSTRAP_SERVER": "x"}
        # Other addresses, too: the low bits would else be the same.
        padding = f"x = [bytes(size) for size in range(1, 512, 8) for _ in range({number * 7})]\n"
        ran = run_text(
            [sys.executable, "-c", padding + program, *map(str, Path(__file__).parents[:2])],
            env=environment,
        )
        assert ran.returncode == 0, ran.stderr
        stories.append(ran.stdout)
    assert len(stories[0].splitlines()) > 150
    assert stories[0] == stories[1]


def test_other_seeds_give_other_stories() -> None:
    stories = {testing.simulated(counting, seed=seed).story for seed in range(3)}
    assert len(stories) == 3


def test_run_is_fifty_times_faster_than_time() -> None:
    """Measured in CPU time: the machine may have other work."""

    async def one_call_a_second(cluster: testing.SimulatedCluster) -> None:
        async with cluster.connect_async() as client:
            for number in range(60):
                await client.kv.put("k", str(number))
                await asyncio.sleep(1)

    testing.simulated(one_call_a_second)
    began = time.process_time()
    ran = testing.simulated(one_call_a_second)
    assert ran.virtual_s > 60
    assert ran.virtual_s / (time.process_time() - began) > 50


def test_failure_reports_seed_story_and_unanswered_calls(capfd: pytest.CaptureFixture[str]) -> None:
    async def put() -> None:
        async with raftlog.AsyncClient() as client:
            await client.kv.put("k", "1")

    async def main(cluster: testing.SimulatedCluster) -> None:
        for name in cluster.controllers:
            cluster.pause(name)
        cluster.program("ann", put)
        await asyncio.sleep(1)
        raise AssertionError("too slow")

    with pytest.raises(testing.SeedFailedError) as failed:
        testing.simulated(main, seed=7, faults={})
    error = failed.value
    assert error.seed == 7
    said = str(error)
    assert said.startswith("seed 7 failed after 1.")
    assert "AssertionError: too slow" in said
    assert "c1          paused" in said
    assert "kv.put('k', '1') … not answered for 1.000 s" in said
    assert error.story.splitlines()[-1] in said


def test_failure_of_a_program_fails_the_run() -> None:
    async def broken() -> None:
        await asyncio.sleep(1)
        raise KeyError("missing")

    async def main(cluster: testing.SimulatedCluster) -> None:
        cluster.program("ann", broken)
        await asyncio.sleep(100)

    with pytest.raises(testing.SeedFailedError, match=r"ann +raised KeyError: 'missing'"):
        testing.simulated(main, faults={})


def test_skip_in_a_program_is_not_a_failure() -> None:
    async def main(_: testing.SimulatedCluster) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        testing.simulated(main)


def test_endless_run_fails() -> None:
    async def main(_: testing.SimulatedCluster) -> None:
        await asyncio.Event().wait()

    with pytest.raises(testing.SeedFailedError, match="has not ended after 50 s of virtual time"):
        testing.simulated(main, limit_s=50)


def test_run_that_never_sleeps_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing.simulated_run, "run", partial(run, max_steps=100_000))

    async def main(_: testing.SimulatedCluster) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(testing.SeedFailedError, match="has not ended after 100000 steps"):
        testing.simulated(main, faults={})


def test_sweep_names_all_failing_seeds() -> None:
    async def main(cluster: testing.SimulatedCluster) -> int:
        assert cluster.seed not in (0, 2)
        return cluster.seed

    assert [ran.result for ran in testing.sweep(main, (1,), faults={})] == [1]
    with pytest.raises(
        testing.SeedFailedError, match=r"\A2 of 3 seeds failed: 0, 2\nseed 0 failed"
    ) as failed:
        testing.sweep(main, range(3), faults={})
    assert failed.value.seed == 0


async def test_call_from_a_coroutine_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call it from `def`"):
        testing.simulated(counting)


@pytest.mark.parametrize(
    "faults", [{"kill_nobody": 1.0}, {"pause": 0.0}, {"pause": -1.0}, {"pause": float("nan")}]
)
def test_unknown_fault_is_refused(faults: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"there is no fault 'kill_nobody'|mean time between two"):
        testing.simulated(counting, faults=faults)


def test_threads_and_sockets_are_refused() -> None:
    async def main(_: testing.SimulatedCluster) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(testing.SeedFailedError, match="a simulated program must not use threads"):
        testing.simulated(main, faults={})

    async def connecting(_: testing.SimulatedCluster) -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises(testing.SeedFailedError, match=r"NotImplementedError|must not use threads"):
        testing.simulated(connecting, faults={})


def test_blocking_client_is_refused() -> None:
    async def main(_: testing.SimulatedCluster) -> None:
        raftlog.connect()

    with pytest.raises(testing.SeedFailedError, match=r"raftlog\.AsyncClient"):
        testing.simulated(main, faults={})


def test_process_state_is_restored_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP_SERVER", "127.0.0.1:1")
    structlog.configure(processors=[])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    random.seed(5)
    expected, numbers = random.Random(5).random(), []

    async def main(_: testing.SimulatedCluster) -> None:
        numbers.append(random.random())

    testing.simulated(main)
    testing.simulated(main)
    assert numbers[0] == numbers[1]
    assert random.random() == expected
    assert os.environ["RAFTLOG_BOOTSTRAP_SERVER"] == "127.0.0.1:1"
    assert structlog.get_config()["processors"] == []
    assert logging.getLogger("asyncio").level == logging.WARNING
    structlog.reset_defaults()
    with pytest.raises(testing.SeedFailedError):
        testing.simulated(lambda _: 1 / 0, faults={})  # type: ignore[arg-type, return-value]
    assert not structlog.is_configured()
    client = raftlog.AsyncClient()
    assert client.token is None


# --- programs ------------------------------------------------------------------------------------


def test_killed_program_holds_its_lock_until_the_lease_ends() -> None:
    taken: list[tuple[str, float]] = []

    async def worker(cluster: testing.SimulatedCluster, name: str) -> None:
        async with cluster.connect_async() as client, AsyncLock(client, "job", ttl_s=5):
            taken.append((name, cluster.now))
            await asyncio.sleep(60)

    async def main(cluster: testing.SimulatedCluster) -> None:
        ann = cluster.program("ann", worker, cluster, "ann")
        await asyncio.sleep(1)
        cluster.program("bob", worker, cluster, "bob")
        await asyncio.sleep(1)
        ran = [ann.runs]
        cluster.kill("ann")
        ran.append(ann.runs)
        await asyncio.sleep(10)
        cluster.start("ann")
        ran.append(ann.runs)
        await asyncio.sleep(10)
        assert ran == [True, False, True]

    testing.simulated(main, faults={})
    (first, began), (second, next_began) = taken
    assert (first, second) == ("ann", "bob")
    assert 2 < next_began - began < 8


def test_paused_program_has_lost_its_lock_when_it_resumes() -> None:
    async def holder(client: raftlog.AsyncClient, seen: list[bool]) -> None:
        lock = AsyncLock(client, "job", ttl_s=3)
        await lock.acquire()
        seen.append(lock.is_held)
        await asyncio.sleep(1)
        seen.append(lock.is_held)
        with pytest.raises(raftlog.errors.InvalidUpdateVersionError):
            await client.kv.alter(lock.guard(), raftlog.Put("state", "late"))

    async def main(cluster: testing.SimulatedCluster) -> list[bool]:
        seen: list[bool] = []
        ann = cluster.program("ann", lambda: holder(raftlog.AsyncClient(), seen))
        await asyncio.sleep(0.5)
        cluster.pause("ann")
        await asyncio.sleep(10)
        cluster.resume("ann")
        await ann
        return seen

    ran = testing.simulated(main, faults={})
    assert ran.result == [True, False]
    assert ": no keep-alive was confirmed for 2.25 s" in ran.story


def test_isolated_program_is_served_by_the_brokers_that_it_reaches() -> None:
    async def write(cluster: testing.SimulatedCluster) -> list[bool]:
        written = []
        async with raftlog.AsyncClient(timeout_s=1) as client:
            for _ in range(3):
                await asyncio.sleep(1)
                try:
                    written.append((await client.kv.put("k", "1")).offset > 0)
                except ApiError:
                    written.append(False)
        return written

    async def main(cluster: testing.SimulatedCluster) -> list[bool]:
        ann = cluster.program("ann", write, cluster)
        first, *others = cluster.brokers
        for broker in others:
            cluster.cut("ann", broker)
        await asyncio.sleep(1.5)
        cluster.cut("ann", first)
        await asyncio.sleep(2.5)
        cluster.heal("ann", first)
        return await ann

    assert testing.simulated(main, faults={}).result == [True, False, True]


@scenario(testing.simulated, faults={})
async def test_program_names_are_unique_and_known(cluster: testing.SimulatedCluster) -> None:
    cluster.program("ann", asyncio.sleep, 1)
    for name in ("ann", "main", "c1", "b1"):
        with pytest.raises(ValueError, match=f"'{name}' is already in use"):
            cluster.program(name, asyncio.sleep, 1)
    for call in (cluster.kill, cluster.start, cluster.pause, cluster.resume):
        with pytest.raises(ValueError, match="there is no 'bob': use one of c1, c2, c3, b1"):
            call("bob")


@scenario(testing.simulated, faults={})
async def test_calm_ends_faults_caused_by_the_test(cluster: testing.SimulatedCluster) -> None:
    assert cluster.leader is not None
    cluster.kill(cluster.leader)
    cluster.kill(cluster.brokers[0])
    cluster.pause(cluster.brokers[1])
    cluster.cut("main", cluster.brokers[2]) if "main" in cluster.controllers else None
    for controller in cluster.controllers:
        cluster.cut(controller, cluster.brokers[2])
    await asyncio.sleep(20)
    await cluster.calm()
    async with cluster.connect_async() as client:
        await client.kv.put("k", "1", acks="visible")
        assert [one.fenced for one in await client.brokers.list()] == [False] * 3


# --- faults --------------------------------------------------------------------------------------


def test_each_fault_has_a_name_and_a_description() -> None:
    assert testing.FAULTS.keys() == GUEST_FAULTS.keys()
    assert testing.DEFAULT_FAULTS.keys() <= testing.FAULTS.keys()


@pytest.mark.parametrize("name", testing.FAULTS)
def test_fault_happens_and_ends_with_calm(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def for_ever() -> None:
        async with raftlog.AsyncClient(timeout_s=2) as client:
            while True:
                with suppress(ApiError):
                    await client.kv.put("k", "1")
                await asyncio.sleep(0.5)

    async def main(cluster: testing.SimulatedCluster) -> None:
        for one in ("ann", "bob"):
            cluster.program(one, for_ever)
        await asyncio.sleep(25)
        await cluster.calm()
        async with cluster.connect_async() as client:
            await client.kv.put("k", "1", acks="visible", timeout_s=5)

    ran = testing.simulated(main, faults={name: 2.0}, seed=1)
    assert ran.faults.get(name, 0) > 0, ran.story
    del main
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_empty_fault_list_injects_none() -> None:
    ran = testing.simulated(counting, faults={})
    assert ran.faults == {}
    assert ran.result == 16
    assert PlaceLostError.__name__ not in ran.story
