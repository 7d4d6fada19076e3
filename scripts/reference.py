"""The generated reference: ``scripts/reference`` writes it anew, ``scripts/reference --check`` says
what is not current.

Whole pages lie in ``docs/reference``. Sections of pages that people write stand between two
comments there. Each comes from the code that it describes: contracts, metrics, error codes,
configuration keys, the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from reference_pages import (
    cli,
    configuration,
    contracts,
    errors,
    events,
    json_documents,
    metrics,
    overview,
    permissions,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = DOCS / "reference"

SECTIONS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "error codes": ("protocol.md", errors.table),
    "permissions": ("security.md", permissions.table),
    "node events": ("incidents.md", events.table),
    "configuration keys": ("configuration.md", configuration.keys),
}
"""By the name in their comments: the document, and what stands there."""


def pages() -> dict[str, str]:
    """All pages of the reference by their names."""
    return {
        "README.md": overview.page(),
        "cli.md": cli.page(),
        "json.md": json_documents.page(),
        "json_schema.json": json_documents.schema(),
        "metrics.md": metrics.page(),
        **contracts.pages(),
    }


def renewed(document: str, name: str, section: str) -> str:
    """A document with its section as it is now."""
    begin, end = f"<!-- {name}: scripts/reference -->\n", f"<!-- end of {name} -->\n"
    head, rest = document.split(begin)
    return head + begin + section + end + rest.split(end)[1]


def documents() -> dict[Path, str]:
    """Every file that this script writes, as it should be."""
    found = {PAGES / name: text for name, text in pages().items()}
    for name, (document, section) in SECTIONS.items():
        path = DOCS / document
        found[path] = renewed(found.get(path) or path.read_text(), name, section())
    return found


def main() -> str | None:
    """Write or check; why the check fails."""
    wanted = documents()
    left_over = [path for path in PAGES.rglob("*.*") if path not in wanted]
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        names = ", ".join(path.relative_to(DOCS.parent).as_posix() for path in [*stale, *left_over])
        return f"not current: {names}; write it anew with: scripts/reference" if names else None
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    for path in left_over:
        path.unlink()
    return None


if __name__ == "__main__":
    sys.exit(main())
