"""A broker's id: configured, stored in its directory, or assigned by the controller (KIP-426)."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.registration.broker_id import Ask, AssignedId, IdSeeker, known_id, seek_id
from broker.registration.directory import CLEAN_SHUTDOWN_FILE, NO_EPOCH, open_directory
from broker.registration.lifecycle import Exit
from broker.run import run_broker, settings_of
from broker.settings import BrokerSettings, LifecycleSettings
from raftlog.clock import NEVER
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.entities import Process
from raftlog.node.config.load import load_config
from raftlog.node.storage.api import NO_NODE_ID, NodeIdentity
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.transport.grpc_server import GrpcServerTransport

CLUSTER = "c-1"


@pytest.mark.parametrize(
    ("configured", "stored", "expected"),
    [
        (4, 4, 4),
        (4, NO_NODE_ID, 4),
        (NO_NODE_ID, 4, 4),
        (0, NO_NODE_ID, 0),
        (NO_NODE_ID, 0, 0),
        (NO_NODE_ID, NO_NODE_ID, NO_NODE_ID),
    ],
)
def test_configured_id_takes_precedence(configured: int, stored: int, expected: int) -> None:
    assert known_id(configured, stored, "/data") == expected


def test_configured_and_stored_broker_id_must_agree() -> None:
    with pytest.raises(
        ConfigError, match=r"node\.id is 0, but data directory /data belongs to node 7"
    ):
        known_id(0, 7, "/data")


def test_broker_id_is_stored_durably_and_once(tmp_path: Path) -> None:
    format_storage(tmp_path / "b", NodeIdentity(CLUSTER, NO_NODE_ID, "dir-1"))
    opened = open_directory(tmp_path / "b", cluster_id=CLUSTER, broker_id=NO_NODE_ID)
    assert opened.broker_id == NO_NODE_ID
    opened.claim(1001)
    assert read_identity(tmp_path / "b") == NodeIdentity(CLUSTER, 1001, "dir-1")
    assert opened.broker_id == 1001
    written = (tmp_path / "b" / "meta.json").stat().st_mtime_ns
    opened.claim(1001)
    assert (tmp_path / "b" / "meta.json").stat().st_mtime_ns == written
    opened.bind_generation(77)
    opened.close()
    again = open_directory(tmp_path / "b", cluster_id=CLUSTER, broker_id=NO_NODE_ID)
    assert again.identity == NodeIdentity(CLUSTER, 1001, "dir-1", 77)
    again.close()
    with pytest.raises(ConfigError, match=r"node\.id is 5, but"):
        open_directory(tmp_path / "b", cluster_id=CLUSTER, broker_id=5)


def test_reformatting_leaves_a_directory_with_an_id_unchanged(tmp_path: Path) -> None:
    """[a supervisor formats at every start: `storage format --ignore-formatted`]"""
    mine = NodeIdentity(CLUSTER, 1001, "dir-1")
    format_storage(tmp_path / "b", mine)
    assert (
        format_storage(
            tmp_path / "b", NodeIdentity(CLUSTER, NO_NODE_ID, "dir-2"), ignore_formatted=True
        )
        == mine
    )
    with pytest.raises(ConfigError, match="already formatted"):
        format_storage(tmp_path / "b", NodeIdentity(CLUSTER, NO_NODE_ID, "dir-2"))
    with pytest.raises(ConfigError, match="already formatted"):
        format_storage(
            tmp_path / "b", NodeIdentity("c-2", NO_NODE_ID, "dir-2"), ignore_formatted=True
        )


# --- asking -------------------------------------------------------------------------------------


def seeker(now: float = 10.0) -> IdSeeker:
    return IdSeeker(timeout_ms=60_000, retry_backoff_min_ms=100, rng=random.Random(1), now=now)


def refusal(code: ErrorCode, **fields: Any) -> ApiError:
    return ApiError(code, "because", **fields)


def test_id_request_is_sent_at_once_and_states_its_age() -> None:
    one = seeker()
    assert one.poll(10.0) == Ask(0)
    one.failed(refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION), 12.0)
    assert one.poll(12.0) is None
    assert 12.0 < one.next_deadline <= 12.1
    assert one.poll(12.5) == Ask(2500)
    one.answered(1001, "generated", "why")
    assert one.result == AssignedId(1001, "generated", "why")
    assert (one.poll(13.0), one.next_deadline) == (None, NEVER)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
def test_id_request_is_retried_while_the_refusal_may_be_temporary(code: ErrorCode) -> None:
    one, now = seeker(), 10.0
    asked = 0
    while one.result is None:
        asked += one.poll(now) is not None
        if one.result is None:
            one.failed(refusal(code), now)
            assert one.next_deadline - now <= 1.0, "at least once a second"
            now = one.next_deadline
    assert asked > 50
    assert isinstance(one.result, Exit)
    assert not one.result.clean
    assert "within 60 s (initial.broker.registration.timeout.ms)" in one.result.reason
    assert code.name in one.result.reason
    assert now == pytest.approx(70.0)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
    ],
)
def test_id_request_fails_at_once_when_an_operator_must_decide(code: ErrorCode) -> None:
    one = seeker()
    one.poll(10.0)
    one.failed(refusal(code, outcome_unknown=True), 10.0)
    before: Any = one.result
    assert before is None
    one.failed(refusal(code), 11.0)
    assert isinstance(one.result, Exit)
    assert not one.result.clean
    assert "because" in one.result.reason


def test_id_request_names_a_controller_of_an_older_build() -> None:
    one = seeker()
    one.failed(refusal(ErrorCode.INVALID_REQUEST, field="broker_id"), 10.0)
    assert isinstance(one.result, Exit)
    assert "upgrade it, or set node.id" in one.result.reason


def test_stop_cancels_the_id_request_and_keeps_an_assigned_id() -> None:
    one = seeker()
    one.stop()
    assert one.result == Exit("stopped before it had an id", clean=True)
    one.answered(7, "", "")
    assert isinstance(one.result, Exit)
    one = seeker()
    one.answered(7, "", "")
    one.stop()
    assert isinstance(one.result, AssignedId)


async def test_broker_requests_no_id_when_it_cannot_listen() -> None:
    """[The same configuration twice: the second would get an id that it cannot use.]"""
    settings = BrokerSettings(
        NO_NODE_ID,
        CLUSTER,
        ("127.0.0.1:1",),
        "127.0.0.1:0",
        lifecycle=LifecycleSettings(registration_timeout_ms=300),
    )
    first, second = GrpcServerTransport(), GrpcServerTransport()
    listener = await first.listen("127.0.0.1:0", {})

    async def seek(listen: str) -> BrokerSettings | Exit:
        return await seek_id(
            replace(settings, listen=listen),
            second,
            process=Process("boot", "dir", 1, 1),
            incarnation_id="one",
            rng=random.Random(1),
            stopping=asyncio.Event(),
        )

    try:
        with pytest.raises(ConfigError, match=listener.address):
            await seek(listener.address)
        ended = await seek("127.0.0.1:0")
        assert isinstance(ended, Exit)
        assert "no broker id was assigned within 0.3 s" in ended.reason
    finally:
        await first.close()
        await second.close()


def test_id_request_waits_for_an_absent_broker_beyond_the_registration_timeout() -> None:
    error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2 is absent", field="broker_id")
    seeker = IdSeeker(timeout_ms=2000, retry_backoff_min_ms=100, rng=random.Random(1), now=0.0)
    for second in range(30):
        assert seeker.poll(second) is not None
        seeker.failed(error, second, awaited_s=600.0 - second)
        assert "2 is absent" in seeker.waits_for
        assert f"at most {600 - second} s more" in seeker.waits_for
    seeker.failed(ApiError(ErrorCode.NETWORK_EXCEPTION, "nobody there"), 29.5)
    assert "s more" not in seeker.waits_for
    assert seeker.poll(31.1) is None
    assert isinstance(seeker.result, Exit)
    assert "nobody there" in seeker.result.reason


DIRECTORY_ID = "6e9f1f5c-0000-4000-8000-000000000001"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_storage(tmp_path / "b4", NodeIdentity(CLUSTER, 4, DIRECTORY_ID))
    return tmp_path / "b4"


def test_process_proof_is_that_of_the_directory_lock(directory: Path) -> None:
    opened = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    status = (directory / "lock").stat()
    assert (opened.process.lock_device, opened.process.lock_inode) == (status.st_dev, status.st_ino)
    assert (opened.process.directory_id, len(opened.process.boot_id)) == (DIRECTORY_ID, 36)
    opened.close()
    opened.close()
    again = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert again.process == opened.process, (
        "a restarted process proves that its predecessor is gone"
    )
    again.close()


@pytest.mark.parametrize(
    ("cluster_id", "broker_id", "says"),
    [
        ("other", 4, "belongs to cluster 'c-1', but the configured cluster is 'other'"),
        (
            CLUSTER,
            5,
            (
                "node.id is 5, but data directory .* belongs to node 4 .*: set node.id to 4 or"
                " leave it out"
            ),
        ),
    ],
)
def test_directory_of_another_node_is_refused(
    directory: Path, cluster_id: str, broker_id: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_directory(directory, cluster_id=cluster_id, broker_id=broker_id)
    open_directory(directory, cluster_id=CLUSTER, broker_id=4).close()


def test_open_directory_without_a_boot_id_fails_unlocked(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what identifies this process"):
        open_directory(directory, cluster_id=CLUSTER, broker_id=4, boot_id_file=tmp_path / "none")
    open_directory(directory, cluster_id=CLUSTER, broker_id=4).close()


def config_file(tmp_path: Path, **more: str) -> Path:
    lines = {
        "process.roles": '["broker"]',
        "node.id": "4",
        "cluster.id": f'"{CLUSTER}"',
        "log.dirs": '["b4"]',
        "listeners": '["127.0.0.1:0"]',
        "controller.quorum.bootstrap.servers": '["127.0.0.1:1", "127.0.0.1:2"]',
    } | more
    path = tmp_path / "b4.toml"
    path.write_text("".join(f'"{key}" = {value}\n' for key, value in lines.items()))
    return path


def test_settings_are_read_from_the_node_configuration(tmp_path: Path) -> None:
    times = {
        "broker.heartbeat.interval.ms": "1500",
        "broker.session.timeout.ms": "6000",
        "broker.fencing.timeout.ms": "7000",
        "initial.broker.registration.timeout.ms": "5000",
        "controlled.shutdown.timeout.ms": "4000",
    }
    path = config_file(tmp_path, **{"broker.rack": '"r1"', **times})
    settings = settings_of(load_config(path))
    assert (settings.broker_id, settings.cluster_id, settings.rack) == (4, CLUSTER, "r1")
    assert settings.controllers == ("127.0.0.1:1", "127.0.0.1:2")
    assert settings.listen == "127.0.0.1:0"
    assert settings.log_dirs == (str(tmp_path / "b4"),)
    assert settings.lifecycle == LifecycleSettings(
        heartbeat_interval_ms=1500,
        session_timeout_ms=6000,
        fencing_timeout_ms=7000,
        registration_timeout_ms=5000,
        shutdown_timeout_ms=4000,
    )


async def test_broker_without_reachable_controllers_exits(tmp_path: Path, directory: Path) -> None:
    """Runs the whole process on real sockets; nothing listens at the controllers' addresses."""
    path = config_file(tmp_path, **{"initial.broker.registration.timeout.ms": "300"})
    assert await run_broker(load_config(path)) == 1
    open_directory(directory, cluster_id=CLUSTER, broker_id=4).close()


def test_clean_shutdown_is_seen_by_the_next_process_only(directory: Path) -> None:
    opened = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert opened.previous_broker_epoch == NO_EPOCH
    opened.record_clean_shutdown(17)
    opened.close()
    again = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert again.previous_broker_epoch == 17
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists(), "it may crash from here on"
    again.close()
    third = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert third.previous_broker_epoch == NO_EPOCH
    third.record_clean_shutdown(NO_EPOCH)
    third.close()
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists(), "it was never registered"


@pytest.mark.parametrize("content", [b"", b"17", b'{"broker_epoch": 17}'])
def test_damaged_clean_shutdown_file_is_ignored(directory: Path, content: bytes) -> None:
    (directory / CLEAN_SHUTDOWN_FILE).write_bytes(content)
    opened = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert opened.previous_broker_epoch == NO_EPOCH
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists()
    opened.close()
