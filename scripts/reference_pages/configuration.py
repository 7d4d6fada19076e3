"""The configuration keys, as ``raftlog config keys`` lists them."""

from __future__ import annotations

from raftlog.config.reference import KeyReference, reference
from reference_pages.markdown import paragraph


def keys() -> str:
    """A list with one item a key."""
    return "".join(_item(key) for key in reference())


def _item(key: KeyReference) -> str:
    default = f"default `{key.default}`" if key.default else "no default"
    unit = f" {key.unit}" if key.default and key.unit else ""
    text = f"* **`{key.key}`** ({' and '.join(key.roles)}; {default}{unit}). {key.doc}"
    return paragraph(text, indent="  ") + "\n"
