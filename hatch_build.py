"""What a build adds to the files of the project: the commit it is made from, and in a wheel the
contracts.
"""

from __future__ import annotations

import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CONTRACTS = "raftlog/proto"


class ProjectBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Found by hatchling under the name ``custom``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a build. An editable installation reads both from the checkout itself."""
        if version == "editable":
            return
        root = Path(self.root)
        if self.target_name == "wheel":
            build_data["force_include"][str(root / "proto")] = CONTRACTS
        # Loaded by its path: the package is not installed where it is built.
        spec = spec_from_file_location("raftlog_build", root / "raftlog" / "build.py")
        assert spec is not None
        assert spec.loader is not None
        build = module_from_spec(spec)
        spec.loader.exec_module(build)
        # What was built from a source distribution has it already.
        if commit := build.commit_of_checkout(root):
            self._directory = tempfile.TemporaryDirectory(prefix="raftlog-build-")
            file = Path(self._directory.name) / build.COMMIT_FILE
            file.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = f"raftlog/{build.COMMIT_FILE}"
