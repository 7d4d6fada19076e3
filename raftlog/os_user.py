"""The user of the operating system, as the default principal of commands and clients."""

from __future__ import annotations

import getpass


def os_user() -> str:
    """Return the name of the user who runs this process; empty if the user has none.

    It proves nothing: a cluster that checks certificates or tokens puts their principal in its
    place.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
