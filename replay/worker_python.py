"""The Python of a replay on one machine, of its driver and its workers: it takes PySpark from where
it is installed.

Spark puts the zipped copy of PySpark in its own directory first on the path of each worker. Python
keeps no compiled modules of a zip: each process that is not forked from another one compiles all of
PySpark anew, which is three times the work of its start. The source of a stream is such a process,
and has to be there within ten seconds by the clock, on a busy machine too. So they start through a
launcher that takes the copy off the path. Where the Spark is not PySpark's own, or the user has
configured the interpreters, nothing is changed.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from replay.java import cache_directories, write_executable

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
