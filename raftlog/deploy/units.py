"""The systemd units that run nodes with one interpreter's raftlog."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

from raftlog.errors import ConfigError

_HERE = Path(__file__).parent
_UNITS = PurePosixPath("etc/systemd/system")
_PLACES = {
    "raftlog-controller@.service": _UNITS,
    "raftlog-broker@.service": _UNITS,
    "raftlog.sysusers.conf": PurePosixPath("etc/sysusers.d"),
}
# ProtectHome= and PrivateTmp= hide these from the units, whose user may not enter the first.
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


def this_command() -> list[str]:
    """Return the command that runs this installation's raftlog, independently of PATH."""
    # Not resolved: python in a virtual environment is a link, and its path identifies the
    # environment.
    python = Path(sys.executable).absolute()
    script = python.with_name("raftlog")
    return [str(script)] if script.is_file() else [str(python), "-m", "raftlog"]


def unit_files(command: list[str]) -> dict[PurePosixPath, str]:
    """Return the text of each file by its path below the root. Raises ConfigError."""
    executable = PurePosixPath(command[0])
    if not executable.is_absolute() or any(not word.isprintable() for word in command):
        raise ConfigError(
            f"{command[0]!r}: the units need an absolute path of printable characters"
        )
    for hidden in _HIDDEN:
        if executable.is_relative_to(hidden):
            raise ConfigError(
                f"{executable}: the units cannot access {hidden}. Install raftlog elsewhere, such "
                "as in a virtual environment at /opt/raftlog, and run this command from there"
            )
    words = " ".join(_quoted(word) for word in command)
    files = {}
    for name, place in _PLACES.items():
        text = (_HERE / name).read_text(encoding="utf-8")
        target = "raftlog.conf" if name == "raftlog.sysusers.conf" else name
        files[place / target] = text.replace("@RAFTLOG@", words)
    return files


def install(files: dict[PurePosixPath, str], root: Path) -> list[Path]:
    """Write the files below ``root``, and return those that changed. Raises ConfigError."""
    written = []
    for place, text in files.items():
        path = root / place
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise ConfigError(
                f"{path} is not a regular file and was not replaced: the unit is masked or linked; "
                "run `systemctl unmask`, or remove it"
            )
        try:
            if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.new")
            new.write_text(text, encoding="utf-8")
            new.chmod(0o644)
            new.replace(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written


def _quoted(word: str) -> str:
    """Quote a word for ExecStart=, where % begins a specifier and $ a variable."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = all(letter.isalnum() or letter in "/._-+" for letter in word)
    return word if plain else f'"{escaped}"'
