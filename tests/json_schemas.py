"""Validation of the documents that commands print with --json."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import fastjsonschema
from reference_pages import json_documents


@cache
def validator(command: str) -> Callable[[Any], Any]:
    """Return a validator of a command's documents, which raises JsonSchemaException also for an
    unknown key.
    """
    schema = json.loads(json_documents.schema())
    check: Callable[[Any], Any] = fastjsonschema.compile(
        {**schema["properties"][command], "$defs": _closed(schema["$defs"])}
    )
    return check


def _closed(schema: Any) -> Any:
    """Return the schema without additional keys."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {key: _closed(one) for key, one in schema.items()}
