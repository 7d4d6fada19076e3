from __future__ import annotations

from pathlib import Path

import pytest

from broker.registration.directory import open_directory
from broker.run import run_broker, settings_of
from broker.settings import LifecycleSettings
from raftlog.errors import ConfigError
from raftlog.node.config.load import load_config
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import META_FILE, format_storage

CLUSTER = "c-1"
DIRECTORY_ID = "6e9f1f5c-0000-4000-8000-000000000001"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_storage(tmp_path / "b4", NodeIdentity(CLUSTER, 4, DIRECTORY_ID))
    return tmp_path / "b4"


def test_the_process_proof_is_that_of_the_lock(directory: Path) -> None:
    opened = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    status = (directory / "lock").stat()
    assert (opened.process.lock_device, opened.process.lock_inode) == (status.st_dev, status.st_ino)
    assert opened.process.directory_id == DIRECTORY_ID
    assert len(opened.process.boot_id) == 36
    opened.close()
    opened.close()
    again = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    assert again.process == opened.process, (
        "a restarted process proves that its predecessor is gone"
    )
    again.close()


def test_a_directory_in_use_is_refused(directory: Path) -> None:
    opened = open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    with pytest.raises(ConfigError, match="in use by pid"):
        open_directory(directory, cluster_id=CLUSTER, broker_id=4)
    opened.close()


@pytest.mark.parametrize(
    ("cluster_id", "broker_id", "says"),
    [
        ("other", 4, "belongs to cluster 'c-1', configured is cluster 'other'"),
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
def test_somebody_elses_directory_is_refused(
    directory: Path, cluster_id: str, broker_id: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_directory(directory, cluster_id=cluster_id, broker_id=broker_id)
    open_directory(directory, cluster_id=CLUSTER, broker_id=4).close()


def test_unformatted_and_corrupt_directories_are_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not formatted"):
        open_directory(tmp_path / "none", cluster_id=CLUSTER, broker_id=4)
    meta = directory / META_FILE
    meta.write_bytes(meta.read_bytes().replace(b'"node_id":4', b'"node_id":5'))
    with pytest.raises(ConfigError, match="corrupt"):
        open_directory(directory, cluster_id=CLUSTER, broker_id=5)


def test_without_a_boot_id_there_is_no_proof_and_the_lock_is_given_back(
    directory: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="what names this process"):
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


def test_settings_come_from_the_nodes_configuration(tmp_path: Path) -> None:
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


async def test_a_broker_without_controllers_ends_with_an_exit_code(
    tmp_path: Path, directory: Path
) -> None:
    """The whole process but for its signals, over real sockets: nobody listens where the
    controllers should be.
    """
    path = config_file(tmp_path, **{"initial.broker.registration.timeout.ms": "300"})
    assert await run_broker(load_config(path)) == 1
    open_directory(directory, cluster_id=CLUSTER, broker_id=4).close()
