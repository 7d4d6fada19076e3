"""The content of the two wheels. Not in the gate: building downloads an environment."""

import sys
import zipfile
from pathlib import Path

import pytest
from command_runs import run_text
from installed import INSTALL_S, ROOT, build_wheels, install, run, virtual_environment

from raftlog.config_writes import compiling
from raftlog.process import COMMIT_FILE, commit_of_checkout

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(INSTALL_S)]

SERVER = ("broker", "controller", "pyspark_raftlog", "replay", "simulation")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> zipfile.ZipFile:
    (path,) = wheels.glob("raftlog-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def server(wheels: Path) -> zipfile.ZipFile:
    (path,) = wheels.glob("raftlog_server-*.whl")
    return zipfile.ZipFile(path)


def packages(wheel: zipfile.ZipFile) -> list[str]:
    """Return the importable names that an installation adds."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    return sorted(top for top in tops if not top.endswith((".dist-info", ".data")))


def test_wheel_has_only_raftlog_packages(wheel: zipfile.ZipFile, server: zipfile.ZipFile) -> None:
    """[A ``broker`` among an application's own packages would hide ours, or be hidden.]"""
    assert packages(wheel) == ["raftlog"]
    assert packages(server) == sorted(SERVER)


def test_wheels_contain_typed_code(wheel: zipfile.ZipFile, server: zipfile.ZipFile) -> None:
    for wheel_of, of in ((wheel, ("raftlog",)), (server, SERVER)):
        names = set(wheel_of.namelist())
        for package in of:
            assert f"{package}/py.typed" in names
            sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
            assert sources <= names
        assert not [name for name in names if name.endswith(".pyc")]
    assert "raftlog/wire/controller/v1/controller_pb2_grpc.py" in wheel.namelist()
    assert "raftlog/wire/controller/v1/controller_pb2.pyi" in wheel.namelist()
    assert "raftlog/deploy/raftlog-controller@.service" in wheel.namelist()
    assert "replay/report/templates/report.html.j2" in server.namelist()


def test_command_script_imports_nothing_before_ctrl_c_is_silent(wheel: zipfile.ZipFile) -> None:
    """[pip's script for an entry point imports re first, and Ctrl-C prints a traceback.]"""
    (script,) = (one for one in wheel.infolist() if one.filename.endswith(".data/scripts/raftlog"))
    lines = wheel.read(script).decode().splitlines()
    assert lines[0] == "#!python", "an installer puts its interpreter there"
    code = [line for line in lines[1:] if line and not line.startswith('"""')]
    assert code == [
        "from raftlog.cli.entry import main",
        "# A process that multiprocessing spawns loads the script of its parent again: it runs no"
        " command.",
        'if __name__ == "__main__":',
        "    main()",
    ]
    assert script.external_attr >> 16 & 0o111 == 0o111, "pip keeps the mode that it has"


def test_wheels_have_contracts_and_licence(wheel: zipfile.ZipFile, server: zipfile.ZipFile) -> None:
    contracts = {
        path.relative_to(ROOT / "proto").as_posix(): path
        for path in (ROOT / "proto").rglob("*.proto")
    }
    assert contracts
    for name, path in contracts.items():
        assert wheel.read(f"raftlog/proto/{name}") == path.read_bytes()
    for one in (wheel, server):
        (licence,) = (name for name in one.namelist() if name.endswith("/licenses/LICENSE"))
        assert one.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_wheel_names_its_commit(wheel: zipfile.ZipFile) -> None:
    assert wheel.read(f"raftlog/{COMMIT_FILE}").decode().strip() == commit_of_checkout(ROOT)


def test_native_wheel_has_the_codec_and_is_for_one_python_version(tmp_path: Path) -> None:
    """[A build that silently omitted it would pass for the pure wheel of that platform.]"""
    if failure := compiling.compile_codec(tmp_path / compiling.target().name):
        with pytest.raises(AssertionError, match="the codec cannot be compiled"):
            build_wheels(tmp_path, RAFTLOG_NATIVE_WHEEL="1")
        assert failure
        return
    (path,) = build_wheels(tmp_path, RAFTLOG_NATIVE_WHEEL="1").glob("raftlog-*.whl")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-" in path.name
    python = virtual_environment(tmp_path / "venv")
    install(python, path)
    program = "from raftlog.config_writes import codec; print(codec.NAME)"
    assert run([python, "-c", program], cwd=tmp_path) == "native\n"


def test_version_comes_from_the_tag_or_the_source_distribution(tmp_path: Path) -> None:
    project = tmp_path / "project"
    run(["git", "clone", "--quiet", ROOT, project])
    run(["git", "-C", project, "tag", "v9.8.7"])
    python = virtual_environment(tmp_path / "builder")
    install(python, "build")
    for source in (project, project / "scripts" / "raftlog_server"):
        run([python, "-m", "build", "--outdir", tmp_path / "dist", source])
    built = sorted(path.name for path in (tmp_path / "dist").iterdir())
    assert built == [
        "raftlog-9.8.7-py3-none-any.whl",
        "raftlog-9.8.7.tar.gz",
        "raftlog_server-9.8.7-py3-none-any.whl",
        "raftlog_server-9.8.7.tar.gz",
    ]
    server = zipfile.ZipFile(tmp_path / "dist" / built[2])
    assert b"Requires-Dist: raftlog==9.8.7\n" in server.read(
        "raftlog_server-9.8.7.dist-info/METADATA"
    )


def test_server_extra_is_installable_from_a_wheel_directory(wheels: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("raftlog-*.whl")
    python = virtual_environment(tmp_path / "venv")
    raftlog = python.parent / "raftlog"
    install(python, f"{wheel}[cli]")
    refused = run_text([raftlog, "controller", "run", "-c", "node1.toml"], timeout=60)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install 'raftlog[server]'" in refused.stderr
    assert "\n  controller " in run([raftlog, "--help"])

    install(python, "--find-links", wheels, f"{wheel}[server]")
    assert "Run a controller" in run([raftlog, "controller", "run", "--help"])
    run([python, "-c", "import broker.run, controller.run, simulation.cli"], cwd=tmp_path)
    assert run([python, "-m", "pip", "check"]).strip() == "No broken requirements found."
