"""Create a topic, and return when every broker shows it."""

import sys

import raftlog

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    written = client.topics.create("first", partitions=3, acks="visible")
    print(f"visible on every broker at offset {written.offset}")
    for partition in client.topics.describe("first").partitions:
        print(f"partition {partition.index}: leader {partition.leader}, {partition.replicas}")
    client.topics.delete("first")  # so that this can run again
