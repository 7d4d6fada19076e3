"""Show changes to configs as they happen: who made them, when, and the values before and after."""

import sys

import raftlog

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "", principal="User:me") as client:
    client.topics.create("watched")
    with client.watch("configs/topic/watched", idle_timeout_s=1) as changes:
        for value in ("1000", "2000"):
            client.configs.alter("topic", "watched", set={"retention.ms": value})
        client.configs.alter("topic", "watched", delete=["retention.ms"])
        for change in changes:
            print(change.offset, change.principal, change.path, change.before, "->", change.after)
        print(f"continue later with since={changes.token}")
    client.topics.delete("watched")
