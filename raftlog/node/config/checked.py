"""Settings from values of any form, converted and checked by pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from raftlog.node.config.settings import Settings, key_of


class InvalidError(Exception):
    """Invalid values: (key, fault), in the order in which they were detected."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(str(found))
        self.found = found


def _model() -> type[BaseModel]:
    """Return the pydantic model of :class:`Settings`, with keys as names."""
    types = get_type_hints(Settings, include_extras=True)
    declared: dict[str, Any] = {
        one.name: (types[one.name], one.default) for one in fields(Settings)
    }
    return create_model(
        "Settings", __config__=ConfigDict(alias_generator=key_of, extra="forbid"), **declared
    )


_Model = _model()


def checked_settings(values: Mapping[str, object]) -> Settings:
    """Return the settings for a mapping of keys to values. Raises InvalidError."""
    try:
        return Settings(**dict(_Model.model_validate(values)))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidError([(str(one["loc"][0]), one["msg"]) for one in details]) from error
