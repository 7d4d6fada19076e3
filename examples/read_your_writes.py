"""Pass a position in the log from a writer to a reader that uses another broker."""

import sys

import raftlog

brokers = (sys.argv[1] if len(sys.argv) > 1 else "").split(",")

with raftlog.connect(brokers[0]) as writer, raftlog.connect(brokers[-1]) as reader:
    written = writer.topics.create("handed-over")
    header = str(written.token)  # into a header, a queue, a database
    print(f"written at {header}")
    reader.see(raftlog.Token.parse(header))
    print(f"read: {reader.topics.describe('handed-over').name}")
    writer.topics.delete("handed-over")
