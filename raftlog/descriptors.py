"""Message descriptors, in the form that every protobuf runtime since 4.25 supports."""

from __future__ import annotations

from typing import Any


def is_repeated(field: Any) -> bool:
    """Return whether the field is repeated.

    ``field``: a FieldDescriptor; its ``is_repeated`` exists since protobuf 6.31, and its ``label``
    was removed in 7.
    """
    try:
        return bool(field.is_repeated)
    except AttributeError:
        return bool(field.label == field.LABEL_REPEATED)
