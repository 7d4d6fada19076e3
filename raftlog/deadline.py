"""Deadlines are points in time of a monotonic clock, in seconds."""

from __future__ import annotations

import math
from typing import Final

NEVER: Final = math.inf
"""The deadline of what never becomes due: a timer that does not run."""
