"""``raftlog export`` and ``verify``: export the log to files, and verify such files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.command import Answer, command
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    Checkpoints,
    DataDirectory,
    Json,
    Sign,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_json_line, print_line, print_table
from raftlog.cli.process import StopOnSignal
from raftlog.cli.streams import INTERRUPTED
from raftlog.errors import ApiError, ConfigError, CorruptLogError
from raftlog.ops.logs import DirectoryLog, RunningLog, begins_late, open_log
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.metadata.image import Image
    from raftlog.ops.logs import LogSource
    from raftlog.segments.export import ExportSummary
    from raftlog.segments.files import Place
    from raftlog.segments.manifest import Manifest, ManifestSigner
    from raftlog.segments.range_checks import Checked, Fault
    from raftlog.segments.verify import Vouching
    from raftlog.segments.writer import Beginning, Published


COMPACT_AT = 32
"""Number of small ranges that a following export merges at once, so its readers never see many
more.
"""


@dataclass
class Exported:
    """The result of an export: the records from ``first_offset`` up to ``end_offset``,
    exclusive.
    """

    directory: str
    cluster_id: str
    generation: int
    first_offset: int
    end_offset: int
    history_begin: int
    batches: int
    files: int
    bytes: int
    checkpoints: int
    not_folded: str
    """Why the export gets no more checkpoints, or "" if it does."""
    records: int
    verified: bool


@command()
def export_(
    target: Annotated[
        str, arg("DIR|URI", "Where to write the export: a directory, or s3://…, gs://…")
    ],
    directory: DataDirectory = None,
    assume_committed: Annotated[
        bool,
        opt(
            "--assume-committed",
            "With --directory: export up to the log end. Use it only if you know that this"
            " node had no uncommitted records.",
        ),
    ] = False,
    cursor: Annotated[
        str,
        opt(
            "--cursor NAME",
            "Make the nodes keep the part of the log that this export has not read yet, under this "
            "name"
            " (see `raftlog cluster cursors`).",
        ),
    ] = "",
    keep_following: Annotated[
        bool, opt("--follow", "Keep exporting new records until Ctrl-C or SIGTERM.")
    ] = False,
    publish_interval: Annotated[
        float | None,
        opt(
            "S",
            "With --follow: publish new records this long after the first of them arrived."
            " Default: 30.",
            min=0.1,
        ),
    ] = None,
    publish_records: Annotated[
        int | None,
        opt(
            "N",
            "With --follow: publish after this many records, even before the interval ends. "
            "Default: 1000000.",
            min=1,
        ),
    ] = None,
    compact: Annotated[
        bool,
        opt(
            "--compact",
            "Merge small files into large ones, and split large ones into buckets by topic:"
            " after the export, or during --follow.",
        ),
    ] = False,
    checkpoints: Checkpoints = None,
    verify: Annotated[bool, opt("--verify", "Read the whole export back and check it.")] = False,
    sign: Sign = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> Answer[Exported] | None:
    """Export the committed log: Parquet, its exact bytes, a manifest.

    Resumes where an earlier run ended.

    \b
    Examples:
      raftlog export exported --bootstrap-controller 127.0.0.1:9093
      raftlog export exported --cursor nightly
      raftlog export exported --directory data/controller-1 --verify
      raftlog export exported --sign key.pem
      raftlog export s3://audit/cluster-1 --follow --publish-interval 60 --compact
    """
    from raftlog.ops.export_cursor import keep_cursor
    from raftlog.segments.checkpoints import CHECKPOINT_RECORDS
    from raftlog.segments.export import PUBLISH_INTERVAL_S, PublishPolicy
    from raftlog.segments.files import open_place
    from raftlog.segments.verify import verify_export
    from raftlog.segments.writer import MAX_SEGMENT_RECORDS

    if keep_following and directory is not None:
        raise ConfigError(
            "--follow needs a running cluster: a stopped node's directory does not grow"
        )
    if not keep_following and (publish_interval is not None or publish_records is not None):
        raise ConfigError(
            "--publish-interval and --publish-records need --follow: without it, the export is"
            " published once"
        )
    place = open_place(target)
    every = CHECKPOINT_RECORDS if checkpoints is None else checkpoints
    signer = None
    if sign is not None:
        from raftlog.segments.signing import load_signer

        signer = load_signer(sign)
    stop = StopOnSignal()
    with open_log(directory, None, partial(controllers, bootstrap_controller), timeout) as source:
        if assume_committed and isinstance(source, DirectoryLog):
            source.assume_committed()
        if directory is not None and not source.end_offset:
            raise _no_log_in(directory)
        late = begins_late(source)
        left_out = source.end_offset - source.high_watermark
        keeper = keep_cursor(cursor, source, place) if cursor else None
        published = keeper.published if keeper is not None else None
        if keep_following and isinstance(source, RunningLog):
            compact_at = COMPACT_AT if compact else 0
            policy = PublishPolicy(
                publish_interval or PUBLISH_INTERVAL_S,
                publish_records or MAX_SEGMENT_RECORDS,
                compact_at=compact_at,
                checkpoint_records=every,
            )
            telling = _telling(published, place, as_json)
            summary = _follow(source, place, policy, telling, stop, signer)
        else:
            summary = _once(source, place, published, signer, every)
        if keeper is not None:
            keeper.finish()
    if compact and not keep_following:
        _compact(place, summary, signer)
    if verify:
        verify_export(place)
    _warn(place, summary, late, left_out)
    done = Exported(str(place), **asdict(summary), records=summary.records, verified=verify)
    errors = [typer.Exit(INTERRUPTED)] if stop.interrupted else []
    if as_json and keep_following:
        # Separates the summary from the lines of the publishes.
        print_json_line(done)
        if errors:
            raise errors[0]
        return None
    return Answer(done, lambda: _show_export(done), errors)


def _once(
    source: LogSource,
    place: Place,
    published: Published | None,
    signer: ManifestSigner | None,
    checkpoint_records: int,
) -> ExportSummary:
    from raftlog.segments.export import export

    with _progress(source) as progress:
        return export(
            source,
            place,
            progress,
            state_hashes=source.reported_hashes,
            published=published,
            signer=signer,
            checkpoint_records=checkpoint_records,
            beginning=_beginning(source),
        )


def _follow(
    source: RunningLog,
    place: Place,
    policy: Any,
    published: Published,
    stop: StopOnSignal,
    signer: ManifestSigner | None,
) -> ExportSummary:
    from raftlog.segments.export import follow

    def waiting(why: str) -> None:
        print_error(f"raftlog: waiting: {why}" if why else "raftlog: continuing")

    with stop:
        return follow(
            source,
            place,
            policy,
            stop=lambda: stop.asked,
            state_hashes=source.reported_hashes,
            published=published,
            waiting=waiting,
            signer=signer,
            beginning=_beginning(source),
        )


def _beginning(source: LogSource) -> Beginning | None:
    """Return the nodes' state at the start of a log whose first records they have deleted, or
    None.
    """
    if not isinstance(source, RunningLog):
        return None
    from raftlog.segments.writer import Beginning

    def state() -> Image | None:
        # A later snapshot has replaced it, or no node answers: an export without a state is
        # still evidence.
        with suppress(ApiError, ConfigError, CorruptLogError):
            return source.image_up_to(source.high_watermark - 1)
        return None

    return Beginning(source.generations, state)


def _compact(place: Place, summary: ExportSummary, signer: ManifestSigner | None) -> None:
    from raftlog.segments.buckets import add_buckets
    from raftlog.segments.compact import compact
    from raftlog.segments.writer import ExportWriter

    with ExportWriter(place, summary.cluster_id, summary.generation, signer=signer) as writer:
        compact(writer)
        add_buckets(writer)


def _telling(also: Published | None, place: Place, as_json: bool) -> Published:
    """Return a callback that calls ``also``, and prints a line for each publish of new records."""
    told = -1

    def published(manifest: Manifest) -> None:
        nonlocal told
        if also is not None:
            also(manifest)
        end = manifest.end_offset
        if end == told:
            # No new records: state hashes from the nodes, or merged files.
            return
        told = end
        if as_json:
            print_json_line(
                {"directory": str(place), "end_offset": end, "exported_at": manifest.exported_at}
            )
        else:
            print_line(f"{place}: published up to offset {end - 1}")

    return published


def _no_log_in(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} contains no log: brokers have none, and a controller has none before its"
        " first start. Give a controller's data directory, or export from the running cluster"
    )


def _warn(place: Place, summary: ExportSummary, late: str, left_out: int) -> None:
    """Print the limits of this export. ``left_out``: number of records not exported at the log
    end.
    """
    if late and summary.history_begin:
        print_error(f"{late}; so does this export")
    if left_out:
        print_error(
            f"omitted {counted(left_out, 'record')} at the log end: this log alone does not"
            " prove that they are committed (see --assume-committed)"
        )
    if summary.not_folded:
        print_error(
            f"WARNING: {place} gets no more checkpoints, because its log cannot be folded:"
            f" {summary.not_folded}"
        )


def _show_export(done: Exported) -> None:
    more = f", {counted(done.checkpoints, 'checkpoint')}" if done.checkpoints else ""
    print_line(
        f"{done.directory}: {counted(done.records, 'new record')} (offsets {done.first_offset} to"
        f" {done.end_offset - 1}){more}"
        if done.records
        else f"{done.directory}: no new records; the export ends before offset {done.end_offset}"
    )
    if done.verified:
        print_line("verified: every checksum, hash and offset")


@contextmanager
def _progress(source: LogSource) -> Iterator[Callable[[int, int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=source.high_watermark)
        yield lambda done, total: bar.update(task, completed=done, total=total)


READ_BYTES = 1 << 20
PublicKey = Annotated[
    Path | None,
    opt(
        "--public-key FILE",
        "Require the export to be signed with the matching private key (Ed25519, PEM).",
    ),
]


@dataclass
class Verified:
    """The result of a verification; offsets are inclusive."""

    passed: bool
    cluster_id: str
    generation: int
    first_offset: int
    last_offset: int
    files: int
    checkpoints: int
    batches: int
    records: int
    faults: Sequence[Fault]
    vouching: Vouching | None


@command()
def verify(
    context: typer.Context,
    target: Annotated[str, arg("EXPORT", "A directory or URI written by raftlog export.")],
    public_key: PublicKey = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[Verified]:
    """Check that an export is complete and matches the log.

    Checks every file and batch, compares both forms with each other, and compares the log hash with
    the log, the manifest, the queried nodes, and a signature. Reports the offsets that the nodes
    and the signature vouch for. Does not fold the log, so a checkpoint may hold a forged state:
    `raftlog replay verify --engine local` detects that. Exit code 3 if a check fails.

    \b
    Examples:
      raftlog verify exported
      raftlog verify exported --bootstrap-controller 127.0.0.1:9093
      raftlog verify s3://audit/cluster-1 --public-key auditor.pem
    """
    from raftlog.segments.errors import ExportGapError, ExportMismatchError

    named = context.get_parameter_source("bootstrap_controller")
    told = named is not None and named.name == "COMMANDLINE"
    try:
        return _verified(target, public_key, bootstrap_controller, timeout, must_ask=told)
    except (ExportGapError, ExportMismatchError) as error:
        raise FailedError(str(error), Exit.FOUND) from error


def _verified(
    target: str,
    public_key: Path | None,
    bootstrap_controller: str,
    timeout: float,
    *,
    must_ask: bool,
) -> Answer[Verified]:
    """Verify an export. ``must_ask``: the user named the nodes to query."""
    from raftlog.segments.files import open_place
    from raftlog.segments.manifest import read_signed
    from raftlog.segments.verify import checkpoint_faults, claim_faults, silent_columns

    place = open_place(target)
    manifest, message = read_signed(place)
    if must_ask and manifest.origin:
        raise FailedError(
            f"{place} was imported from {manifest.origin}: raftlog nodes cannot"
            " vouch for it (omit --bootstrap-controller)",
            Exit.FOUND,
        )
    signed_by, faults = _signature(manifest, message, public_key)
    found, more = _files(place, manifest)
    faults += more
    faults += checkpoint_faults(place, manifest, manifest.end_offset - 1)
    vouching = None
    if not more:
        faults += claim_faults(manifest, found)
        vouching = _vouching(place, manifest, signed_by, bootstrap_controller, timeout)
        vouching.warnings.extend(silent_columns(found))
        faults += vouching.faults
    verified = Verified(
        not faults,
        manifest.cluster_id,
        manifest.generation,
        manifest.history_begin,
        manifest.end_offset - 1,
        manifest.file_count,
        len(manifest.checkpoints),
        sum(one.batches for one in found),
        sum(one.records for one in found),
        sorted(faults),
        vouching,
    )
    errors = [typer.Exit(Exit.FOUND)] if faults else []
    return Answer(verified, lambda: _show_verified(verified), errors)


def _signature(
    manifest: Manifest, message: bytes, public_key: Path | None
) -> tuple[str, list[Fault]]:
    """Return the signing key, if a public key was given, and any faults of the signature."""
    from raftlog.segments.manifest import MANIFEST_NAME
    from raftlog.segments.range_checks import Fault
    from raftlog.segments.signing import load_public_key, why_not_signed

    if public_key is None:
        return "", []
    key = load_public_key(public_key)
    why = why_not_signed(message, manifest.signature, key)
    if not why:
        return key, []
    last = manifest.end_offset - 1
    return "", [Fault(manifest.history_begin, last, "SIGNATURE", MANIFEST_NAME, why)]


def _files(place: Place, manifest: Manifest) -> tuple[list[Checked], list[Fault]]:
    """Return the verified content of each range, and all faults."""
    from raftlog.segments.manifest import RAW
    from raftlog.segments.range_checks import check_range, epoch_faults

    raw = manifest.of_kind(RAW)
    found = [check_range(place, manifest, one) for one in raw]
    return found, epoch_faults(raw) + [fault for one in found for fault in one.faults]


def _vouching(
    place: Place, manifest: Manifest, signed_by: str, bootstrap_controller: str, timeout_s: float
) -> Vouching:
    from raftlog.segments.log_hashes import vouched
    from raftlog.segments.verify import claims_beyond_end, judge

    if not bootstrap_controller or manifest.origin:
        # raftlog nodes cannot vouch for another system's log.
        return judge(manifest, vouched(place, manifest), signed_by=signed_by)
    from raftlog.segments.errors import ExportMismatchError

    with closing(RunningLog(controllers(bootstrap_controller), timeout_s)) as log:
        if (log.cluster_id, log.generation) != (manifest.cluster_id, manifest.generation):
            raise ExportMismatchError(
                f"{place} belongs to cluster {manifest.cluster_id} generation "
                f"{manifest.generation}, but"
                f" the nodes that answer belong to cluster {log.cluster_id} generation"
                f" {log.generation}: they cannot vouch for it (omit --bootstrap-controller and"
                " RAFTLOG_BOOTSTRAP_CONTROLLER to query none)"
            )
        asked = log.reported_hashes()
        found = vouched(place, manifest, asked=asked)
        later = []
        if log.start_offset <= manifest.end_offset:
            later = claims_beyond_end(found.end, asked, lambda offset: log.read(offset, READ_BYTES))
        else:
            print_error(
                f"the nodes have deleted their log below offset {log.start_offset}, and this export"
                f" ends at {manifest.end_offset - 1}: only their snapshots can vouch for it"
            )
    return judge(manifest, found, later, asked=True, signed_by=signed_by)


def _show_verified(done: Verified) -> None:
    if done.vouching is not None:
        show_vouching(done.vouching)
    for fault in done.faults:
        print_line(f"{fault.check}: {fault.message}")
    if done.faults:
        print_line(f"Verification failed: {counted(len(done.faults), 'fault')}")
        return
    print_line(
        f"Verified: {counted(done.files, 'file')}, {counted(done.batches, 'batch', 'batches')},"
        f" {counted(done.records, 'record')}, offsets {done.first_offset} to {done.last_offset}"
    )


def show_vouching(vouching: Vouching) -> None:
    """Print which nodes recorded the hash for which offsets, and warn of offsets for which none
    did.
    """
    from raftlog.segments.verify import WITNESS_KINDS

    if vouching.log_hash:
        print_line(f"Log hash at offset {vouching.last_offset}: {vouching.log_hash}")
    if vouching.witnesses:
        rows = [
            (one.first_offset, one.last_offset, one.who, WITNESS_KINDS[one.how])
            for one in vouching.witnesses
        ]
        print_table(("FROM", "TO", "WHO", "HOW"), rows, right=("FROM", "TO"))
    for warning in vouching.warnings:
        print_error(f"WARNING: {warning}")
