"""``raftlog verify``: whether an export is the log, and who says so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    Json,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_json, print_line, print_table
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.segments.files import Place
    from raftlog.segments.manifest import Manifest
    from raftlog.segments.range_checks import Checked, Fault
    from raftlog.segments.verify import Vouching

READ_BYTES = 1 << 20
PublicKey = Annotated[
    Path | None,
    opt(
        "--public-key FILE",
        "The export must be signed with the key that belongs to this one (Ed25519, PEM).",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", epilog=EPILOG)(verify)


def verify(
    context: typer.Context,
    target: Annotated[str, arg("EXPORT", "A directory or URI written by raftlog export.")],
    public_key: PublicKey = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Check that an export is whole and is the log.

    Every file, every batch, both forms against each other, and the log hash: against what the log
    and the manifest say, the nodes that are asked, and a signature. It says for which offsets the
    nodes and the signature vouch. Nothing is folded, so a checkpoint may hold a state that was made
    up: `raftlog replay verify --engine local` finds that. Exit code 3: something is wrong.

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
        found = _verified(
            target, public_key, bootstrap_controller, timeout, as_json=as_json, must_ask=told
        )
    except (ExportGapError, ExportMismatchError) as error:
        raise FailedError(str(error), Exit.FOUND) from error
    if found:
        raise typer.Exit(Exit.FOUND)


def _verified(
    target: str,
    public_key: Path | None,
    bootstrap_controller: str,
    timeout: float,
    *,
    as_json: bool,
    must_ask: bool,
) -> bool:
    """Check, show, and return whether something is wrong. ``must_ask``: nodes were named."""
    from raftlog.segments.files import open_place
    from raftlog.segments.manifest import read_signed
    from raftlog.segments.verify import checkpoint_faults, claim_faults, silent_columns

    place = open_place(target)
    manifest, message = read_signed(place)
    if must_ask and manifest.origin:
        raise FailedError(
            f"{place} is of a log of {manifest.origin}, and the nodes of raftlog know nothing of"
            " it: they can't vouch for it (leave out --bootstrap-controller)",
            Exit.FOUND,
        )
    signed_by, faults = _signature(manifest, message, public_key)
    found, more = _files(place, manifest)
    checked = sum(one.batches for one in found), sum(one.records for one in found)
    faults += more
    faults += checkpoint_faults(place, manifest, manifest.end_offset - 1)
    vouching = None
    if not more:
        faults += claim_faults(manifest, found)
        vouching = _vouching(place, manifest, signed_by, bootstrap_controller, timeout)
        vouching.warnings.extend(silent_columns(found))
        faults += vouching.faults
    faults.sort()
    if as_json:
        print_json(_document(manifest, checked, faults, vouching))
    else:
        _show(manifest, checked, faults, vouching)
    return bool(faults)


def _signature(
    manifest: Manifest, message: bytes, public_key: Path | None
) -> tuple[str, list[Fault]]:
    """Return the key with which it is signed, if one was given; and the faults of the signature."""
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
    """Return the content of each range, and every fault."""
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
        # The nodes of raftlog know nothing of another system's log.
        return judge(manifest, vouched(place, manifest), signed_by=signed_by)
    from raftlog.ops.logs import RunningLog
    from raftlog.segments.errors import ExportMismatchError

    with closing(RunningLog(controllers(bootstrap_controller), timeout_s)) as log:
        if (log.cluster_id, log.generation) != (manifest.cluster_id, manifest.generation):
            raise ExportMismatchError(
                f"{place} is of cluster {manifest.cluster_id} generation {manifest.generation}, and"
                f" the nodes that answer are of cluster {log.cluster_id} generation"
                f" {log.generation}: they can't vouch for it (leave out --bootstrap-controller and"
                " RAFTLOG_BOOTSTRAP_CONTROLLER to ask none)"
            )
        asked = log.said()
        found = vouched(place, manifest, asked=asked)
        later = []
        if log.start_offset <= manifest.end_offset:
            later = claims_beyond_end(found.end, asked, lambda offset: log.read(offset, READ_BYTES))
        else:
            print_error(
                f"the nodes have dropped their log below offset {log.start_offset}, and this export"
                f" ends at {manifest.end_offset - 1}: only their snapshots can vouch for it"
            )
    return judge(manifest, found, later, asked=True, signed_by=signed_by)


def _document(
    manifest: Manifest, checked: tuple[int, int], faults: list[Fault], vouching: Vouching | None
) -> dict[str, Any]:
    """Return the JSON document."""
    import msgspec

    said = None if vouching is None else msgspec.to_builtins(vouching)
    if said is not None:
        del said["faults"]
    return {
        "passed": not faults,
        "cluster_id": manifest.cluster_id,
        "generation": manifest.generation,
        "first_offset": manifest.history_begin,
        "last_offset": manifest.end_offset - 1,
        "files": manifest.file_count,
        "checkpoints": len(manifest.checkpoints),
        "batches": checked[0],
        "records": checked[1],
        "faults": msgspec.to_builtins(faults),
        "vouching": said,
    }


def _show(
    manifest: Manifest, checked: tuple[int, int], faults: list[Fault], vouching: Vouching | None
) -> None:
    """Print the result."""
    if vouching is not None:
        show_vouching(vouching)
    for fault in faults:
        print_line(f"{fault.check}: {fault.message}")
    if faults:
        print_line(f"Verification failed: {counted(len(faults), 'fault')}")
        return
    batches, records = checked
    print_line(
        f"Verified: {counted(manifest.file_count, 'file')},"
        f" {counted(batches, 'batch', 'batches')}, {counted(records, 'record')}, offsets"
        f" {manifest.history_begin} to {manifest.end_offset - 1}"
    )


def show_vouching(vouching: Vouching) -> None:
    """Print which nodes vouch for which offsets, and warn of offsets for which none does."""
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
