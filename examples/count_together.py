"""Count in one key from several threads, each step conditional on no other thread having been
faster.
"""

import sys
import threading

import raftlog


def count(client: raftlog.Client) -> None:
    """Add ten."""
    for _ in range(10):
        while True:
            found = client.kv.get("visits")
            value = 0 if found is None else int(found.text)
            expected = raftlog.ABSENT if found is None else found.offset
            try:
                client.kv.put("visits", str(value + 1), expected=expected)
                break
            except raftlog.errors.InvalidUpdateVersionError:
                pass  # another thread was faster: read again


with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    client.kv.delete("visits")
    threads = [threading.Thread(target=count, args=(client,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = client.kv.get("visits", read="strict")
    print(f"counted {found.text if found else 0}")
