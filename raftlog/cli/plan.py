"""``raftlog diff``, ``plan`` and ``apply``: compare states, and change one according to a reviewed
file.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from raftlog.cli.command import Answer, command
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.log import fold
from raftlog.cli.options import (
    CONTROLLERS,
    DEFAULT_TIMEOUT_S,
    AtOffset,
    AtTime,
    BootstrapController,
    Timeout,
    arg,
    controllers,
    opt,
    variable,
)
from raftlog.cli.output import print_error, print_line, print_note, print_table
from raftlog.cli.values import export_time_ms
from raftlog.endpoint import parse_endpoint
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.identity import os_user
from raftlog.node.storage.directory import META_FILE
from raftlog.ops.declared import (
    MAX_FILE_BYTES,
    Change,
    Plan,
    change_in_words,
    declared,
    differences,
    in_words,
    named_error,
    plan_id,
    plan_of,
    read_file,
    request_of,
    write_file,
)
from raftlog.ops.logs import RunningLog, open_log
from raftlog.outcome import Token
from raftlog.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftlog.metadata.image import Image
    from raftlog.segments.point import ExportedState

LIVE = "live"
_AT = re.compile(r"(.+)@(\d+)")
ShowValues = Annotated[
    bool, opt("--show-values", "Also print the values of keys, which may be secrets.")
]
PlanFile = Annotated[Path, arg("FILE", "The desired state, in YAML.")]
_SIGNS = {"create": "+", "delete": "-", "change": "~"}


@dataclass
class DeclaredChange:
    """A difference in the declared state."""

    kind: str
    """topic, config, acl or key."""
    name: str
    action: str
    """create, delete or change."""
    change: str
    """Text that describes the change; without --show-values, only the sizes of a key's values."""


@dataclass
class StateDifferences:
    """The changes that make the first state equal to the second one."""

    before: str
    after: str
    changes: Sequence[DeclaredChange]


@dataclass
class Planned:
    """A plan, and the active controller's decision on it."""

    plan: str
    """Id of exactly these changes, for `apply --plan`, or "" if there is nothing to change."""
    cluster_id: str
    generation: int
    offset: int
    """Last offset of the state that the plan was made from."""
    changes: Sequence[DeclaredChange]
    records: int
    """Number of records that the controller would write, or has written."""
    refused: str | None
    """Why the controller would refuse the plan, or None."""
    problems: Sequence[str]
    """Changes in the file that no plan can make."""


@dataclass
class Applied(Planned):
    """A plan that was applied."""

    token: Token | None
    """Position of the plan's batch in the log."""


class _State(NamedTuple):
    name: str
    image: Image


