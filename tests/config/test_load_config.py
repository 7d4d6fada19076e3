"""Configurations from files, environment and flags: precedence and mistakes."""

from pathlib import Path

import pytest
from config_kit import NodeFile

from controller.run import settings_of
from raftlog.endpoint import Endpoint, parse_endpoint
from raftlog.errors import ConfigError
from raftlog.limits import RACK
from raftlog.node.config.listener_rules import listens_in_plaintext
from raftlog.node.config.load import load_config
from raftlog.quorum.config import Voter

CONTROLLER = """
process.roles = ["controller"]
node.id = 1
cluster.id = "C"
log.dirs = "data"
controller.quorum.voters = ["1@127.0.0.1:9093", "2@127.0.0.1:9094", "3@127.0.0.1:9095"]
"""
BROKER = """
process.roles = ["broker"]
node.id = 4
cluster.id = "C"
log.dirs = ["data"]
listeners = ["127.0.0.1:9092"]
controller.quorum.voters = ["1@127.0.0.1:9093"]
security.plaintext.allow = true
"""


def test_cluster_key_in_a_node_file_is_redirected_to_configs(node: NodeFile) -> None:
    text = "log.retention.ms = 5\nretention.bytes = 6\nlog.retention.hours = 7\n"
    path, found = node.path, node.mistakes(text)
    where = "set it in the running cluster: raftlog configs alter"
    assert f'log.retention.ms: unknown key in {path}; {where} broker "" --set' in found
    assert f"retention.bytes: unknown key in {path}; {where} topic NAME --set" in found
    assert f"log.retention.hours: unknown key in {path}" in found


def test_controller_config_is_loaded(node: NodeFile, tmp_path: Path) -> None:
    config = node.load(CONTROLLER)
    assert (config.role, config.node_id, config.cluster_id) == ("controller", 1, "C")
    assert config.broker is None
    assert config.directory == tmp_path / "data"
    assert config.listener == Endpoint("127.0.0.1", 9093)
    quorum = config.quorum_config("D")
    assert (quorum.voters[2], quorum.directory_id) == (Voter(3, "127.0.0.1:9095"), "D")
    assert (quorum.fetch_timeout_ms, quorum.election_timeout_ms) == (600, 1000)
    longer = node.load(
        CONTROLLER + "broker.session.timeout.ms = 11000\nbroker.fencing.timeout.ms = 12500\n"
    )
    longer.directory.mkdir()
    assert settings_of(longer).broker_session_timeout_ms == 11_000


def test_broker_config_is_loaded(node: NodeFile) -> None:
    config = node.load(BROKER)
    assert (config.role, config.controller) == ("broker", None)
    assert config.broker is not None
    assert config.broker.controllers == ("127.0.0.1:9093",)
    assert config.broker.advertised == Endpoint("127.0.0.1", 9092)
    settings = config.settings
    assert settings.broker_fencing_timeout_ms > settings.broker_session_timeout_ms
    assert settings.broker_session_timeout_ms > 2 * settings.broker_heartbeat_interval_ms
    with pytest.raises(ValueError, match="only a controller"):
        config.quorum_config("D")


def test_broker_id_is_optional(node: NodeFile) -> None:
    without = BROKER.replace("node.id = 4\n", "")
    config = node.load(without)
    assert (config.role, config.node_id) == ("broker", -1)
    (found,) = node.mistakes(without, "listeners=127.0.0.1:0")
    assert found.startswith("listeners: port 0 is not allowed without node.id")
    assert (
        node.load(without, "listeners=127.0.0.1:0", "advertised.listeners=b.example:9092").node_id
        == -1
    )
    assert "node.id: required" in node.mistakes(CONTROLLER.replace("node.id = 1\n", ""))


