"""The compilation of ``native.c``, where a C compiler or the ``ziglang`` package, and Python's
headers, are available.

``python -m raftlog.config_writes.compiling``; ``scripts/setup`` runs it. It never fails: without
the compiled codec, ``writes.py`` does the same work more slowly.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O3", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fPIC", "-shared")
_WITHOUT_HINTS = "-DNO_WARM"
"""Flag for Python headers with which ``warm.h`` does not compile; nothing else depends on it."""
_TIMEOUT_S = 120


def target() -> Path:
    """Return the path of the compiled codec."""
    return SOURCE.with_name(f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")


def compiler() -> list[str]:
    """Return the command of a C compiler, or an empty list."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return []


def compile_codec(out: Path) -> str:
    """Compile to ``out``; return why that failed, or ""."""
    include = Path(sysconfig.get_paths()["include"])
    command = compiler()
    if sys.platform == "win32":
        return "not on Windows"
    if not command:
        return "no C compiler"
    if not (include / "Python.h").exists():
        return "no Python headers"
    with tempfile.TemporaryDirectory(dir=out.parent) as directory:
        made = Path(directory) / out.name
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        whole = [*command, *_FLAGS, *link, f"-I{include}", str(SOURCE), "-o", str(made)]
        failure = _run(whole) and _run([*whole, _WITHOUT_HINTS])
        if not failure:
            # Renamed when complete: a node may start meanwhile.
            made.replace(out)
    return failure and f"{shlex.join(command)}: {failure}"


def _run(command: list[str]) -> str:
    """Run a command; return why it failed, or ""."""
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        said: str = error.stderr.decode(errors="replace")[-2_000:]
        return said or f"exit code {error.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def main() -> None:
    """Compile, and print the result."""
    out = target()
    out.unlink(missing_ok=True)
    failure = compile_codec(out)
    print(f"codec: python ({failure})" if failure else f"codec: native ({out.name})")


if __name__ == "__main__":
    main()
