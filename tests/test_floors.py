"""The floors of ``ARCHITECTURE.md``: imports point down or sideways, in no circle."""

import ast
from collections.abc import Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("raftlog", "controller", "broker", "replay", "simulation", "pyspark_raftlog")
FLOORS: dict[str, str] = {
    "contracts": (
        """
        raftlog.wire raftlog.descriptors raftlog.errors raftlog.outcome raftlog.aliases raftlog.text raftlog.safe_console
        raftlog.logger raftlog.process raftlog.bounds raftlog.limits raftlog.endpoint raftlog.files raftlog.batch
        raftlog.config_writes raftlog.clock raftlog.step_tracer raftlog.tracing raftlog.identity
        raftlog.quorum.config raftlog.node.config.fields raftlog.node.config.settings
    """
    ),
    "content": "raftlog.metadata",
    "seams": (
        "raftlog.node.storage.api raftlog.node.storage.partition_api raftlog.transport.api"
        " raftlog.node.observability.registry raftlog.node.observability.figures"
    ),
    "quorum": "raftlog.quorum",
    "adapters": (
        "raftlog.node.storage raftlog.node.recovery raftlog.transport raftlog.node.observability raftlog.node.config raftlog.node.transport"
        " raftlog.segments raftlog.node.security raftlog.monitoring"
        " raftlog.deploy"
    ),
    "replica and client": "raftlog.node.replica raftlog.client",
    "decisions": (
        """
        controller.settings controller.decision controller.rules controller.visibility controller.state
        controller.disk
        controller.decisions.configs controller.decisions.quorum controller.decisions.brokers controller.decisions.partitions
        controller.decisions.clients controller.decisions.acls controller.decisions.plans controller.decider
        broker.settings broker.partition broker.replication broker.metadata broker.registration
        broker.watch
    """
    ),
    "services": "controller.service broker.service",
    "commands and library": (
        """
        raftlog raftlog.recipes
        raftlog.ops raftlog.ops.console raftlog.ops.console_page
        raftlog.local.processes raftlog.local raftlog.cli raftlog.__main__ raftlog.demo controller.run controller.rejoin controller.mending controller.late_http controller.http_side controller.cli broker.run broker.cli
    """
    ),
    "replay": (
        """
        replay replay.kernels replay.kafka replay.export replay.selection replay.engine
        replay.lag replay.outages replay.spark replay.streaming replay.jobs replay.report
        replay.jobs.report replay.documents replay.run replay.submit replay.cli pyspark_raftlog
    """
    ),
    "simulation": (
        """
        simulation.twins simulation.swarm simulation.checks simulation simulation.mutants
        simulation.generate simulation.agreement simulation.chaos
    """
    ),
    "testing": "raftlog.testing",
}
"""Floors from the bottom to the top, each with its rooms.

A module is in the room whose name is its own, or the nearest package's.
"""
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS.values()) for room in rooms.split()}
MAY_BE_EMPTY = ("controller", "broker", "raftlog", "raftlog.node", "controller.decisions")
"""Packages that hold rooms, and are none: their ``__init__`` imports nothing."""


class Arrow(NamedTuple):
    """``importer`` imports ``imported``."""

    importer: str
    imported: str
    at_run_time: bool


def room_of(module: str) -> str | None:
    names = [module, *(module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1))]
    # The front door is a room of its own: what is behind it has others.
    names = [name for name in names if name == module or name != "raftlog"]
    return next((name for name in names if name in FLOOR_OF), None)


def all_modules() -> dict[str, Path]:
    """Return all except the generated ones."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] != ("raftlog", "wire"):
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows_of(
    module: str, node: ast.AST, known: Collection[str], *, at_run_time: bool = True
) -> Iterator[Arrow]:
    """Also those inside functions, which are deferred circles, and those for types only."""
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module} has a relative import"
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in known else str(child.module) for name in names]
        for name in names:
            imported = "raftlog.wire" if name.startswith("raftlog.wire.") else name
            if imported != module and (imported in known or imported == "raftlog.wire"):
                yield Arrow(module, imported, at_run_time)
        yield from arrows_of(module, child, known, at_run_time=at_run_time and not for_types)


@pytest.fixture(scope="module")
def arrows() -> list[Arrow]:
    known = all_modules()
    return [
        one
        for module, path in known.items()
        for one in arrows_of(module, ast.parse(path.read_text()), known)
    ]


def circle(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return one cycle of arrows, or an empty result if there is none."""
    graph: dict[str, set[str]] = {}
    for importer, imported in pairs:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_each_module_is_on_a_floor_and_each_room_has_a_module() -> None:
    known = all_modules()
    assert [name for name in known if room_of(name) is None and name not in MAY_BE_EMPTY] == []
    empty = [room for room in FLOOR_OF if room not in known and room != "raftlog.wire"]
    assert empty == []


