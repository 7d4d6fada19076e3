"""Distinguish a refusal from an unknown outcome, and see each error of a write with several
items.
"""

import sys

import raftlog
from raftlog import errors

with raftlog.connect(sys.argv[1] if len(sys.argv) > 1 else "") as client:
    client.topics.create("taken")
    try:
        client.topics.create("taken")
    except errors.TopicAlreadyExistsError as error:
        print(f"refused: {error}")
    try:
        client.topics.create_all(
            [raftlog.NewTopic("taken"), raftlog.NewTopic("free"), raftlog.NewTopic("no/name")]
        )
    except errors.ItemsRefusedError as error:
        for one in error.errors:
            print(f"refused: {one.field}: {type(one).__name__}")
        if error.write is not None and error.write.token is not None:
            print(f"the others were written at offset {error.write.offset}")
    try:
        client.configs.alter("topic", "taken", set={"retention.ms": "soon"})
    except errors.UnknownOutcomeError as error:
        print(f"read before writing again: {error}")
    except errors.ApiError as error:
        print(f"refused{', retry later' if error.retriable else ''}: {error.message}")
    client.topics.delete("taken", "free")
