"""The metric families of a node of each role, as scripts/reference lists them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from reference_pages.metrics import of_a_broker, of_a_controller

__all__ = ["of_a_broker", "of_a_controller"]