def test_nested_dotted_and_quoted_keys_are_equivalent(node: NodeFile) -> None:
    tail = CONTROLLER.split("log.dirs", maxsplit=1)[0] + 'log.dirs = "data"\n'
    nested = node.load(
        tail + '[controller.quorum]\nvoters = ["1@127.0.0.1:1"]\nfetch.timeout.ms = 3000\n'
    )
    quoted = node.load(
        tail
        + '"controller.quorum.voters" = ["1@127.0.0.1:1"]\n"controller.quorum.fetch.timeout.ms"'
        " ="
        " 3000\n"
    )
    assert (nested, nested.quorum_config("d").fetch_timeout_ms) == (quoted, 3000)


def test_flags_override_environment_which_overrides_file(node: NodeFile) -> None:
    text = CONTROLLER + 'log.level = "error"\n'
    assert node.load(text).settings.log_level == "error"
    assert node.load(text, RAFTLOG_LOG_LEVEL="debug").settings.log_level == "debug"
    assert (
        node.load(text, "log.level=warning", RAFTLOG_LOG_LEVEL="debug").settings.log_level
        == "warning"
    )
    assert node.load(text, "log.level=warning", "log.level=info").settings.log_level == "info"


def test_lists_and_numbers_are_parsed_from_strings(node: NodeFile) -> None:
    config = node.load(
        CONTROLLER,
        "controller.quorum.voters=1@localhost:1, 2@b:2",
        RAFTLOG_CONTROLLER_QUORUM_FETCH_TIMEOUT_MS="4000",
    )
    assert config.controller is not None
    assert config.controller.voters == (Voter(1, "localhost:1"), Voter(2, "b:2"))
    assert config.settings.controller_quorum_fetch_timeout_ms == 4000


def test_config_loads_from_the_environment_without_a_file() -> None:
    environment = {
        "RAFTLOG_PROCESS_ROLES": "broker",
        "RAFTLOG_NODE_ID": "4",
        "RAFTLOG_CLUSTER_ID": "C",
        "RAFTLOG_LOG_DIRS": "/data",
        "RAFTLOG_LISTENERS": "0.0.0.0:9092",
        "RAFTLOG_SECURITY_PLAINTEXT_ALLOW": "true",
        "RAFTLOG_ADVERTISED_LISTENERS": "PLAINTEXT://broker-4:9092",
        "RAFTLOG_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "a:1,b:2",
    }
    config = load_config(None, environment=environment)
    assert config.directory == Path("/data")
    assert config.broker is not None
    assert config.broker.controllers == ("a:1", "b:2")
    assert config.broker.advertised == Endpoint("broker-4", 9092, "PLAINTEXT")


def test_all_mistakes_are_reported_at_once_with_their_origins(node: NodeFile) -> None:
    text = """
process.roles = ["controller", "broker"]
node.id = "x"
cluster.idd = "C"
broker.session.timeout.ms = true
broker.heartbeat.interval.ms = 0
controller.quorum.voters = ["1@127.0.0.1:9093", "1@127.0.0.1:9094"]
listeners = ["nope", "h:99999"]
tls.key.file = "k"
"""
    path = node.path
    found = node.mistakes(
        text, "x", "num.partitions=many", RAFTLOG_LOG_FORMATT="json", RAFTLOG_LOG_LEVEL="loud"
    )
    assert found == [
        "RAFTLOG_LOG_FORMATT: unknown environment variable (did you mean RAFTLOG_LOG_FORMAT?)",
        "--set x: write it as key=value",
        f"cluster.idd: unknown key in {path} (did you mean cluster.id?)",
        f"broker.heartbeat.interval.ms = 0 in {path}: Input should be greater than or equal to 1",
        f"broker.session.timeout.ms = True in {path}: must be a number, not true or false",
        (
            f"listeners = ['nope', 'h:99999'] in {path}: 'nope' is not host:port (for instance"
            " 127.0.0.1:9093); 'h:99999': the port must be 0 to 65535"
        ),
        (
            "log.level = 'loud' in RAFTLOG_LOG_LEVEL: Input should be 'debug', 'info', 'warning' or"
            " 'error'"
        ),
        (
            f"node.id = 'x' in {path}: Input should be a valid integer, unable to parse string as"
            " an integer"
        ),
        (
            "num.partitions = 'many' in --set num.partitions: Input should be a valid integer,"
            " unable to parse string as an integer"
        ),
        (
            "process.roles: must be [\"controller\"] or [\"broker\"], not ['controller', 'broker']:"
            " a"
            " process has one role"
        ),
        "cluster.id: required (make one with: raftlog storage random-uuid)",
        "log.dirs: required, or metadata.log.dir",
        "controller.quorum.voters: the id 1 occurs more than once",
        (
            "tls.certificate.file: TLS needs all three: tls.certificate.file, tls.key.file and"
            " tls.ca.file"
        ),
    ]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.8.9.1:1", "CLIENT://127.0.0.1:1"]
)
def test_loopback_address_needs_no_tls(node: NodeFile, address: str) -> None:
    assert str(node.load(CONTROLLER, f"listeners={address}").listener) == address


