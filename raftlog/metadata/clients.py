"""Exactly-once clients in the image: the open ones, and the results of writes that they may retry.

A client numbers its writes. The header of the batch that a numbered write became names the client
and the number, and folding it keeps the result: a retry finds it, in this controller's pending
image or in the next one's, and is not executed again. Results of numbers that the client declares
finished are dropped, so that a client never has more than ``WINDOW`` results.

Why: docs/decisions/017-exactly-once-writes.md
"""

from __future__ import annotations

from msgspec.structs import replace

from raftlog.metadata.entities import Client, ClientResult
from raftlog.metadata.image import FoldError, ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb

WINDOW = 256
"""Number of valid sequence numbers from ``all_below_done`` on: the most writes that one client may
have in flight.
"""
FIRST_SEQUENCE = 1


def open_client(image: ImageDraft, message: pb.OpenClientRecord, offset: int, epoch: int) -> None:
    """Fold an OpenClientRecord."""
    new = Client(offset, message.name, image.timestamp_ms, FIRST_SEQUENCE, message.principal)
    image.clients[offset] = new
    image.replace("client", (), None, new)


def close_client(image: ImageDraft, message: pb.CloseClientRecord, offset: int, epoch: int) -> None:
    """Fold a CloseClientRecord: the client and its results are removed.

    Raises KeyError if it is not open.
    """
    old = image.clients[message.client_id]
    _forget(image, old, old.all_below_done + WINDOW)
    del image.clients[old.id]
    image.replace("client", (), old, None)


def fold_identity(
    image: ImageDraft,
    client_id: int,
    sequence: int,
    all_below_done: int,
    last_offset: int,
    epoch: int,
) -> None:
    """Fold the identity in a batch's header, after the batch's records.

    Raises FoldError for a number out of the window.

    An id that is not open changes nothing: headers of metadata.version 1 hold any number that was
    sent, and a client may close itself.
    """
    old = image.clients.get(client_id)
    if old is None or not sequence:
        return
    done = max(old.all_below_done, all_below_done)
    key = (client_id, sequence)
    if not done <= sequence < done + WINDOW or key in image.client_results:
        raise FoldError(
            f"batch up to offset {last_offset} is write {sequence} of client {client_id}, whose"
            f" window begins at {done}"
        )
    _forget(image, old, done)
    result = ClientResult(client_id, sequence, last_offset, epoch)
    image.client_results[key] = result
    image.replace("client_result", (), None, result)
    new = replace(old, last_write_ms=image.timestamp_ms, all_below_done=done)
    image.clients[client_id] = new
    image.replace("client", (), old, new)


def _forget(image: ImageDraft, client: Client, below: int) -> None:
    """Drop the results of a client's numbers below ``below``."""
    for sequence in range(client.all_below_done, min(below, client.all_below_done + WINDOW)):
        key = (client.id, sequence)
        result = image.client_results.get(key)
        if result is not None:
            del image.client_results[key]
            image.replace("client_result", (), result, None)
