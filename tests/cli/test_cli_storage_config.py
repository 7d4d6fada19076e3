"""Commands that need no cluster: storage and config."""

import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from command_lines import Raftlog
from command_runs import run_text

from raftlog.endpoint import Voter
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.storage.api import NodeIdentity, VoteState
from raftlog.node.storage.directory import format_storage
from raftlog.node.storage.files import COPY_BYTES, VOTE_FILE, Bootstrap, VoteFile, read_bootstrap

CONTROLLER = """
process.roles = ["controller"]
node.id = 1
cluster.id = "C"
log.dirs = "data"
controller.quorum.voters = ["1@127.0.0.1:9093"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(CONTROLLER)
    return path


def test_random_uuid_differs_at_each_call(raftlog: Raftlog) -> None:
    first, second = (uuid.UUID(raftlog("storage random-uuid").out.strip()) for _ in range(2))
    assert first != second


def test_storage_info_shows_the_format(raftlog: Raftlog, config: Path, tmp_path: Path) -> None:
    made = raftlog.succeed("storage format --json -c", config)
    assert made.json["cluster_id"] == "C"
    assert made.json["node_id"] == 1
    assert made.json["directory"] == str(tmp_path / "data")
    info = raftlog.succeed("storage info --json -d", tmp_path / "data")
    assert info.json["directory_id"] == made.json["directory_id"]
    assert (info.json["log_end_offset"], info.json["vote_epoch"]) == (0, 0)
    assert "directory id" in raftlog("storage info -c", config).out


def test_info_reports_a_damaged_copy_of_the_vote(raftlog: Raftlog, tmp_path: Path) -> None:
    """One block of the file differs from the other copy."""
    directory = tmp_path / "data"
    format_storage(directory, NodeIdentity("C", 1, "d1"))
    vote = VoteFile(directory)
    vote.write(VoteState(9, 2, "d2"))
    whole = raftlog("storage info --json -d", directory)
    assert (whole.json["vote_copy_damaged"], whole.err) == (False, "")
    path = directory / VOTE_FILE
    raw = bytearray(path.read_bytes())
    raw[COPY_BYTES + 20] ^= 1
    path.write_bytes(raw)
    info = raftlog("storage info --json -d", directory)
    assert (info.json["vote_copy_damaged"], info.json["vote_epoch"]) == (True, 9)
    assert info.err.count("one of the two copies of the vote is damaged") == 1
    assert "the node rewrites both copies when it starts" in info.err
    assert path.read_bytes() == raw, "it changes nothing"


def test_storage_format_accepts_options_without_a_file(raftlog: Raftlog, tmp_path: Path) -> None:
    raftlog("storage format --cluster-id C --node-id 7 --directory", tmp_path / "d").showed(
        "node 7 of cluster C"
    )


def test_second_format_is_refused_unless_ignore_formatted(raftlog: Raftlog, config: Path) -> None:
    directory_id = raftlog("storage format --json -c", config).json["directory_id"]
    raftlog("storage format -c", config).refused(2, "already formatted")
    ignored = raftlog("storage format --ignore-formatted --json -c", config)
    assert (ignored.code, ignored.json["directory_id"]) == (0, directory_id)


def test_format_of_another_nodes_directory_is_refused(raftlog: Raftlog, config: Path) -> None:
    raftlog("storage format -c", config)
    raftlog("storage format --ignore-formatted -c", config, "--set", "cluster.id=D").refused(
        2, "'C'", "'D'"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "give --config FILE, or --directory, --cluster-id, --node-id"),
        ("--cluster-id C --node-id 0", "give --config FILE, or --directory"),
        ("-c x.toml --node-id 1", "not both"),
        ("-c /none.toml", "cannot read /none.toml"),
    ],
)
def test_format_reports_what_is_missing(raftlog: Raftlog, arguments: str, words: str) -> None:
    raftlog("storage format", *arguments.split()).refused(2, words)


def test_info_reports_an_unformatted_directory(raftlog: Raftlog, tmp_path: Path) -> None:
    raftlog("storage info -d", tmp_path).refused(2, "is not formatted")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "nowhere",
            "it does not exist. A node's configuration names its data directory in log.dirs",
        ),
        ("file", "it is a file"),
        (
            "cluster",
            (
                "it contains no meta.json. Data directories in it: {path}/data/one,"
                " {path}/data/two, {path}/data/a-broker\n"
            ),
        ),
        ("exported", "it is an export"),
    ],
)
def test_wrong_directory_names_the_directories_with_a_log(
    raftlog: Raftlog, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "manifest.json").touch()
    for node in ("one", "two"):
        raftlog(
            "storage format --cluster-id C --node-id 7 --directory",
            tmp_path / "cluster/data" / node,
        )
    (tmp_path / "cluster/data/a-broker/partitions").mkdir(parents=True)
    (tmp_path / "cluster/data/a-broker/meta.json").touch()
    for command in (("export", tmp_path / "new"), ("log", "dump"), ("log", "image")):
        ran = raftlog(*command, "-d", tmp_path / name).refused(
            2, f"{tmp_path / name} is not a data directory of a node: "
        )
        assert words.format(path=tmp_path / "cluster") in ran.err
    # A node that has never run.
    raftlog("export", tmp_path / "new", "-d", tmp_path / "cluster/data/one").refused(
        2, f"{tmp_path / 'cluster/data/one'} contains no log: brokers have none"
    )
    assert not (tmp_path / "new").exists()


def test_config_check_lists_all_mistakes(raftlog: Raftlog, config: Path) -> None:
    config.write_text(CONTROLLER + 'nonsense = 1\nlog.level = "loud"\n')
    raftlog("config check", config).refused(
        2, "2 mistakes", "nonsense: unknown key", "log.level = 'loud'"
    )


def test_config_check_reads_the_certificate_files(raftlog: Raftlog, config: Path) -> None:
    """[it accepted a key with which no handshake succeeds]"""
    files = "".join(f'tls.{one}.file = "{one}.pem"\n' for one in ("certificate", "key", "ca"))
    config.write_text(CONTROLLER + files)
    raftlog("config check", config).refused(2, "tls.key.file: No such file or directory")


def test_config_check_shows_effective_values(
    raftlog: Raftlog, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_LOG_LEVEL", "debug")
    checked = raftlog("config check --json", config).json
    assert (checked["file"], checked["role"]) == (str(config), "controller")
    values = checked["values"]
    assert values["log.level"] == "debug"
    assert values["controller.quorum.voters"] == ["1@127.0.0.1:9093"]
    ran = raftlog("config check", config)
    verdict, blank, headings, *rows, rest = ran.out.splitlines()
    assert verdict == f"{config}: valid configuration of a controller"
    assert (blank, headings.split()) == ("", ["KEY", "VALUE"])
    shown = {row.split()[0] for row in rows}
    assert shown >= {"node.id", "controller.quorum.voters", "log.level"}
    assert "log.format" not in shown, "it has its default"
    assert rest == f"({len(values) - len(shown)} keys with default values not shown: --all)"
    everything = raftlog("config check --all", config).out
    assert {line.split()[0] for line in everything.splitlines()[3:]} >= values.keys()


def test_config_keys_lists_defaults_and_units(raftlog: Raftlog) -> None:
    rows = raftlog("config keys --json").json["keys"]
    by_key = {row["key"]: row for row in rows}
    assert by_key["broker.session.timeout.ms"]["default"] == "9000"
    assert by_key["broker.session.timeout.ms"]["unit"] == "ms"
    assert "node.id" in raftlog("config keys").out


def test_node_with_the_wrong_role_names_the_right_command(raftlog: Raftlog, config: Path) -> None:
    raftlog("broker run -c", config).refused(2, "raftlog controller run")


def test_node_on_an_unformatted_directory_is_reported(config: Path) -> None:
    # In a process of its own: a node takes the process's signals.
    command = [sys.executable, "-m", "raftlog", "controller", "run", "-c", str(config)]
    ran = run_text(command, timeout=120)
    assert ran.returncode == 2
    assert "raftlog storage format" in ran.stderr
    assert "Traceback" not in ran.stderr


DYNAMIC = """
process.roles = ["controller"]
node.id = 1
cluster.id = "C"
log.dirs = "data"
listeners = ["127.0.0.1:9093"]
controller.quorum.bootstrap.servers = ["127.0.0.1:9093"]
"""
DIRECTORIES = [str(uuid.UUID(int=number)) for number in range(3)]
OWN = Voter(1, "127.0.0.1:9093", DIRECTORIES[1])


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(DYNAMIC)
    return path


def test_configured_voters_need_no_option(raftlog: Raftlog, config: Path, tmp_path: Path) -> None:
    raftlog.succeed("storage format -c", config)
    assert read_bootstrap(tmp_path / "data") == Bootstrap()


@pytest.mark.parametrize(
    ("options", "bootstrap"),
    [
        ("--standalone --release-version 1", Bootstrap((OWN,), 1)),
        ("--no-initial-controllers", Bootstrap((), 0)),
        (
            "--standalone --super-user User:b --super-user User:a",
            Bootstrap((OWN,), 0, ("User:a", "User:b")),
        ),
        (
            f"--initial-controllers '2@h2:1:{DIRECTORIES[2]}, 1@127.0.0.1:9093:{DIRECTORIES[1]}'",
            Bootstrap((OWN, Voter(2, "h2:1", DIRECTORIES[2])), 0),
        ),
    ],
)
def test_format_writes_how_the_quorum_begins(
    raftlog: Raftlog, dynamic: Path, tmp_path: Path, options: str, bootstrap: Bootstrap
) -> None:
    """The node itself is a voter with its directory, which a list of initial controllers gives."""
    directory_id = raftlog.succeed(f"storage format --json {options} -c", dynamic).json[
        "directory_id"
    ]
    assert (directory_id == OWN.directory_id) is ("--initial-controllers" in options)
    own = replace(OWN, directory_id=directory_id)
    voters = tuple(own if one == OWN else one for one in bootstrap.voters)
    assert read_bootstrap(tmp_path / "data") == replace(bootstrap, voters=voters)


def test_new_disk_of_a_voter_has_to_join(raftlog: Raftlog, config: Path, tmp_path: Path) -> None:
    raftlog.succeed("storage format --no-initial-controllers -c", config)
    assert read_bootstrap(tmp_path / "data") == Bootstrap((), 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("", "controller.quorum.voters is empty"),
        ("--standalone --no-initial-controllers", "give only one of"),
        ("--release-version 99 --standalone", f"1 to {LATEST_METADATA_VERSION}, not 99"),
        (
            "--standalone --set controller.quorum.voters=1@127.0.0.1:9093",
            "controller.quorum.voters already names the voters",
        ),
        (f"--initial-controllers 2@h2:1:{DIRECTORIES[2]}", "node 1 is not among them"),
        (f"--initial-controllers 1@h2:1:{DIRECTORIES[2]}", "the list has node 1 at h2:1"),
        ("--standalone --super-user alice", "'alice' is not a super user"),
        ("--standalone --super-user User:*", "'User:*' is not a super user"),
        (
            "--no-initial-controllers --super-user User:a",
            "for the initial controllers of a cluster",
        ),
        ("--initial-controllers 1@127.0.0.1:9093", "is not id@host:port:directory-id"),
        ("--initial-controllers 1@127.0.0.1:9093:x", "is not id@host:port:directory-id"),
        (
            f"--initial-controllers 1@127.0.0.1:9093:{DIRECTORIES[1]},2@h:1:{DIRECTORIES[1]}",
            "two voters have the same directory id",
        ),
    ],
)
def test_invalid_initial_options_format_nothing(
    raftlog: Raftlog, dynamic: Path, tmp_path: Path, options: str, complaint: str
) -> None:
    raftlog("storage format -c", dynamic, *options.split()).refused(2, complaint)
    assert not (tmp_path / "data").exists()


def test_standalone_requires_a_listener(raftlog: Raftlog, tmp_path: Path) -> None:
    raftlog(
        "storage format --cluster-id C --node-id 7 --standalone --directory", tmp_path / "d"
    ).refused(2, "with its listener")


def test_format_and_info_read_the_configuration_from_the_environment(
    raftlog: Raftlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `controller run` does: a container often has no file."""
    for variable, value in {
        "RAFTLOG_PROCESS_ROLES": "controller",
        "RAFTLOG_NODE_ID": "1",
        "RAFTLOG_CLUSTER_ID": "C",
        "RAFTLOG_LOG_DIRS": str(tmp_path / "data"),
        "RAFTLOG_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:9093",
    }.items():
        monkeypatch.setenv(variable, value)
    made = raftlog("storage format --json")
    assert made.code == 0
    assert made.json["node_id"] == 1
    assert made.json["directory"] == str(tmp_path / "data")
    assert raftlog("storage info --json").json["directory_id"] == made.json["directory_id"]
    raftlog("storage format --cluster-id D --node-id 2 --directory", tmp_path / "other").showed(
        "node 2 of cluster D"
    )
    raftlog("storage format --node-id 2").refused(2, "--directory, --cluster-id")


@pytest.mark.parametrize("endpoint", [":9093", "0.0.0.0:9093", "c1:0", "A://c1:1,A://c1:2"])
def test_recover_refuses_an_unreachable_endpoint(
    raftlog: Raftlog, tmp_path: Path, endpoint: str
) -> None:
    refused = raftlog("storage recover --unsafe --yes", tmp_path, "--endpoint", endpoint)
    refused.refused(2, "raftlog: --endpoint: ")


def test_restore_names_the_missing_argument_or_file(raftlog: Raftlog, tmp_path: Path) -> None:
    nowhere, target = tmp_path / "nowhere", tmp_path / "d"
    raftlog("restore --from", nowhere).refused(2, "--cluster-id")
    named = ("restore --cluster-id c --node-id 1 --from", nowhere, target)
    raftlog(*named).refused(2, "not an export")
    assert not target.exists()
