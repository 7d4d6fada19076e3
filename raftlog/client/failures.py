"""Why addresses could not be asked, in one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from raftlog.words import named


def with_reasons(failures: Mapping[str, str]) -> str:
    """``a:1 and b:1 (Connection refused), c:1``: of address -> why, each reason once [that of three
    controllers filled a screen, three times for each broker].
    """
    by: dict[str, list[str]] = defaultdict(list)
    for address, reason in failures.items():
        by[reason].append(address)
    return ", ".join(
        named(addresses) + (f" ({reason})" if reason else "") for reason, addresses in by.items()
    )
