"""Access control entries in the image."""

from __future__ import annotations

from raftlog.metadata.acls import AccessControlEntry, Binding
from raftlog.metadata.image import FoldError, ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb


def add_entry(
    image: ImageDraft, message: pb.AccessControlEntryRecord, offset: int, epoch: int
) -> None:
    """Fold an AccessControlEntryRecord. Raises FoldError if the id exists."""
    if message.id in image.acls:
        raise FoldError(f"the entry {message.id.hex()} at offset {offset} is there already")
    put(
        image,
        AccessControlEntry(message.id, *Binding.of(message)),
    )
    image.replace("acl", (), None, image.acls[message.id])


def put(image: ImageDraft, entry: AccessControlEntry) -> None:
    """Put an entry into the image and its index."""
    image.acls[entry.id] = entry
    image.acl_index = image.acl_index.with_entry(entry)


def remove_entry(
    image: ImageDraft, message: pb.RemoveAccessControlEntryRecord, offset: int, epoch: int
) -> None:
    """Fold a RemoveAccessControlEntryRecord. Raises KeyError if the id does not exist."""
    old = image.acls[message.id]
    del image.acls[message.id]
    image.acl_index = image.acl_index.without(old)
    image.replace("acl", (), old, None)
