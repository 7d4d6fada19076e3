"""What the kubelet would make of our manifests: each pod's processes, with their environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "docs" / "deploy" / "kubernetes"
NAMESPACE = "data"
ROLES = ("controller", "broker")
CONFIG = {"cluster.id": "xtzWWN4bTjitpL3kfd9s5g"}
"""The ConfigMap."""


def manifests(name: str) -> list[dict[str, Any]]:
    """The documents of one file."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def stateful_set(role: str) -> dict[str, Any]:
    """That of the controllers or of the brokers."""
    return of_kind(manifests(f"{role}s.yaml"), "StatefulSet")


@dataclass(frozen=True)
class Pod:
    """One pod. The commands are arguments of raftlog, the image's entry point."""

    name: str
    index: int
    spec: dict[str, Any]

    @property
    def formats(self) -> dict[str, Any]:
        """The container that formats the directory."""
        (found,) = self.spec["initContainers"]
        return found

    @property
    def runs(self) -> dict[str, Any]:
        """The node's container."""
        (found,) = self.spec["containers"]
        return found

    def environment(self, container: dict[str, Any], config: Mapping[str, str]) -> dict[str, str]:
        """With fields, the ConfigMap and $(NAME) put in, in order, as the kubelet does."""
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "metadata.labels['apps.kubernetes.io/pod-index']": str(self.index),
        }
        made: dict[str, str] = {}
        for item in container["env"]:
            match item:
                case {"value": str(value)}:
                    made[item["name"]] = re.sub(
                        r"\$\((\w+)\)", lambda found: made[found.group(1)], value
                    )
                case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                    made[item["name"]] = fields[path]
                case {"valueFrom": {"configMapKeyRef": {"name": "raftlog-cluster", "key": key}}}:
                    made[item["name"]] = config[key]
                case _:
                    raise AssertionError(f"what is {item}?")
        return made


def pods(stateful_set: dict[str, Any]) -> Iterator[Pod]:
    """Those of a StatefulSet."""
    spec = stateful_set["spec"]
    first = spec["ordinals"]["start"]
    for index in range(first, first + spec["replicas"]):
        name = f"{stateful_set['metadata']['name']}-{index}"
        yield Pod(name, index, spec["template"]["spec"])