@pytest.mark.parametrize("address", ["10.0.0.1:1", "h:1", "localhost.example:1", "[2001:db8::1]:1"])
def test_non_loopback_address_requires_tls(node: NodeFile, address: str) -> None:
    (found,) = node.mistakes(CONTROLLER, f"listeners={address}")
    assert found.startswith(f"listeners: {address} is not a loopback address, and without TLS")
    assert found.endswith("security.plaintext.allow = true in a private network")
    allowed = node.load(CONTROLLER, f"listeners={address}", "security.plaintext.allow=true")
    assert listens_in_plaintext(allowed.settings) == allowed.listener
    files = (f"tls.{name}.file=x" for name in ("certificate", "key", "ca"))
    assert (
        listens_in_plaintext(node.load(CONTROLLER, f"listeners={address}", *files).settings) is None
    )


def test_own_address_among_the_voters_is_a_listener_too(node: NodeFile) -> None:
    (found,) = node.mistakes(CONTROLLER, "controller.quorum.voters=1@c1.example:9093")
    assert found.startswith("listeners: c1.example:9093 is not a loopback address")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("broker.session.timeout.ms", "4000", "more than two heartbeats"),
        ("broker.fencing.timeout.ms", "9000", "more than broker.session.timeout.ms = 9000"),
        ("replica.fetch.wait.max.ms", "30000", "less than replica.lag.time.max.ms = 30000"),
        (
            "replica.fetch.response.max.bytes",
            "67108864",
            "less than socket.request.max.bytes = 67108864",
        ),
        (
            "controlled.shutdown.timeout.ms",
            "3999",
            "at least two heartbeats (broker.heartbeat.interval.ms = 2000 ms)",
        ),
        ("broker.metadata.lag.max.ms", "2000", "more than broker.heartbeat.interval.ms = 2000"),
        (
            "broker.metadata.lag.probation.max.ms",
            "9999",
            "at least broker.metadata.lag.probation.ms",
        ),
        (
            "controller.quorum.fetch.max.wait.ms",
            "501",
            "at most half of controller.quorum.fetch.timeout.ms = 600",
        ),
        ("controller.quorum.fetch.max.bytes", "67108864", "less than socket.request.max.bytes"),
        ("node.id", "9", "9 is not among controller.quorum.voters"),
        ("log.dirs", "a,b", "exactly one directory is allowed, not 2"),
        ("listeners", "a:1,b:2", "each of several listeners needs a name"),
        ("http.listener", "a:1,b:2", "at most one"),
        (
            "controller.quorum.voters",
            "1@localhost:1,2@localhost:1",
            "the address localhost:1 occurs more than once",
        ),
        ("controller.quorum.voters", "1@0.0.0.0:1", "needs a real host and a port other than 0"),
        ("controller.quorum.voters", "1@a:0", "needs a real host and a port other than 0"),
        ("controller.quorum.voters", "a:1", "is not id@host:port"),
        ("controller.quorum.voters", "", "required for a controller"),
        ("cluster.id", "", "required"),
        ("node.id", "-1", "greater than or equal to 0"),
        ("node.id", "1.5", "valid integer"),
    ],
)
def test_each_rule_names_the_key_and_the_mistake(
    node: NodeFile, key: str, value: str, words: str
) -> None:
    found = node.mistakes(CONTROLLER, f"{key}={value}")
    assert len(found) == 1, found
    assert found[0].startswith(key)
    assert words in found[0]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("node.id", "1", "is a controller's id"),
        ("listeners", "0.0.0.0:9092", "required, with a real host"),
        ("listeners", "", "required for a broker"),
        (
            "controller.quorum.voters",
            "",
            "required for a broker, or controller.quorum.bootstrap.servers",
        ),
        ("controller.quorum.bootstrap.servers", "a:0", "needs a real host and a port other than 0"),
        ("log.dirs", "", "required"),
    ],
)
def test_each_broker_rule_names_the_key_and_the_mistake(
    node: NodeFile, key: str, value: str, words: str
) -> None:
    found = node.mistakes(BROKER, f"{key}={value}")
    assert len(found) == 1, found
    assert words in found[0]


