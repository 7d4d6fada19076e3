"""Show how far each broker has applied the log, and which one holds LAO back."""

import sys

import raftlog

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    seen = client.brokers.visibility()
    for broker in seen.brokers:
        print(f"broker {broker.id}: {broker.state.name.lower()}, applied {broker.applied_offset}")
    print(f"visible everywhere up to offset {seen.lowest_acknowledged_offset}")
    if seen.held_back_by:
        print(f"held back for {seen.held_back_ms} ms by brokers {seen.held_back_by}")
