"""The build hooks: one requires raftlog in the same version, the other adds the packages, which are
at the top of the checkout or, in a source distribution, next to this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGES = ("controller", "broker", "replay", "simulation", "pyspark_raftlog")


class ProjectMetadataHook(MetadataHookInterface):
    """The metadata hook, which hatchling finds under the name ``custom``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the requirement, now that the version is known."""
        metadata["dependencies"] = [f"raftlog=={metadata['version']}"]


class ProjectBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook, which hatchling finds under the name ``custom``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the packages before a build."""
        if version == "editable":
            return
        here = Path(self.root)
        top = here if (here / PACKAGES[0]).is_dir() else here.parents[1]
        for package in PACKAGES:
            build_data["force_include"][str(top / package)] = package
