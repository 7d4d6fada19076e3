"""``raftlog import kafka``: convert a Kafka cluster's metadata log into an export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit
from raftlog.cli.options import Checkpoints, Json, Sign
from raftlog.cli.output import print_error, print_json, print_json_line, print_line
from raftlog.cli.process import StopOnSignal
from raftlog.cli.streams import INTERRUPTED
from raftlog.text import counted

if TYPE_CHECKING:
    from replay.kafka.importing import Imported, Importer

LOOK_AGAIN_S = 1.0
_PAUSE_S = 0.1


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(
        help="Convert logs of other systems into exports.", no_args_is_help=True, epilog=EPILOG
    )
    group.command("kafka", epilog=EPILOG)(kafka)
    group.callback()(_keeps_kafka_a_command)
    app.add_typer(group, name="import")


def _keeps_kafka_a_command() -> None:
    """Keep the group, as typer would turn a group with a single command into that command."""


def kafka(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            exists=True,
            help=(
                "__cluster_metadata-0, a directory above it, or its .log and .checkpoint files;"
                " from one or more nodes."
            ),
        ),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="DIR|URI", help="The export to create or continue."),
    ],
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep importing new records, until Ctrl-C or SIGTERM."),
    ] = False,
    cluster_id: Annotated[
        str,
        typer.Option(metavar="ID", help="The cluster's id, if there is no meta.properties."),
    ] = "",
    checkpoints: Checkpoints = None,
    sign: Sign = None,
    as_json: Json = False,
) -> None:
    """Convert a Kafka cluster's metadata log into an export.

    Supports KRaft logs of Kafka 3.3 to 4.x; `raftlog replay` and `raftlog log dump` read the
    export. Kafka's files are not changed. Copies from several nodes are compared with each other,
    and the state is compared with Kafka's own snapshots. Exit code 3: something differs, is damaged
    or is missing; everything readable was imported.

    \b
    Examples:
      raftlog import kafka /var/lib/kafka/__cluster_metadata-0 -o exported
      raftlog import kafka node1 node2 node3 -o exported
      raftlog import kafka /var/lib/kafka -o exported --follow
    """
    from raftlog.segments.checkpoints import CHECKPOINT_RECORDS
    from replay.kafka.copies import find_copies
    from replay.kafka.importing import Importer

    every = CHECKPOINT_RECORDS if checkpoints is None else checkpoints
    signer = None
    if sign is not None:
        from raftlog.segments.signing import load_signer

        signer = load_signer(sign)
    stop = StopOnSignal()
    with Importer(
        find_copies(paths),
        output,
        cluster_id=cluster_id,
        checkpoint_records=every,
        signer=signer,
    ) as importer:
        imported = importer.run()
        if follow:
            imported = _follow(importer, imported, stop, as_json)
    if as_json:
        (print_json_line if follow else print_json)(_document(imported))
    else:
        _show(imported, output)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not imported.sound:
        raise typer.Exit(Exit.FOUND)


def _follow(importer: Importer, imported: Imported, stop: StopOnSignal, as_json: bool) -> Imported:
    with stop:
        while True:
            if as_json:
                print_json_line({"end_offset": imported.end_offset})
            else:
                print_line(f"imported up to offset {imported.end_offset - 1}")
            end = imported.end_offset
            while imported.end_offset == end:
                again = time.monotonic() + LOOK_AGAIN_S
                while time.monotonic() < again:
                    if stop.asked:
                        return imported
                    time.sleep(_PAUSE_S)
                imported = importer.run()
                if importer.broken:
                    return imported


def _document(imported: Imported) -> Any:
    import msgspec

    return {**msgspec.to_builtins(imported), "sound": imported.sound}


def _show(imported: Imported, output: str) -> None:
    for line in lines(imported):
        print_line(line)
    for line in findings(imported):
        print_error(line)
    if imported.end_offset > imported.first_offset:
        print_line(f"next: raftlog replay summary {output}")


def lines(imported: Imported) -> list[str]:
    """Return the description of an import, line by line."""
    from replay.kafka.importing import UNKNOWN

    unknown = imported.cluster_id == UNKNOWN
    remedy = " (copy meta.properties, too, or give --cluster-id)"
    found = [
        f"cluster {imported.cluster_id}{remedy if unknown else ''}, from"
        f" {', '.join(imported.nodes)}",
        f"imported: {counted(imported.new_records, 'new record')}; the export has offsets"
        f" {imported.first_offset} to {imported.end_offset - 1}"
        if imported.end_offset > imported.first_offset
        else "imported: nothing. Is this a metadata log? Only __cluster_metadata-0 is one",
    ]
    if imported.end_offset == imported.first_offset:
        return found
    if imported.copies_end < imported.end_offset and not imported.stopped:
        found.append(
            f"these copies end at offset {imported.copies_end - 1}: later records were imported"
            " before, and are not compared with the copies"
        )
    if imported.no_log:
        found.append(
            f"the copies contain no log (….log): the export has only the state at offset"
            f" {imported.end_offset - 1}, without history"
        )
    elif imported.state_from is not None:
        found.append(
            f"history begins at offset {imported.state_from}, after the state from a snapshot"
        )
    equal = [one for one in imported.snapshots if not one.differences]
    if equal:
        found.append(
            f"the state equals {counted(len(equal), 'snapshot')} from Kafka, at offsets"
            f" {', '.join(str(offset) for offset in sorted({one.end_offset - 1 for one in equal}))}"
        )
    found += [_agreed(imported), *imported.cut_off]
    if imported.aborted:
        found.append(f"{counted(imported.aborted, 'record')} of aborted transactions: no effect")
    if imported.open_transaction is not None:
        found.append(
            f"the transaction that begins at offset {imported.open_transaction} has not ended: it"
            " is left out"
        )
    if imported.later_ms:
        found.append(
            f"a leader's clock was {imported.later_ms} ms behind its predecessor's: its batches get"
            " the time of the previous batch"
        )
    for what, times in imported.unknown.items():
        found.append(
            f"{what} is from a newer Kafka ({times} times): it was kept, but has no effect"
        )
    return found


def _agreed(imported: Imported) -> str:
    """Return a sentence on how far the copies agree, which shows what was committed."""
    voters, nodes = len(imported.voters), len(imported.nodes)
    if nodes == 1 and voters != 1:
        return "a single copy does not show whether its last records were committed"
    if imported.agreed_offset < imported.end_offset:
        return f"a majority of the copies agrees up to offset {imported.agreed_offset - 1}"
    if nodes * 2 <= voters:
        return (
            f"copies from {nodes} of {voters} voters do not show whether the last records were"
            " committed"
        )
    return "a majority of the copies agrees on all of it"


def findings(imported: Imported) -> list[str]:
    """Return texts about everything that was found wrong."""
    found = [f"damaged: {one}" for one in imported.damages]
    found += [f"the copies differ: {one}" for one in imported.differences]
    unlike = [one for one in imported.snapshots if one.differences]
    for one in unlike[:1]:
        found.append(
            f"the state at offset {one.end_offset - 1} differs from {one.file} of {one.node}:"
            f" {one.summary}"
        )
        found += [f"  {difference}" for difference in one.differences]
    if unlike[1:]:
        found.append(
            f"it also differs from {counted(len(unlike) - 1, 'later snapshot')}, up to offset"
            f" {unlike[-1].end_offset - 1}"
        )
    found += [
        f"{one}: the rest of the log is missing, or was written during the copying"
        for one in imported.missing
    ]
    if imported.stopped:
        found.append(f"{imported.stopped}: nothing after that was imported")
    return found