def test_unrelated_environment_variables_are_ignored(node: NodeFile) -> None:
    node.load(
        CONTROLLER,
        RAFTLOG_SERVICE_HOST="10.0.0.1",
        RAFTLOG_PORT_9093_TCP_ADDR="10.0.0.1",
        RAFTLOG_PORT="tcp://10.0.0.1:9093",
        RAFTLOG_BOOTSTRAP_CONTROLLER="a:1",
        RAFTLOG_NATIVE_CODEC="off",
        HOME="/root",
    )


def test_unreadable_and_bad_files_are_reported(node: NodeFile, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml: No such file"):
        load_config(tmp_path / "none.toml", environment={})
    with pytest.raises(ConfigError, match=r"node.toml is not TOML: .*line 2"):
        node.load("node.id = 1\nnode.id ? 2\n")
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(path, environment={})


def test_file_may_begin_with_a_bom(node: NodeFile, tmp_path: Path) -> None:
    """TOML allows it, and editors of some systems write it."""
    plain = node.load(CONTROLLER).settings
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + node.path.read_bytes())
    assert load_config(marked, environment={}).settings == plain


def test_empty_path_of_the_data_directory_is_a_mistake(node: NodeFile) -> None:
    """[the directory of the configuration file was formatted]"""
    text = BROKER.replace('log.dirs = ["data"]', 'log.dirs = [" "]')
    with pytest.raises(ConfigError, match=r"log\.dirs: the path must not be empty"):
        node.load(text)


def test_tls_paths_are_relative_to_the_file(node: NodeFile, tmp_path: Path) -> None:
    config = node.load(
        CONTROLLER, "tls.certificate.file=c.pem", "tls.key.file=/k.pem", "tls.ca.file=ca.pem"
    )
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.key) == (tmp_path / "c.pem", Path("/k.pem"))


def test_items_are_the_effective_values_of_the_role(node: NodeFile) -> None:
    items = dict(node.load(CONTROLLER).items())
    assert items["controller.quorum.fetch.timeout.ms"] == 600
    assert "broker.fencing.timeout.ms" not in items
    assert "broker.fencing.timeout.ms" in dict(node.load(BROKER).items())


JOINING = """
process.roles = ["controller"]
node.id = 4
cluster.id = "c"
log.dirs = "data"
listeners = ["10.0.0.4:9093"]
security.plaintext.allow = true
controller.quorum.bootstrap.servers = ["10.0.0.1:9093", "10.0.0.4:9093"]
controller.quorum.auto.join.enable = true
"""


