"""Let one program at a time do a job, and make its changes conditional on the lock."""

import sys

import raftlog
from raftlog.recipes import Lock

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    with Lock(client, "nightly-job", ttl_s=10, value="worker 1") as lock:
        print(f"I have the lock, with token {lock.token}")
        # Conditional on the lock, in one request: a late write changes nothing.
        client.kv.alter(lock.guard(), raftlog.Put("nightly-job/state", "running"))
        if lock.is_held:
            client.kv.alter(lock.guard(), raftlog.Put("nightly-job/state", "done"))
    try:
        client.kv.alter(lock.guard(), raftlog.Put("nightly-job/state", "too late"))
    except raftlog.errors.InvalidUpdateVersionError:
        print("without the lock, nothing was changed")