@command()
def diff_(
    before: Annotated[
        str,
        arg(
            "BEFORE",
            "A state: an export (directory or URI, or EXPORT@OFFSET for one point), a backup, a "
            "stopped controller's directory, HOST:PORT of a cluster, or `live`.",
        ),
    ],
    after: Annotated[str, arg("AFTER", "The later state.")],
    yaml: Annotated[
        bool,
        opt(
            "--yaml",
            "Print a file for `raftlog plan` that makes the first state equal to the second one; "
            "it includes keys only with --show-values.",
        ),
    ] = False,
    show_values: ShowValues = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[StateDifferences]:
    """Compare topics, configs, entries and keys of two states.

    Ignores keys that belong to a lease. For two points of one export, `raftlog replay diff` shows
    all kinds of entities, and who changed them.

    \b
    Examples:
      raftlog diff exported@5119 live
      raftlog diff live s3://audit/cluster-1@5119 --yaml > put-back.yaml
      raftlog diff 127.0.0.1:9093 127.0.0.1:9193
    """
    first = _state(before, bootstrap_controller, timeout)
    second = _state(after, bootstrap_controller, timeout)
    found = differences(declared(first.image), declared(second.image))
    shown = StateDifferences(first.name, second.name, _shown(found, with_values=show_values))

    def show() -> None:
        if yaml:
            _print_file(found, with_values=show_values)
            return
        _print_changes(shown.changes)
        print_line(f"{counted(len(found), 'difference')} from {shown.before} to {shown.after}")

    return Answer(shown, show)


def _state(text: str, bootstrap_controller: str, timeout_s: float) -> _State:
    """Return the state that an argument of diff names. Raises ConfigError, among other errors."""
    found = _AT.fullmatch(text)
    place, at = (found[1], int(found[2])) if found else (text, None)
    path = Path(place)
    if path.is_file():
        from raftlog.ops.backup import inspect

        return _State(place, inspect(path).image)
    is_directory = (path / META_FILE).exists()
    if "://" not in place and not path.exists() and _is_address(place):
        asked = bootstrap_controller if place == LIVE else place
        with open_log(None, None, partial(controllers, asked), timeout_s) as source:
            image = fold(source, at)
    elif is_directory:
        with open_log(path, None, tuple, timeout_s) as source:
            image = fold(source, at)
    else:
        from raftlog.segments.point import exported_state

        state = exported_state(place, offset=at, unvouched=True)
        _note_unvouched(place, state)
        image = state.image
    return _State(f"{place}@{image.offset}", image)


def _note_unvouched(place: str, state: ExportedState) -> None:
    """Warn if no controller has recorded the hash of a state that was read from an export."""
    if state.vouched_by == "":
        print_note(
            f"note: no controller vouches for the state at offset {state.image.offset} of {place}: "
            "no state hash is recorded at that offset or later"
        )


def _is_address(text: str) -> bool:
    if text == LIVE:
        return True
    try:
        return all(parse_endpoint(one.strip()) for one in text.split(","))
    except ValueError:
        return False


def _shown(changes: Sequence[Change], *, with_values: bool) -> list[DeclaredChange]:
    return [
        DeclaredChange(
            one.kind,
            in_words(one.kind, one.name),
            one.action,
            change_in_words(one, with_values=with_values),
        )
        for one in changes
    ]


def _print_changes(changes: Sequence[DeclaredChange]) -> None:
    if changes:
        rows = [(_SIGNS[one.action], one.kind, one.name, one.change) for one in changes]
        print_table(("", "KIND", "NAME", "CHANGE"), rows)


def _print_file(changes: Sequence[Change], *, with_values: bool) -> None:
    text, left_out = write_file(changes, with_values=with_values)
    typer.echo(text, nl=False)
    if left_out:
        keys = counted(left_out, "key")
        print_error(f"omitted: {keys}, whose values may be secrets (--show-values)")


@command()
def plan_(
    file: Annotated[Path | None, arg("[FILE]", "The desired state, in YAML.")] = None,
    from_export: Annotated[
        str,
        opt("--from-export EXPORT", "Print the file for the state in an export, without planning."),
    ] = "",
    at_offset: AtOffset = None,
    at_time: AtTime = None,
    show_values: ShowValues = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[Planned] | None:
    """Show what would change to make a cluster match a file.

    The active controller decides on the plan, but writes nothing. Entities that the file does not
    name stay unchanged; only those with `absent: true` are deleted. The last line is the command
    that applies exactly this plan.

    \b
    Examples:
      raftlog plan topics.yaml
      raftlog plan --from-export exported --at-offset 5119 > topics.yaml
    """
    if (file is None) == (not from_export):
        raise ConfigError("give a FILE, or --from-export EXPORT")
    if from_export:
        from raftlog.segments.point import exported_state

        time_ms = export_time_ms(at_time, from_export)
        state = exported_state(from_export, offset=at_offset, time_ms=time_ms, unvouched=True)
        _note_unvouched(from_export, state)
        _print_file(differences({}, declared(state.image)), with_values=show_values)
        return None
    if at_offset is not None or at_time is not None:
        raise ConfigError("--at-offset and --at-time need --from-export")
    assert file is not None
    with _live(bootstrap_controller, timeout) as source:
        plan, planned, refusal = _planned(source, file, show_values=show_values)
    failed = [refusal] if refusal is not None else _failed(plan)
    command_line = _apply_line(file, planned, bootstrap_controller)
    return Answer(planned, lambda: _show_plan(planned, file, command_line), failed)


@command()
def apply_(
    file: PlanFile,
    plan: Annotated[
        str,
        opt(
            "--plan ID",
            "Apply only this plan, without asking for confirmation: see `raftlog plan`.",
        ),
    ] = "",
    show_values: ShowValues = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[Applied]:
    """Make a cluster match a file, as planned: all or nothing.

    If the file, or anything that the plan changes, has changed since, the command applies nothing,
    shows the new plan and fails with INVALID_UPDATE_VERSION. Without --plan the command shows the
    plan and asks for confirmation.

    \b
    Examples:
      raftlog apply topics.yaml --plan 1f2e3d4c5b6a7988
    """
    with _live(bootstrap_controller, timeout) as source:
        made, planned, refusal = _planned(source, file, show_values=show_values)
        done = Applied(**vars(planned), token=None)
        if plan and plan != planned.plan:
            _show_plan(planned, file)
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"the state or the file has changed: the plan for {file} is now "
                f"{planned.plan or 'empty'}, not {plan}; nothing was changed",
                field="plan",
            )
        if refusal is not None or made.problems or not made.changes:
            failed = [refusal] if refusal is not None else _failed(made)
            return Answer(done, lambda: _show_plan(planned, file), failed)
        if not plan:
            _ask(planned, file)
        request = request_of(made, planned.generation, validate_only=False)
        try:
            response = source.call(request, principal=os_user())
        except ApiError as error:
            if error.outcome_unknown or error.code not in _DECIDED:
                raise
            raise named_error(error, request) from error
    token = response.write.token
    done.token = Token(token.generation, token.epoch, token.offset)
    done.records = response.apply_plan.record_count
    text = (
        f"{file}: {counted(len(planned.changes), 'change')} applied in one batch of"
        f" {counted(done.records, 'record')}, committed at offset {token.offset} in epoch"
        f" {token.epoch}"
    )
    return Answer(done, lambda: print_line(text))


def _ask(planned: Planned, file: Path) -> None:
    """Show the plan, and raise FailedError unless the operator accepts it."""
    if not sys.stdin.isatty():
        raise FailedError(
            "cannot ask for confirmation without a terminal: give --plan ID, as shown by `raftlog "
            f"plan {file}`",
            Exit.USAGE,
        )
    _show_plan(planned, file)
    if not typer.confirm("Apply this?", err=True):
        raise FailedError("nothing was changed", Exit.REFUSED)


@contextmanager
def _live(bootstrap_controller: str, timeout_s: float) -> Iterator[RunningLog]:
    with open_log(None, None, partial(controllers, bootstrap_controller), timeout_s) as source:
        assert isinstance(source, RunningLog)
        yield source


def _planned(
    source: RunningLog, file: Path, *, show_values: bool
) -> tuple[Plan, Planned, ApiError | None]:
    """Return the plan for a file on the live state, and the controller's refusal, or None."""
    wanted = read_file(_text_of(file), str(file))
    image = fold(source, None)
    plan = plan_of(image, wanted)
    planned = Planned(
        plan_id(plan, source.cluster_id, source.generation) if plan.changes else "",
        source.cluster_id,
        source.generation,
        image.offset,
        _shown(plan.changes, with_values=show_values),
        0,
        None,
        plan.problems,
    )
    if not plan.changes:
        return plan, planned, None
    request = request_of(plan, source.generation, validate_only=True)
    try:
        answer = source.call(request, principal=os_user())
    except ApiError as error:
        if error.outcome_unknown or error.code not in _DECIDED:
            raise
        refusal = named_error(error, request)
        planned.refused = str(refusal)
        return plan, planned, refusal
    planned.records, planned.offset = answer.apply_plan.record_count, answer.apply_plan.offset
    return plan, planned, None


_PASSING = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_DECIDED = frozenset(ErrorCode) - _PASSING
"""Error codes that are a decision on the plan."""


def _text_of(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error}") from error


def _failed(plan: Plan) -> list[FailedError]:
    return [FailedError(one, Exit.REFUSED) for one in plan.problems]


def _apply_line(file: Path, planned: Planned, bootstrap_controller: str) -> str:
    """Return the command that applies a plan to the same cluster."""
    words = ["raftlog", "apply", str(file), "--plan", planned.plan]
    if bootstrap_controller != os.environ.get(variable(CONTROLLERS), ""):
        words += [CONTROLLERS, bootstrap_controller]
    return shlex.join(words)


def _show_plan(planned: Planned, file: Path, command_line: str = "") -> None:
    """Show a plan. ``command_line``: the last line, if the plan can be applied."""
    _print_changes(planned.changes)
    at = f"offset {planned.offset} of cluster {planned.cluster_id}"
    if not planned.changes:
        if not planned.problems:
            print_line(f"{file}: nothing to change at {at}")
        return
    if planned.refused is not None or planned.problems:
        print_line(f"{counted(len(planned.changes), 'change')} at {at}: refused")
        return
    print_line(
        f"{counted(len(planned.changes), 'change')} at {at}: accepted, one batch of"
        f" {counted(planned.records, 'record')}"
    )
    if command_line:
        print_line(command_line)
