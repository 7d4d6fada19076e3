"""Write records with keys, and read them back in order from each partition."""

import sys

import raftlog

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    client.topics.create("greetings", partitions=2, acks="visible")
    for number in range(6):
        where = client.produce("greetings", f"hello {number}", key=f"key {number % 3}")
        print(f"partition {where.partition}, offset {where.offset}")
    with client.consume("greetings", offset="earliest", idle_timeout_s=1) as records:
        for record in records:
            print(record.partition, record.offset, record.key, record.value)
    client.topics.delete("greetings")
