"""Several listeners in one node's configuration."""

import pytest
from config_kit import NodeFile

from broker.run import settings_of
from raftlog.endpoint import Endpoint, endpoint_on, endpoints_text, parse_endpoints
from raftlog.node.config.listener_rules import listens_in_plaintext
from raftlog.node.config.listeners import Security, TlsFiles

TLS = '"tls.certificate.file" = "n.pem"\n"tls.key.file" = "n.key"\n"tls.ca.file" = "ca.pem"\n'
BROKER = (
    TLS
    + """
process.roles = ["broker"]
node.id = 4
cluster.id = "C"
log.dirs = ["data"]
controller.quorum.bootstrap.servers = ["10.0.0.1:9093"]
listeners = ["internal://10.0.0.4:9092", "CLIENTS://0.0.0.0:9192"]
advertised.listeners = ["CLIENTS://b4.example:9192"]
listener.security.protocol.map = "INTERNAL:SSL,CLIENTS:SSL,CONTROLLER:SSL"
inter.broker.listener.name = "INTERNAL"
controller.listener.names = "CONTROLLER"
"""
)
CONTROLLER = (
    TLS
    + """
process.roles = ["controller"]
node.id = 1
cluster.id = "C"
log.dirs = ["data"]
controller.quorum.voters = ["1@127.0.0.1:9093", "2@127.0.0.1:9094"]
listeners = ["CLIENTS://127.0.0.1:9194", "PLAINTEXT://127.0.0.1:9093", "SSL://127.0.0.1:9193"]
listener.security.protocol.map = "CLIENTS:SSL,PLAINTEXT:PLAINTEXT,SSL:SSL"
controller.listener.names = ["SSL", "PLAINTEXT"]
"""
)
SINGLE = """
process.roles = ["broker"]
node.id = 4
cluster.id = "C"
log.dirs = ["data"]
controller.quorum.voters = ["1@127.0.0.1:9093"]
"""


LONE = SINGLE.replace("broker", "controller").replace("= 4", "= 1")


def files(node: NodeFile, *names: str) -> TlsFiles:
    return TlsFiles(*(node.directory / name for name in names))


def test_broker_has_one_listener_for_brokers_and_others_for_clients(node: NodeFile) -> None:
    config = node.load(BROKER)
    internal, clients = config.listeners
    security = Security(files(node, "n.pem", "n.key", "ca.pem"), "required")
    assert (internal.name, internal.for_nodes, internal.security) == ("INTERNAL", True, security)
    assert internal.bind == internal.advertised == Endpoint("10.0.0.4", 9092, "INTERNAL")
    assert (clients.name, clients.for_nodes) == ("CLIENTS", False)
    assert (clients.bind.address, clients.advertised.address) == ("0.0.0.0:9192", "b4.example:9192")
    assert config.peers == {
        "INTERNAL": security,
        "CLIENTS": security,
        "CONTROLLER": security,
        "": security,
    }
    settings = settings_of(config)
    assert (settings.listener_name, settings.listen) == ("INTERNAL", "10.0.0.4:9092")
    (told,) = settings.client_listeners
    assert (told.name, told.listen) == ("CLIENTS", "0.0.0.0:9192")
    assert (told.advertised_host, told.advertised_port) == ("b4.example", 9192)
    assert settings.partitions is not None
    assert settings.partitions.inter_broker_listener == "INTERNAL"


def test_controller_prefers_the_first_listener_for_nodes(node: NodeFile) -> None:
    config = node.load(CONTROLLER)
    assert [(one.name, one.for_nodes) for one in config.listeners] == [
        ("SSL", True),
        ("PLAINTEXT", True),
        ("CLIENTS", False),
    ]
    assert [one.security.tls is not None for one in config.listeners] == [True, False, True]
    assert config.peers[""] == config.peers["SSL"]
    assert config.controller is not None
    assert config.controller.advertised == "127.0.0.1:9193"
    assert config.quorum_config("d").endpoint == (
        "SSL://127.0.0.1:9193,PLAINTEXT://127.0.0.1:9093,CLIENTS://127.0.0.1:9194"
    )


