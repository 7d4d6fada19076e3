"""Create topics and set their configs as listed in a table; running it again changes nothing."""

import sys

import raftlog
from raftlog import errors

WANTED = {
    "ensured.orders": (3, {"retention.ms": "86400000"}),
    "ensured.audit": (1, {"retention.ms": "-1", "cleanup.policy": "compact"}),
}

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "", acks="visible") as client:
    for name, (partitions, configs) in WANTED.items():
        try:
            client.topics.create(name, partitions=partitions, configs=configs)
            print(f"{name}: created")
            continue
        except errors.TopicAlreadyExistsError:
            pass
        present = client.configs.describe("topic", name, keys=configs)
        changed = {key: value for key, value in configs.items() if present[key].value != value}
        if changed:
            client.configs.alter("topic", name, set=changed)
        count = len(client.topics.describe(name).partitions)
        if count < partitions:
            client.topics.create_partitions(name, partitions)
        print(f"{name}: {'as wanted' if not changed and count == partitions else 'altered'}")
