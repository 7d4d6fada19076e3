"""Logs, metrics, health."""

from raftlog.observability.http_server import HttpServer
from raftlog.observability.logs import setup_logging
from raftlog.observability.registry import Latency, MetricsRegistry

__all__ = ["HttpServer", "Latency", "MetricsRegistry", "setup_logging"]
