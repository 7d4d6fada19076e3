"""Create ``.venv`` and install the project into it.

Uses only the standard library, since nothing is installed yet. A stamp in the virtual environment
records the inputs: pyproject.toml, constraints.txt and the contracts. While it matches, there is
nothing to do. Uses ``uv`` if it is available, else venv and pip.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C needs no traceback: the next start redoes incomplete work.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "scripts" / "raftlog_server"
"""Directory of the other distribution in this repository."""
VENV = ROOT / ".venv"
STAMP = VENV / ".raftlog-setup"
EXTRAS_FOR = {
    "server": ("server",),
    "replay": ("replay",),
    "demo": ("server", "replay"),
    "all": ("test",),
}
"""Extras to install, by purpose. A node needs neither Spark nor the tools for tests."""
EVERYTHING = "test"
NEEDS_JAVA = {"replay", EVERYTHING}
PACKAGES = ("raftlog", "controller", "broker", "replay", "simulation", "pyspark_raftlog")
JAVA_MIN = 17


class SetupError(Exception):
    """Setup is not possible; the message is the reason."""


def main() -> int:
    """Set up if needed; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Set up .venv for this project; fast when nothing has changed."
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing if there is nothing to do"
    )
    parser.add_argument("--force", action="store_true", help="reinstall")
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=EXTRAS_FOR,
        default="all",
        help="install what this purpose needs, in addition to what is installed (default: all)",
    )
    arguments = parser.parse_args()
    try:
        stamp, there = fingerprint(), installed()
        missing = set(EXTRAS_FOR[arguments.purpose])
        if EVERYTHING in there:
            missing.clear()
        missing -= there
        if missing & NEEDS_JAVA and java_version() < JAVA_MIN:
            missing.add("java")
        if not arguments.force and not missing and is_current(stamp):
            if not arguments.quiet:
                print("setup: nothing to do")
            return 0
        extras = sorted(there | missing | set(EXTRAS_FOR[arguments.purpose]))
        set_up(extras)
        STAMP.write_text(f"{stamp}\n{','.join(extras)}\n")
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def java_version() -> int:
    """Return the major version of the default Java, or 0."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    try:
        found = subprocess.run(
            [java or "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', found.stderr + found.stdout)
    return int(match[1]) if match else 0


def installed() -> set[str]:
    """Return the installed extras, whatever inputs they were installed from."""
    if not STAMP.exists() or not python().exists():
        return set()
    lines = STAMP.read_text().splitlines()
    return set(lines[1].split(",")) if len(lines) > 1 else set()


def fingerprint() -> str:
    """Return a hash of the inputs of the installation."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for path in (
        ROOT / "pyproject.toml",
        SERVER / "pyproject.toml",
        ROOT / "hatch_build.py",
        ROOT / "constraints.txt",
        *sorted((ROOT / "proto").rglob("*.proto")),
        ROOT / "raftlog" / "config_writes" / "native.c",
        ROOT / "raftlog" / "config_writes" / "warm.h",
        ROOT / "raftlog" / "__main__.py",
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(stamp: str) -> bool:
    """Return whether the installation matches the stamp."""
    generated = ROOT / "raftlog" / "wire"
    return (
        STAMP.exists()
        and STAMP.read_text().partition("\n")[0] == stamp
        and python().exists()
        and generated.is_dir()
    )


def python() -> Path:
    """Return the interpreter of the virtual environment."""
    return VENV / "bin" / "python"


def set_up(extras: Sequence[str]) -> None:
    """Create the virtual environment if it is missing, and install."""
    began = time.monotonic()
    uv = shutil.which("uv")
    print(
        f"setup: Python {sys.version.split()[0]}, {'uv' if uv else 'venv and pip'}, extras"
        f" {', '.join(extras)}",
        flush=True,
    )
    if not python().exists():
        make_venv(uv)
    elif not uv:
        bring_pip()
    # In this order, so that pip resolves raftlog itself before raftlog-server requires it.
    targets = ["--editable", f"{ROOT}[{','.join(extras)}]", "--editable", str(SERVER)]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    size = "some hundred" if NEEDS_JAVA & {*extras} else "some dozen"
    print(f"setup: installing (the first time this downloads {size} megabytes)", flush=True)
    if uv:
        command = [
            uv,
            "pip",
            "install",
            *(["--compile-bytecode"] if sys.dont_write_bytecode else []),
            "--python",
            str(python()),
            *constraints,
            *targets,
        ]
    else:
        pip = [str(python()), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
        # Not --quiet: minutes of silent download would look like a hang.
        command = [
            *pip,
            "--progress-bar",
            "on" if sys.stdout.isatty() else "off",
            # As uv does: a third of the time would go into modules that nothing imports.
            *([] if sys.dont_write_bytecode else ["--no-compile"]),
            *constraints,
            *targets,
        ]
        if {*extras} & {EVERYTHING, "replay"}:
            # Named here, so that the option reaches its build: pip makes a wheel of half a gigabyte
            # of PySpark's JAR files, only to unpack it, and compressing it again takes long.
            command += ["--config-settings=--build-option=--compression=stored", "pyspark"]
    run(
        command,
        "installing failed; is the package index reachable? (offline, a proxy, PIP_INDEX_URL)",
    )
    # If Python may not write byte code, each start would compile the project again.
    packages = [str(ROOT / package) for package in PACKAGES]
    run(
        [str(python()), "-m", "compileall", "-q", "-j", "0", *packages],
        "the project's own code does not compile",
    )
    run(
        [str(python()), "-m", "raftlog.config_writes.compiling"],
        "raftlog.config_writes.compiling has a defect",
    )
    print(f"setup: done in {time.monotonic() - began:.0f} s", flush=True)


def make_venv(uv: str | None) -> None:
    """Create the virtual environment, replacing a broken one."""
    if uv:
        run(
            [uv, "venv", "--clear", "--python", sys.executable, str(VENV)],
            "uv could not make a virtual environment",
        )
        return
    require_module(Path(sys.executable), "venv", "ensurepip")
    run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], "could not make a virtual environment"
    )


def bring_pip() -> None:
    """Install pip into a virtual environment created by uv, which omits it."""
    if imports(python(), "pip"):
        return
    require_module(python(), "ensurepip")
    run([str(python()), "-m", "ensurepip"], "could not install pip into the virtual environment")


def require_module(interpreter: Path, *modules: str) -> None:
    """Raise SetupError if this Python lacks the module that creates virtual environments."""
    if not imports(interpreter, *modules):
        raise SetupError(
            "this Python has no venv module; install it (Debian and Ubuntu: apt install"
            " python3-venv), or install uv"
        )


def imports(interpreter: Path, *modules: str) -> bool:
    """Return whether an interpreter can import all of these modules."""
    done = subprocess.run(
        [str(interpreter), "-c", f"import {', '.join(modules)}"], capture_output=True, check=False
    )
    return done.returncode == 0


def run(command: Sequence[str], failure: str) -> None:
    """Run a command and show its output, except for pip's lines about requirements already
    satisfied.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    if not sys.dont_write_bytecode:
        # Most modules of the dependencies are never imported; Python compiles the others once.
        environment["PIP_COMPILE"] = "0"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("Requirement already satisfied"):
            print(f"  {line.rstrip()}", flush=True)
    if process.wait():
        raise SetupError(failure)


if __name__ == "__main__":
    sys.exit(main())