def test_joining_controller_contacts_bootstrap_servers(node: NodeFile) -> None:
    config = node.load(JOINING)
    assert config.settings.controller_quorum_auto_join_enable
    quorum = config.quorum_config("d4", ())
    assert quorum.voters == ()
    assert quorum.bootstrap_servers == ("10.0.0.1:9093",)
    assert quorum.endpoint == "10.0.0.4:9093"
    assert [peer.node_id for peer in quorum.bootstrap_peers] == [-2]
    moved = node.load(JOINING, "advertised.listeners=h:7", "listeners=0.0.0.0:9093")
    assert moved.quorum_config("d4", ()).endpoint == "h:7"


def test_voter_on_a_new_disk_contacts_the_other_voters(node: NodeFile) -> None:
    config = node.load(CONTROLLER)
    assert config.quorum_config("d", ()).bootstrap_servers == ("127.0.0.1:9094", "127.0.0.1:9095")
    assert config.quorum_config("d").bootstrap_servers == ()
    assert config.quorum_config("d").endpoint == "127.0.0.1:9093"


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("listeners", "", "required for a controller that is not in controller.quorum.voters"),
        ("listeners", "0.0.0.0:9093", "other nodes cannot connect to 0.0.0.0:9093"),
        ("listeners", "h:0", "other nodes cannot connect to h:0"),
        ("controller.quorum.bootstrap.servers", "", "or controller.quorum.bootstrap.servers"),
        ("controller.quorum.auto.join.enable", "perhaps", "controller.quorum.auto.join.enable"),
    ],
)
def test_joining_controller_must_be_reachable(
    node: NodeFile, key: str, value: str, complaint: str
) -> None:
    assert any(complaint in found for found in node.mistakes(JOINING, f"{key}={value}"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("whatever = {}", "whatever: unknown key in"),
        ("[what.ever]", "what.ever: unknown key in"),
        ("node.idd = { }", "node.idd: unknown key in"),
        ('"a\\nb" = 1', "'a\\nb': unknown key in"),
        ("log.level = {}", "log.level = {} in"),
        (
            '"metadata.log.dir" = "x"\n[metadata.log]\ndir = "y"',
            "metadata.log.dir: occurs twice in",
        ),
    ],
)
def test_every_mistake_is_reported(node: NodeFile, text: str, found: str) -> None:
    (mistake,) = node.mistakes(CONTROLLER + text)
    assert mistake.startswith(found)


def test_section_without_keys_is_not_a_mistake(node: NodeFile) -> None:
    assert node.load(CONTROLLER + "[controller.quorum.fetch]\n[tls]\n") == node.load(CONTROLLER)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "{a = " * 5000 + "1" + "}" * 5000, "nested too deeply"),
        (".".join("a" * 5000) + " = 1", "nested too deeply"),
        ("node.id = " + "9" * 5000, "is not TOML"),
        ("# " + "x" * (1 << 20), "more than 1048576 bytes"),
    ],
)
def test_absurd_file_is_reported_briefly(node: NodeFile, text: str, found: str) -> None:
    path = node.write(text)
    with pytest.raises(ConfigError, match=found) as caught:
        load_config(path, environment={})
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_mistakes_are_shortened_for_display(node: NodeFile) -> None:
    (mistake,) = node.mistakes(CONTROLLER + f'log.level = "{"x" * 10_000}"')
    assert mistake.startswith("log.level = 'xxx")
    assert len(mistake) < 600


@pytest.mark.parametrize(
    "host", [".", "..", "a..b", "ä", "a/b", "x" * 256, "a\x1b[31m", "a,b"], ids=repr
)
def test_host_that_brokers_may_not_register_is_refused_at_startup(host: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid host|is not host:port"):
        parse_endpoint(f"{host}:9092")


def test_rack_that_controllers_refuse_prevents_the_start(node: NodeFile) -> None:
    assert RACK.error("us-east-1a, row 3") == ""
    (found,) = node.mistakes(BROKER, "broker.rack=a\x1b[31m")
    assert found.startswith("broker.rack: 'a\\x1b[31m' is not a rack")
