"""Print the lowest versions that pyproject.toml allows for the client library and the named extras,
as constraints for pip.

    python scripts/lowest_versions.py cli >lowest.txt
    pip install --constraint lowest.txt 'raftlog[cli]'
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>[\w.]+)(,<[\w.]+)?(?P<marker>;.*)?")


def lowest_versions(extras: Sequence[str]) -> list[str]:
    """Return ``name==version`` for each requirement. Raises ValueError for one without a lower
    bound.
    """
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    constraints = []
    for requirement in requirements:
        if requirement.startswith("raftlog"):
            continue
        found = REQUIREMENT.fullmatch(requirement.replace("; ", ";"))
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound")
        constraints.append(f"{found['name']}=={found['lowest']}{found['marker'] or ''}")
    return constraints


if __name__ == "__main__":
    print(*lowest_versions(sys.argv[1:]), sep="\n")
