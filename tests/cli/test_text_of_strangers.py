"""Text from others reaches no terminal unescaped: escape sequences, line breaks, markup."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import structlog
from scripted_log import ScriptedLog

from raftlog.cli import log
from raftlog.cli.exits import report
from raftlog.cli.output import print_error, print_json, print_json_line, print_line, print_table
from raftlog.client.core import Core
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.node.observability.http_server import HttpServer, escape
from raftlog.node.observability.logs import setup_logging
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.ops.logs import DirectoryLog
from raftlog.safe_console import SafeConsole
from raftlog.text import printable, printable_json
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2 as pb

EVIL = "a\x1b[31mb\x07\rc\nFORGED\x9b2Jd\u202ee\x7f[red]f[/]\u2028g"
SEEN = r"a\x1b[31mb\x07\rc\nFORGED\x9b2Jd\u202ee\x7f[red]f[/]\u2028g"


def harmless(text: str) -> None:
    """Return whether a text has only printable characters, line breaks, inert markup."""
    assert all(line.isprintable() for line in text.split("\n")), repr(text)
    assert not any(line.lstrip().startswith("FORGED") for line in text.split("\n")), repr(text)


def test_each_control_character_is_escaped() -> None:
    assert printable(EVIL) == SEEN
    assert printable("an ä, 中, 😀 and a\tb\n", keep="\n") == "an ä, 中, 😀 and a\\tb\n"
    assert printable("\U000e0001") == r"\U000e0001"


def test_printable_json_decodes_to_the_same_document() -> None:
    document = {"a": EVIL, "\x7f": ["\U000e0001", "ä😀"]}
    text = printable_json(json.dumps(document, ensure_ascii=False, indent=2))
    assert json.loads(text) == document
    assert "ä😀" in text
    harmless(text)


def test_commands_print_through_the_escaping_printer(capsys: Any) -> None:
    print_table(("A", "B"), [(EVIL, 1), ("[bold]x[/bold]", None)])
    print_line(EVIL)
    print_json({"a": EVIL})
    print_json_line([EVIL])
    print_error(EVIL)
    out, err = capsys.readouterr()
    harmless(out)
    harmless(err)
    for text in (SEEN, "[bold]x[/bold]"):
        assert text in out
    assert err == SEEN + "\n"


def test_console_escapes_whatever_it_prints() -> None:
    out = io.StringIO()
    console = SafeConsole(
        file=out, width=300, force_terminal=True, color_system="truecolor", markup=False
    )
    console.print(EVIL, style="red", highlight=False)
    text = out.getvalue()
    assert text.startswith("\x1b[31m"), "a style of ours is none of the stranger's"
    assert text.count("\x1b") == 2 * len(text.rstrip("\n").split("\n"))
    for char in "\x07\r\x9b\u202e\x7f\u2028":
        assert char not in text


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ApiError(ErrorCode.INVALID_REQUEST, EVIL, field=EVIL), 1),
        (ConfigError("two\nlines \x1b[2J"), 2),
    ],
    ids=["another node's", "ours"],
)
def test_error_report_prints_no_escape_sequence(capsys: Any, error: Any, lines: int) -> None:
    report(error)
    err = capsys.readouterr().err
    assert err.count("\n") == lines
    assert all(line.isprintable() for line in err.split("\n"))


def planted() -> ScriptedLog:
    """A log from before input was checked."""
    broker = pb.RegisterBrokerRecord(
        broker_id=7, broker_epoch=2, incarnation_id=EVIL, rack=EVIL, log_dirs=[EVIL], fenced=True
    )
    broker.end_points.add(name=EVIL, host=EVIL, port=1)
    return ScriptedLog(
        pb.LeaderChangeRecord(leader_id=1, voters=[1]),
        pb.FeatureLevelRecord(name="metadata.version", feature_level=2),
        broker,
        pb.HostnameRecord(hostname=EVIL, broker_id=7, reason=EVIL),
        pb.ExportCursorRecord(name="n", end_offset=1, target=EVIL),
        pb.ConfigRecord(resource_type=16, resource_name=EVIL, name="match", value=EVIL),
        pb.TopicRecord(name=EVIL, topic_id=bytes(16)),
        principal=EVIL,
    )


@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
@pytest.mark.parametrize("command", [("log", "dump"), ("log", "image")], ids=" ".join)
def test_commands_that_read_a_log_escape_its_text(
    raftlog: Any, monkeypatch: Any, command: tuple[str, ...], as_json: bool
) -> None:
    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        there: Any = planted()
        yield DirectoryLog(there)

    monkeypatch.setattr(log, "open_log", opened)
    ran = raftlog.succeed(*command, *(("--json",) if as_json else ()))
    harmless(ran.out)
    if as_json:
        assert "\\u001b[31m" in ran.out
    elif command == ("log", "dump"):
        assert ran.out.count("\n") == planted().end_offset
        assert rf'rack="{SEEN}"' in ran.out


ANSWERS: dict[tuple[str, ...], controller_pb2.ControllerResponse] = {
    ("brokers", "list"): controller_pb2.ControllerResponse(
        describe_brokers=controller_pb2.DescribeBrokersResponse(
            brokers=[
                controller_pb2.DescribedBroker(broker_id=1, endpoint=EVIL, rack=EVIL, reason=EVIL)
            ],
            lowest_acknowledged_offset=-1,
            lao_unknown_reason=EVIL,
        )
    ),
    ("cluster", "hostnames", "list"): controller_pb2.ControllerResponse(
        list_hostnames=controller_pb2.ListHostnamesResponse(
            hostnames=[controller_pb2.MappedHostname(hostname=EVIL, reason=EVIL, endpoint=EVIL)],
            absent_ids=[controller_pb2.AbsentBrokerId(endpoint=EVIL)],
        )
    ),
    ("cluster", "cursors", "list"): controller_pb2.ControllerResponse(
        list_export_cursors=controller_pb2.ListExportCursorsResponse(
            cursors=[controller_pb2.ExportCursor(name=EVIL, target=EVIL, offset=1, timestamp_ms=5)]
        )
    ),
    ("kv", "lease", "list"): controller_pb2.ControllerResponse(
        list_leases=controller_pb2.ListLeasesResponse(
            leases=[controller_pb2.ListedLease(lease_id=1, name=EVIL, principal=EVIL)]
        )
    ),
}


@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
def test_commands_that_ask_a_cluster_escape_its_text(
    raftlog: Any, monkeypatch: Any, command: tuple[str, ...], as_json: bool
) -> None:
    async def answer(*_: object) -> controller_pb2.ControllerResponse:
        return ANSWERS[command]

    monkeypatch.setattr(Core, "ask_controller", answer)
    monkeypatch.setattr("raftlog.client.admission.require_listener", lambda *_, **__: None)
    ran = raftlog.succeed(
        *command, "--bootstrap-controller", "127.0.0.1:1", *(("--json",) if as_json else ())
    )
    harmless(ran.out)
    assert "FORGED" in ran.out
    assert "[red]f[/]" in "".join(ran.out.split())


def test_node_log_lines_on_a_terminal_are_escaped() -> None:
    structured, out = structlog.get_config(), io.StringIO()
    try:
        setup_logging("info", "console", stream=out)
        with suppress(ValueError):
            fail_and_log()
    finally:
        structlog.configure(**structured)
    text = out.getvalue()
    assert "ValueError" in text
    # The traceback has lines of its own: what a stranger wrote into an exception's message may
    # break a line there, and nothing else.
    assert all(line.isprintable() for line in text.replace("\t", " ").split("\n")), repr(text)
    assert text.split("\n", maxsplit=1)[0].count("FORGED") == 3


def fail() -> None:
    raise ValueError(EVIL)


def fail_and_log() -> None:
    try:
        fail()
    except ValueError:
        structlog.get_logger("x").exception(EVIL, host=EVIL, nested={"a": [EVIL]})
        raise


def test_node_page_escapes_its_text() -> None:
    assert escape("<b>" + EVIL) == "&lt;b&gt;" + SEEN
    server = HttpServer("", 0, MetricsRegistry(), lambda: (True, EVIL), status=lambda: {EVIL: EVIL})
    assert server.application() is not None
