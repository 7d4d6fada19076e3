"""The pytest plug-in: ``raftlog_cluster`` and ``raftlog_seed``.

pytest imports it in every run wherever raftlog is installed, so it imports nothing but pytest until
a test asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from raftlog.testing.cluster_session import ClusterSession
    from raftlog.testing.real_cluster import RealCluster

SEEDS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --raftlog-seeds."""
    parser.getgroup("raftlog").addoption(
        "--raftlog-seeds",
        metavar="N|FIRST-LAST",
        default=str(SEEDS),
        help=f"seeds of tests with raftlog_seed: the first N, or these (default: {SEEDS})",
    )
    parser.addini("raftlog_brokers", "brokers of raftlog_cluster", default="3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``raftlog_seed`` once per seed."""
    if "raftlog_seed" in metafunc.fixturenames:
        seeds = seeds_of(metafunc.config.getoption("--raftlog-seeds"))
        metafunc.parametrize("raftlog_seed", seeds, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the whole story of a failing seed to the report."""
    report: Any = yield
    simulated = sys.modules.get("raftlog.testing.simulated_run")
    error = call.excinfo.value if call.excinfo is not None else None
    if simulated is not None and isinstance(error, simulated.SeedFailedError):
        report.sections.append((f"raftlog: story of seed {error.seed}", error.story))
    return report


def seeds_of(text: str) -> range:
    """Return the seeds for ``N`` or ``FIRST-LAST``. Raises UsageError."""
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise pytest.UsageError(f"--raftlog-seeds {text}: must be a number of seeds, or FIRST-LAST")
    return seeds


@pytest.fixture
def raftlog_seed(request: pytest.FixtureRequest) -> int:
    """A seed for raftlog.testing.simulated: the test runs once for each seed of --raftlog-seeds."""
    seed: int = request.param
    return seed


@pytest.fixture(scope="session")
def _raftlog_session(pytestconfig: pytest.Config) -> Iterator[ClusterSession]:
    from raftlog.testing.needed import needs_testing_extra

    with needs_testing_extra():
        from raftlog.testing.cluster_session import ClusterSession
    brokers = pytestconfig.getini("raftlog_brokers")
    if not brokers.isdecimal() or not 1 <= int(brokers) <= 9:
        raise pytest.UsageError(f"raftlog_brokers = {brokers}: must be a number from 1 to 9")
    session = ClusterSession(brokers=int(brokers))
    try:
        yield session
    finally:
        session.end()


@pytest.fixture
def raftlog_cluster(_raftlog_session: ClusterSession) -> Iterator[RealCluster]:
    """An empty raftlog cluster of real processes."""
    from raftlog.testing.needed import needs_testing_extra
    from raftlog.testing.real_cluster import RealCluster

    with needs_testing_extra():
        cluster = RealCluster(_raftlog_session.clean())
    try:
        yield cluster
    finally:
        cluster.close()
