"""Move a topic's partitions to other brokers, wait until the moves are done, and make those brokers
leaders.
"""

import sys
import time

import raftlog

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "", acks="visible") as client:
    brokers = [broker.id for broker in client.brokers.list() if not broker.fenced]
    client.topics.create("moving", partitions=2, replication_factor=1)
    for partition in client.topics.describe("moving").partitions:
        # To the broker after the present one.
        place = brokers.index(partition.replicas[0])
        client.partitions.reassign(
            "moving", {partition.index: [brokers[(place + 1) % len(brokers)]]}
        )
    while moves := client.partitions.reassignments("moving"):
        print(f"{len(moves)} moves in progress, waiting for brokers {moves[0].waiting_for}")
        time.sleep(0.1)
    client.partitions.elect_leaders("moving")
    for state in client.partitions.describe("moving"):
        print(f"moving-{state.index}: leader {state.leader}, in sync {state.in_sync}")
    client.topics.delete("moving")