def test_listener_keys_override_those_of_the_node(node: NodeFile) -> None:
    own = '"listener.name.clients.tls.ca.file" = "clients.pem"\n'
    table = '\n[listener.name.controller]\n"tls.ca.file" = "controllers.pem"\n'
    config = node.load(
        own + BROKER + table,
        "listener.name.clients.tls.key.file=/flag.key",
        RAFTLOG_LISTENER_NAME_CLIENTS_TLS_CERTIFICATE_FILE="env.pem",
        RAFTLOG_LISTENER_NAME_CLIENTS_TLS_KEY_FILE="below the flag",
    )
    internal, clients = config.listeners
    assert internal.security.tls == files(node, "n.pem", "n.key", "ca.pem")
    assert clients.security.tls == files(node, "env.pem", "/flag.key", "clients.pem")
    # Of listeners of other nodes it is what this node dials them with.
    dialled = files(node, "n.pem", "n.key", "controllers.pem")
    assert config.peers["CONTROLLER"].tls == config.peers[""].tls == dialled
    shown = dict(config.items())["listener.name"]
    assert "clients.tls.ca.file=clients.pem" in [str(one) for one in shown]  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["tls.ca.fil", "node.id", "tls.ca.file.x", ""])
def test_unknown_listener_key_is_a_mistake(node: NodeFile, key: str) -> None:
    (found,) = node.mistakes(BROKER, f"listener.name.clients.{key}=x")
    assert found.startswith(f"listener.name.clients.{key}: unknown key in --set")


def test_mistakes_in_listener_keys_are_reported(node: NodeFile) -> None:
    (found,) = node.mistakes(BROKER, "listener.name.clients.ssl.client.auth=perhaps")
    assert found.startswith("listener.name.clients.ssl.client.auth = 'perhaps' in --set")
    assert "'required'" in found
    (found,) = node.mistakes(BROKER, "listener.name.client.tls.ca.file=x")
    assert found == "listener.name: there is no listener with the name client"
    (found,) = node.mistakes(BROKER, "listener.name=x")
    assert "add a listener's name and a key" in found
    (found,) = node.mistakes(BROKER, RAFTLOG_LISTENER_NAME_CLIENTS_TLS="x")
    assert found.startswith("RAFTLOG_LISTENER_NAME_CLIENTS_TLS: unknown environment variable")


