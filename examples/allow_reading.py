"""Let a principal read topics with a prefix, list its rights, and revoke them."""

import sys

import raftlog

ENTRY = raftlog.Acl(
    "User:alice",
    raftlog.AclOperation.READ,
    raftlog.AclResourceType.TOPIC,
    "alice.",
    raftlog.PatternType.PREFIXED,
)

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "", acks="acknowledged") as client:
    client.acls.create(ENTRY)
    for entry in client.acls.list(raftlog.AclFilter(principal="User:alice")):
        print(f"{entry.permission.name} {entry.operation.name} on {entry.resource_name}*")
    client.acls.delete(raftlog.AclFilter(principal="User:alice"))
    print("revoked: every unfenced broker now refuses")
