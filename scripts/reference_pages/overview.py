"""The first page of the reference."""

from __future__ import annotations

from reference_pages.markdown import GENERATED


def page() -> str:
    """The whole page."""
    return f"""{GENERATED}# Reference

`scripts/reference` writes these pages from the code. A test fails when they differ from it.

| Page | Made from |
|---|---|
| [Command line](cli.md) | the help of every command |
| [JSON of the commands](json.md), [its schema](json_schema.json) | `raftlog/cli/documents.py`, `replay/documents.py` |
| [Configuration keys](../configuration.md#all-keys) | `raftlog/config/settings.py` |
| [Metrics](metrics.md) | what a controller and a broker register for `/metrics` |
| [Error codes](../protocol.md#error-codes) | `raftlog/errors.py` |
| [Controller](controller.md), [broker](broker.md), [data](data.md), [quorum](quorum.md) and [node](node.md) RPCs | the contracts in `proto/` |
| [Common messages](common.md), [records of the log](records.md) | the contracts in `proto/` |

[Protocol](../protocol.md) says what the contracts cannot say. [SQL](../replay_sql.md) lists the
columns of an export.
"""  # noqa: E501
