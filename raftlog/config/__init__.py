"""One file a node, environment and flags; every mistake listed at once."""

from raftlog.config.load import load_config
from raftlog.config.node import BrokerConfig, ControllerConfig, NodeConfig, TlsFiles
from raftlog.endpoint import Endpoint

__all__ = ["BrokerConfig", "ControllerConfig", "Endpoint", "NodeConfig", "TlsFiles", "load_config"]
