"""Configuration files of nodes, and their mistakes."""

from pathlib import Path

import pytest

from raftlog.errors import ConfigError
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig


class NodeFile:
    """A configuration file; flags and the environment are added to it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / "node.toml"

    def write(self, text: str) -> Path:
        self.path.write_text(text)
        return self.path

    def load(self, text: str, *flags: str, **environment: str) -> NodeConfig:
        return load_config(self.write(text), flags=flags, environment=environment)

    def mistakes(self, text: str, *flags: str, **environment: str) -> list[str]:
        """Return the mistakes listed, without bullets."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, *flags, **environment)
        return listed(caught.value)


def listed(error: ConfigError) -> list[str]:
    first, *rest = str(error).splitlines()
    assert f"{len(rest)} mistake" in first
    assert all(line.startswith("  - ") for line in rest)
    return [line[4:] for line in rest]


@pytest.fixture
def node(tmp_path: Path) -> NodeFile:
    return NodeFile(tmp_path)
