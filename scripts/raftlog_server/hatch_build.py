"""The build hooks: one requires raftlog in the same version, one adds the packages, which lie at
the top of the checkout or, in a source distribution, beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGES = ("controller", "broker", "replay", "simulation", "pyspark_raftlog")


class ProjectMetadataHook(MetadataHookInterface):
    """Found by hatchling under the name ``custom``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """The version is known by now."""
        metadata["dependencies"] = [f"raftlog=={metadata['version']}"]


class ProjectBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Found by hatchling under the name ``custom``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a build."""
        if version == "editable":
            return
        here = Path(self.root)
        top = here if (here / PACKAGES[0]).is_dir() else here.parents[1]
        for package in PACKAGES:
            build_data["force_include"][str(top / package)] = package
