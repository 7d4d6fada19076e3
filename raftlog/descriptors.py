"""Descriptors of messages, as every protobuf runtime from 4.25 on has them."""

from __future__ import annotations

from typing import Any


def is_repeated(field: Any) -> bool:
    """Whether the field is a list. ``field``: a FieldDescriptor; its ``is_repeated`` is as young as
    protobuf 6.31, and its ``label`` was removed in 7.
    """
    try:
        return bool(field.is_repeated)
    except AttributeError:
        return bool(field.label == field.LABEL_REPEATED)
