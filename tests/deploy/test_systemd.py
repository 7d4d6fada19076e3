"""The systemd units."""

import configparser
import shlex
import shutil
import sys
from pathlib import Path, PurePosixPath

import pytest
from command_runs import run_text
from typer.testing import CliRunner

from raftlog.cli.exits import Exit
from raftlog.cli.main import build
from raftlog.deploy import units
from raftlog.errors import ConfigError
from raftlog.node.config.settings import Settings

UNITS = PurePosixPath("etc/systemd/system")
ROLES = ("controller", "broker")
KNOWN = {
    "Unit": "Description After Wants RequiresMountsFor StartLimitIntervalSec",
    "Service": "User Group ExecStart EnvironmentFile Restart RestartSec RestartPreventExitStatus"
    " KillSignal TimeoutStopSec LimitNOFILE StateDirectory StateDirectoryMode WorkingDirectory UMask"
    " ProtectSystem ProtectHome PrivateTmp PrivateDevices NoNewPrivileges CapabilityBoundingSet"
    " AmbientCapabilities ProtectClock ProtectControlGroups ProtectHostname ProtectKernelLogs"
    " ProtectKernelModules ProtectKernelTunables ProtectProc RestrictAddressFamilies"
    " RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality SystemCallArchitectures"
    " SystemCallFilter SystemCallErrorNumber",
    "Install": "WantedBy",
}
RAFTLOG = "/opt/raftlog/bin/raftlog"


def parsed(text: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    return unit


def unit_of(role: str, *command: str) -> configparser.ConfigParser:
    files = units.unit_files([*(command or (RAFTLOG,))])
    return parsed(files[UNITS / f"raftlog-{role}@.service"])


@pytest.mark.parametrize("role", ROLES)
def test_sections_and_keys_are_known_to_systemd(role: str) -> None:
    unit = unit_of(role)
    assert unit.sections() == [*KNOWN]
    for section, known in KNOWN.items():
        assert set(unit[section]) <= set(known.split())
    assert unit["Service"]["ExecStart"] == f"{RAFTLOG} {role} run -c /etc/raftlog/%i.toml"


@pytest.mark.parametrize("role", ROLES)
def test_unit_may_write_its_data_directory_only(role: str) -> None:
    service = unit_of(role)["Service"]
    assert (service["User"], service["ProtectSystem"]) == ("raftlog", "strict")
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert service["StateDirectory"] == "raftlog/%i"


@pytest.mark.parametrize("role", ROLES)
def test_unit_restarts_except_after_errors_that_need_an_operator(role: str) -> None:
    unit = unit_of(role)
    assert unit["Service"]["Restart"] == "on-failure"
    stay = {int(code) for code in unit["Service"]["RestartPreventExitStatus"].split()}
    assert stay == {Exit.USAGE, Exit.FOUND, Exit.DISK}
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_broker_has_enough_time_for_its_controlled_shutdown() -> None:
    shutdown_s = Settings.controlled_shutdown_timeout_ms / 1000
    assert int(unit_of("broker")["Service"]["TimeoutStopSec"]) >= shutdown_s + 10


@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_the_units(role: str, tmp_path: Path) -> None:
    """Run only where systemd is installed."""
    analyze = shutil.which("systemd-analyze")
    units.install(units.unit_files(["/bin/sh"]), tmp_path)
    unit = tmp_path / UNITS / f"raftlog-{role}@.service"
    assert unit.is_file()
    if analyze:
        name = unit.with_name(f"raftlog-{role}@n1.service")
        shutil.copy(unit, name)
        done = run_text([analyze, "verify", "--man=no", name], timeout=60)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "raftlog-" in line]
        assert ours == []


def test_command_uses_this_interpreter() -> None:
    command = units.this_command()
    assert run_text([*command, "--version"], check=True).stdout.startswith("raftlog ")
    assert Path(command[0]).parent == Path(sys.executable).parent


def test_path_with_special_characters_is_quoted() -> None:
    start = unit_of("broker", "/opt/100% $raft log/bin/raftlog")["Service"]["ExecStart"]
    assert shlex.split(start)[0] == "/opt/100%% $$raft log/bin/raftlog"


@pytest.mark.parametrize(
    "path",
    ["raftlog", "bin/raftlog", "/opt/raft\nlog", "/home/me/.venv/bin/raftlog", "/tmp/raftlog"],
)
def test_path_that_systemd_cannot_run_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        units.unit_files([path])


def test_install_writes_units_once_and_replaces_older_ones(tmp_path: Path) -> None:
    files = units.unit_files([RAFTLOG])
    assert units.install(files, tmp_path) == [tmp_path / place for place in files]
    assert units.install(files, tmp_path) == []
    old = tmp_path / UNITS / "raftlog-broker@.service"
    old.write_text("[Unit]\n")
    assert units.install(files, tmp_path) == [old]
    assert old.read_text() == files[UNITS / old.name]
    assert sorted(p.name for p in old.parent.iterdir()) == [
        "raftlog-broker@.service",
        "raftlog-controller@.service",
    ]


def test_dry_run_prints_the_units_and_writes_nothing(tmp_path: Path) -> None:
    words = ["deploy", "systemd", "install", "--dry-run"]
    words += ["--prefix", str(tmp_path), "--executable", RAFTLOG]
    ran = CliRunner().invoke(build(), words)
    assert (ran.exit_code, ran.output.count(f"ExecStart={RAFTLOG} ")) == (0, 2)
    assert "u raftlog" in ran.output
    assert not any(tmp_path.iterdir())
    ran = CliRunner().invoke(build(), [word for word in words if word != "--dry-run"])
    assert ran.exit_code == 0
    assert "  systemctl enable --now raftlog-controller@NAME\n" in ran.output
    assert len([*tmp_path.rglob("*.service")]) == 2


def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*etc/systemd"):
        units.install(units.unit_files([RAFTLOG]), tmp_path)


def test_masked_unit_stays_masked(tmp_path: Path) -> None:
    masked = tmp_path / UNITS / "raftlog-broker@.service"
    masked.parent.mkdir(parents=True)
    masked.symlink_to("/dev/null")
    with pytest.raises(ConfigError, match=r"not a regular file.*systemctl unmask"):
        units.install(units.unit_files([RAFTLOG]), tmp_path)
    assert masked.is_symlink()