@pytest.mark.parametrize(
    ("more", "name", "secured"),
    [
        ('listeners = ["127.0.0.1:1"]\n', "PLAINTEXT", False),
        ('listeners = ["127.0.0.1:1"]\n' + TLS, "SSL", True),
        # As it was before there was a map: with one listener the files decide.
        ('listeners = ["PLAINTEXT://127.0.0.1:1"]\n' + TLS, "PLAINTEXT", True),
        ('listeners = ["ANY://127.0.0.1:1"]\n', "ANY", False),
        (
            'listeners = ["PLAINTEXT://127.0.0.1:1"]\n'
            'listener.security.protocol.map = "PLAINTEXT:PLAINTEXT"\n' + TLS,
            "PLAINTEXT",
            False,
        ),
        (
            'listeners = ["INSIDE://127.0.0.1:1"]\nlistener.security.protocol.map = "inside:ssl"\n'
            + TLS,
            "INSIDE",
            True,
        ),
    ],
)
def test_single_listener_needs_no_map(node: NodeFile, more: str, name: str, secured: bool) -> None:
    config = node.load(SINGLE + more)
    (one,) = config.listeners
    assert (one.name, one.for_nodes, one.security.tls is not None) == (name, True, secured)
    assert (config.tls is not None) == secured
    # Controllers have TLS if this node has certificates at all, as it was.
    assert (config.peers[""].tls is not None) == ("tls.ca.file" in more)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("listeners=A://h:1,A://h:2", "listeners: the name A occurs more than once"),
        ("listeners=A://h:1,B://h:1", "listeners: the address h:1 occurs more than once"),
        ("listeners=A://h:1,h:2", "listeners: each of several listeners needs a name"),
        (
            "listeners=" + ",".join(f"L{i}://h:{i}" for i in range(1, 10)),
            "listeners: a node can have at most 8 listeners, not 9",
        ),
        ("advertised.listeners=OTHER://h:1", "there is no listener with this name"),
        ("advertised.listeners=", "clients cannot connect to 0.0.0.0:9192"),
        (
            "advertised.listeners=CLIENTS://h:1,CLIENTS://h:2",
            "the name CLIENTS occurs more than once",
        ),
        (
            "advertised.listeners=CLIENTS://h:1,INTERNAL://h:2,X://h:3",
            "3 advertised addresses, but 2 listeners",
        ),
        (
            "inter.broker.listener.name=OTHER",
            "inter.broker.listener.name: OTHER: there is no listener",
        ),
        ("inter.broker.listener.name=", "inter.broker.listener.name: required with several"),
        ("inter.broker.listener.name=a b", "is not a valid listener name"),
        ("controller.listener.names=", "controller.listener.names: required with several"),
        ("controller.listener.names=A,A", "the name A occurs more than once"),
        ("controller.listener.names=X", "must give the protocol of X: PLAINTEXT or SSL"),
        (
            "listener.security.protocol.map=INTERNAL:SSL,CONTROLLER:SSL",
            "listener.security.protocol.map: must give the protocol of CLIENTS",
        ),
        ("listener.security.protocol.map=A:SSL,A:SSL", "the name A occurs more than once"),
        ("listener.security.protocol.map=A:TLS", "is not NAME:PLAINTEXT or NAME:SSL"),
        (
            "listener.security.protocol.map=INTERNAL:SSL,CONTROLLER:SSL,CLIENTS:PLAINTEXT",
            "listeners: 0.0.0.0:9192 is not a loopback address",
        ),
        ("tls.ca.file=", "TLS needs all three"),
        ("listener.name.clients.tls.ca.file=", "listener CLIENTS has SSL, which needs all three"),
        ("listener.name.controller.tls.ca.file=", "listener CONTROLLER has SSL"),
    ],
)
def test_listener_rule_is_enforced(node: NodeFile, flag: str, words: str) -> None:
    found = node.mistakes(BROKER, flag)
    assert any(words in one for one in found), found


def test_controller_listener_rules_are_enforced(node: NodeFile) -> None:
    (found,) = node.mistakes(CONTROLLER, "controller.listener.names=SSL,OTHER")
    assert found == "controller.listener.names: OTHER: there is no listener with this name"
    (found,) = node.mistakes(CONTROLLER, "listeners=SSL://127.0.0.1:1,PLAINTEXT://127.0.0.1:0")
    assert "other nodes cannot connect to 127.0.0.1:0" in found


def test_broker_without_an_id_requires_fixed_ports(node: NodeFile) -> None:
    text = BROKER.replace("node.id = 4\n", "")
    node.load(text)
    (found,) = node.mistakes(text, "advertised.listeners=CLIENTS://h:0")
    assert "port 0 is not allowed without node.id" in found


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (CONTROLLER, "controller.listener.names=PLAINTEXT,SSL"),
        (BROKER, "listener.security.protocol.map=INTERNAL:SSL,CLIENTS:SSL,CONTROLLER:PLAINTEXT"),
    ],
)
def test_node_principal_rule_requires_tls_between_nodes(
    node: NodeFile, text: str, flag: str
) -> None:
    rule = "node.principal.rule=CN=node-{id}"
    node.load(text, rule)
    (found,) = node.mistakes(text, rule, flag)
    assert found.startswith("node.principal.rule: needs TLS between nodes")


