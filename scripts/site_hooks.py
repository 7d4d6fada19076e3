"""The pages that the site shows in addition to ``docs/``: the reference, which is generated from
code, and files elsewhere in the repository that pages link to.

A page links to the repository's files as a forge expects (``../replay/streaming/watch.py``). These
hooks convert each such link to a link to a page of the site. A link to nothing stays unchanged, and
fails the strict build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from reference_pages.pages import pages
from reference_pages.tables import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
PAGES: Mapping[str, str] = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security_policy.md",
    "benchmarks/README.md": "benchmarks/running.md",
    "examples/README.md": "examples.md",
    "proto/raftlog/wire": "reference/README.md",
    **{
        f"proto/raftlog/wire/{name}/v1/{name}.proto": f"reference/{name}.md"
        for name in ("broker", "common", "controller", "data", "node", "quorum", "records")
    },
}
"""Path on the site of documents from outside ``docs/``, and of a contract's reference."""
_GENERATED = re.compile(r"<!-- generated: (.*) -->\n")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")


def on_files(files: Any, config: Any) -> Any:
    """Add the reference, and the pages from outside ``docs/``."""
    documents = [
        *PAGES,
        *(f"{DOCS}/{file.src_uri}" for file in files if file.src_uri.endswith(".md")),
    ]
    wanted = {path for document in documents for path in _linked(document)} | PAGES.keys()
    for path in sorted(wanted):
        if (ROOT / path).is_file() and not path.startswith(f"{DOCS}/"):
            text = (ROOT / path).read_text()
            content = text if path.endswith(".md") else _source(path, text)
            files.append(File.generated(config, _uri(path), content=content))
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in the generated sections, and turn links between the repository's files into links
    between pages of the site.
    """
    uri = page.file.src_uri
    path = next(
        (path for path in PAGES if PAGES[path] == uri and path.endswith(".md")), f"{DOCS}/{uri}"
    )

    def rewritten(link: re.Match[str]) -> str:
        target = _resolved(path, link[1])
        return (
            posixpath.relpath(_uri(target), posixpath.dirname(uri))
            if (ROOT / target).exists()
            else link[1]
        )

    if _is_source(uri):
        return markdown
    return _LINK.sub(rewritten, _GENERATED.sub(lambda found: SECTIONS[found[1]](), markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Remove roles from docstrings, which Markdown does not support: ``:class:`Client```."""
    return re.sub(r":[a-z]+:(?=<code>)", "", html).replace("::</p>", ":</p>")


def _linked(document: str) -> Iterator[str]:
    if document.endswith(".md"):
        for link in _LINK.findall((ROOT / document).read_text()):
            yield _resolved(document, link)


def _resolved(document: str, link: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), link))
    readme = f"{path}/README.md"
    return readme if path not in PAGES and (ROOT / readme).is_file() else path


def _uri(path: str) -> str:
    """Return the path on the site of a file in the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"source/{path}.md"


def _is_source(uri: str) -> bool:
    return uri.startswith("source/")


def _source(path: str, text: str) -> str:
    """Return a page that shows a file."""
    return f"# {path}\n\n````{Path(path).suffix.lstrip('.') or 'text'}\n{text}\n````\n"