def test_no_import_leads_to_a_higher_floor(arrows: list[Arrow]) -> None:
    assert len(arrows) > 2000
    up = [
        f"{one.importer} -> {one.imported}"
        for one in arrows
        if FLOOR_OF[room_of(one.importer) or ""] < FLOOR_OF[room_of(one.imported) or ""]
    ]
    assert up == []


def test_rooms_have_no_circular_import(arrows: list[Arrow]) -> None:
    pairs = ((room_of(one.importer) or "", room_of(one.imported) or "") for one in arrows)
    assert circle(pair for pair in pairs if pair[0] != pair[1]) == []


def test_files_do_not_import_each_other_in_a_circle(arrows: list[Arrow]) -> None:
    assert circle((one.importer, one.imported) for one in arrows if one.at_run_time) == []


def test_client_imports_no_tool_and_no_node(arrows: list[Arrow]) -> None:
    tools = {"raftlog.cli", "raftlog.ops", "raftlog.local", "raftlog.recipes"}
    nodes = {"controller", "broker", "replay", "raftlog.quorum", "raftlog.node"}
    imported = {one.imported for one in arrows if one.importer.startswith("raftlog.client")}
    packages = {".".join(name.split(".")[:depth]) for name in imported for depth in (1, 2)}
    assert packages & (tools | nodes) == set()
    assert "raftlog.transport" in packages


def test_replay_imports_nothing_of_a_controller_except_its_rules(arrows: list[Arrow]) -> None:
    deciding = {
        room_of(one.importer)
        for one in arrows
        if one.importer.startswith("replay") and one.imported.startswith(("controller", "broker"))
        if room_of(one.imported) != "controller.rules"
    }
    assert deciding == set()


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("raftlog", {"controller", "broker", "replay", "simulation"}),
        ("controller", {"broker", "replay", "simulation"}),
        ("broker", {"controller", "replay", "simulation"}),
        ("replay", {"broker", "simulation"}),
    ],
)
def test_packages_import_what_the_architecture_says(
    package: str, others: set[str], arrows: list[Arrow]
) -> None:
    # raftlog.testing is above the simulation.
    importing = [
        one
        for one in arrows
        if f"{one.importer}.".startswith(f"{package}.")
        and not one.importer.startswith("raftlog.testing")
    ]
    assert importing
    assert [one for one in importing if one.imported.partition(".")[0] in others] == []


def imports_of(room: str) -> dict[str, set[str]]:
    """Return the modules that each module of a directory imports, for types too."""
    return {
        path.relative_to(ROOT).with_suffix("").as_posix(): {
            *imports_in(ast.parse(path.read_text()), for_types=True)
        }
        for path in (ROOT / room).rglob("*.py")
    }


def test_only_shells_use_the_event_loop() -> None:
    """A module that is added to the list of ARCHITECTURE.md is added here."""
    users = {
        name
        for room in ("controller", "broker")
        for name, imported in imports_of(room).items()
        if "asyncio" in imported and not name.startswith("broker/replication/")
    }
    controller = "run mending late_http service/service service/transfer service/upkeep"
    broker = """
        run service/service service/requests service/watches metadata/follower
        registration/registration_client registration/broker_id
    """
    assert users == {f"controller/{name}" for name in controller.split()} | {
        f"broker/{name}" for name in broker.split()
    }