def test_plaintext_listener_beyond_loopback_requires_an_explicit_setting(node: NodeFile) -> None:
    reached = "listeners=SSL://127.0.0.1:1,PLAINTEXT://10.0.0.1:2"
    (found,) = node.mistakes(CONTROLLER, reached)
    assert found.startswith("listeners: 10.0.0.1:2 is not a loopback address")
    allowed = node.load(CONTROLLER, reached, "security.plaintext.allow=true")
    assert listens_in_plaintext(allowed.settings) == Endpoint("10.0.0.1", 2, "PLAINTEXT")


def test_endpoint_is_formatted_as_text() -> None:
    one, two = Endpoint("h", 1, "A"), Endpoint("[::1]", 2, "B")
    assert endpoints_text([one]) == "h:1"
    text = endpoints_text([one, two])
    assert text == "A://h:1,B://[::1]:2"
    assert parse_endpoints(text) == (one, two)
    assert [endpoint_on(text, name) for name in ("A", "B", "C", "")] == [
        "h:1",
        "[::1]:2",
        "",
        "h:1",
    ]
    assert endpoint_on("h:1", "C") == "h:1", "the only one, whatever it is called"
    assert endpoint_on("", "C") == ""


def test_http_listener_supports_tls_and_plaintext(node: NodeFile) -> None:
    plain = node.load(BROKER, "http.listener=127.0.0.1:80")
    assert plain.http_listener is not None
    assert (plain.http_listener.address, plain.http_tls) == ("127.0.0.1:80", None)
    assert node.load(BROKER, "http.listener=http://localhost:80").http_tls is None
    assert node.load(BROKER).http_listener is None
    assert str(node.load(BROKER, "http.listener=:9193").http_listener) == "127.0.0.1:9193"
    secured = node.load(
        BROKER,
        "http.listener=https://0.0.0.0:80",
        "listener.name.https.tls.ca.file=scrapers.pem",
    )
    assert secured.http_listener is not None
    assert secured.http_listener.address == "0.0.0.0:80"
    assert secured.http_tls == files(node, "n.pem", "n.key", "scrapers.pem")


@pytest.mark.parametrize(
    ("text", "flag", "words"),
    [
        (BROKER, "http.listener=0.0.0.0:80", "http.listener: 0.0.0.0:80 is not a loopback address"),
        (BROKER, "http.listener=http://h:80", "use https://h:80, or set security.plaintext.allow"),
        (BROKER, "http.listener=METRICS://127.0.0.1:80", "http://host:port or https://host:port"),
        (
            SINGLE + 'listeners = ["127.0.0.1:1"]\n',
            "http.listener=https://127.0.0.1:80",
            "https needs all three: tls.certificate.file",
        ),
        (BROKER, "listener.name.https.tls.ca.file=x", "there is no listener with the name https"),
        (
            SINGLE + 'listeners = ["127.0.0.1:7"]\n',
            "http.listener=127.0.0.1:7",
            "http.listener: 127.0.0.1:7 is already a gRPC listener: 127.0.0.1:7",
        ),
        (
            LONE,
            "http.listener=127.0.0.1:10093",
            "lane.port.offset: 127.0.0.1:10093 is already http.listener: 127.0.0.1:10093",
        ),
        (
            LONE,
            "listeners=127.0.0.1:65000",
            "lane.port.offset: 127.0.0.1:65000 plus lane.port.offset is port",
        ),
        (
            LONE
            + """
listeners = ["A://127.0.0.1:9093", "B://127.0.0.1:9094"]
listener.security.protocol.map = "A:PLAINTEXT,B:PLAINTEXT"
controller.listener.names = "A"
""",
            "lane.port.offset=1",
            "lane.port.offset: 127.0.0.1:9094 is already a gRPC listener",
        ),
    ],
)
def test_http_listener_rule_is_enforced(node: NodeFile, text: str, flag: str, words: str) -> None:
    (found,) = node.mistakes(text, flag)
    assert words in found


def test_plain_http_beyond_loopback_requires_an_explicit_setting(node: NodeFile) -> None:
    node.load(BROKER, "http.listener=0.0.0.0:80", "security.plaintext.allow=true")