def test_quorum_imports_neither_settings_nor_io() -> None:
    """The state machine receives messages, time and randomness as arguments."""
    pure = {"abc", "bisect", "collections.abc", "dataclasses", "enum", "functools", "itertools"}
    pure |= {"math", "random", "typing", "typing_extensions", "msgspec", "__future__"}
    contracts = {"raftlog.clock", "raftlog.errors", "raftlog.endpoint"}
    contracts |= {"raftlog.metadata.control_records", "raftlog.node.storage.api"}
    contracts.add("raftlog.wire.quorum.v1")
    imported = set().union(*imports_of("raftlog/quorum").values())
    outside = {name for name in imported if not name.startswith("raftlog.quorum")}
    assert outside <= pure | contracts


PURE = (
    "raftlog.quorum", "raftlog.metadata", "broker.partition", "controller.decisions",
    "controller.rules", "controller.state", "controller.visibility",
)  # fmt: skip
"""Rooms that do no I/O, with everything that they import."""
IO = frozenset(
    {
        *("asyncio", "concurrent", "grpc", "http", "logging", "multiprocessing", "pathlib"),
        *("queue", "rocksdict", "socket", "ssl", "structlog", "subprocess", "threading"),
    }
)


def imports_in(tree: ast.AST, *, for_types: bool = False) -> Iterator[str]:
    """Return the packages that a module imports at run time, or for types too."""
    for child in ast.iter_child_nodes(tree):
        if (
            not for_types
            and isinstance(child, ast.If)
            and "TYPE_CHECKING" in ast.unparse(child.test)
        ):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module)
        yield from imports_in(child, for_types=for_types)


@pytest.mark.parametrize("room", PURE)
def test_pure_room_imports_no_io_even_indirectly(room: str, arrows: list[Arrow]) -> None:
    below: dict[str, list[str]] = {}
    for one in arrows:
        if one.at_run_time:
            below.setdefault(one.importer, []).append(one.imported)
    known = all_modules()
    way = {name: name for name in known if f"{name}.".startswith(f"{room}.")}
    assert way
    ahead = list(way)
    while ahead:
        importer = ahead.pop()
        for name in below.get(importer, ()):
            if name in known and name not in way:
                way[name] = f"{way[importer]} -> {name}"
                ahead.append(name)
    found = [
        f"{path} -> {imported}"
        for name, path in way.items()
        for imported in imports_in(ast.parse(known[name].read_text()))
        if imported.partition(".")[0] in IO
    ]
    assert found == []


def test_fold_imports_no_message_except_records() -> None:
    imported = {
        found
        for path in (ROOT / "raftlog" / "metadata").glob("*.py")
        for found in imports_in(ast.parse(path.read_text()))
        if found.startswith(("raftlog.wire", "raftlog.config_writes"))
    }
    assert imported == {"raftlog.wire.records.v1", "raftlog.config_writes"} | {
        "raftlog.config_writes.records"
    }


@pytest.mark.parametrize(
    "inside",
    ["raftlog.quorum", "raftlog.transport", "raftlog.segments", "broker", "raftlog.metadata"],
)
def test_package_has_no_circle_even_for_types(inside: str, arrows: list[Arrow]) -> None:
    assert not circle(
        (one.importer, one.imported)
        for one in arrows
        if one.importer.startswith(inside) and one.imported.startswith(inside)
    )


def test_commands_import_no_protobuf(arrows: list[Arrow]) -> None:
    """They call methods of AsyncClient and of raftlog.ops."""
    knowing = {one.importer for one in arrows if one.imported.startswith("raftlog.wire")}
    assert [one for one in sorted(knowing) if one.startswith("raftlog.cli.")] == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("raftlog.quorum.core", "from raftlog.node.replica import replica"),
        (
            "controller.decisions.configs",
            "def decide():\n    from controller.service.service import ControllerService",
        ),
        ("controller.state.state", "if TYPE_CHECKING:\n    from controller.service import parking"),
    ],
)
def test_import_from_a_higher_floor_is_detected(importer: str, source: str) -> None:
    (one,) = arrows_of(importer, ast.parse(source), all_modules())
    assert FLOOR_OF[room_of(one.importer) or ""] < FLOOR_OF[room_of(one.imported) or ""]


def test_circular_import_is_detected() -> None:
    assert set(circle([("a", "b"), ("b", "c"), ("c", "a")])) == {"a", "b", "c"}
