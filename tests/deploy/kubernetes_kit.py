"""The Kubernetes manifests: pods as the kubelet would start them, and API schemas without
descriptions.
"""

import copy
import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema
import yaml

MANIFESTS = Path(__file__).parents[2] / "docs" / "deploy" / "kubernetes"
OVERLAY = MANIFESTS.with_name("kubernetes-tls")
NAMESPACE = "data"
ROLES = ("controller", "broker")
CONFIG = {"cluster.id": "xtzWWN4bTjitpL3kfd9s5g"}
"""The ConfigMap."""


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the documents of one file."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def overlay() -> list[dict[str, Any]]:
    """Return the manifests with TLS as kustomize builds them from docs/deploy/kubernetes-tls, for
    the features that its patches use. A test compares it with kubectl where installed.
    """
    made = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text())
    (base,) = made["resources"]
    of_base = yaml.safe_load((OVERLAY / base / "kustomization.yaml").read_text())
    assert (OVERLAY / base).resolve() == MANIFESTS
    found = [one for name in of_base["resources"] for one in manifests(name)]
    for patch in made["patches"]:
        target, content = patch["target"], yaml.safe_load((OVERLAY / patch["path"]).read_text())
        for index, one in enumerate(found):
            if one["kind"] == target["kind"] and (
                one["metadata"]["name"] == target.get("name", one["metadata"]["name"])
            ):
                found[index] = _patched(one, content)
    return found


def _patched(one: dict[str, Any], patch: Any) -> dict[str, Any]:
    if isinstance(patch, dict):
        merged: dict[str, Any] = _merged(one, patch)
        return merged
    changed: dict[str, Any] = copy.deepcopy(one)
    for step in patch:
        assert step["op"] == "add"
        *path, last = step["path"].strip("/").split("/")
        assert last == "-"
        place: Any = changed
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place.append(step["value"])
    return changed


def _merged(old: Any, new: Any) -> Any:
    """Merge strategically: objects by key, lists of objects by their identifying field."""
    if isinstance(old, dict) and isinstance(new, dict):
        both = {key: _merged(old[key], new[key]) for key in old.keys() & new.keys()}
        return {**old, **new, **both}
    if not (isinstance(old, list) and isinstance(new, list)):
        return copy.deepcopy(new)
    key = "mountPath" if "mountPath" in new[0] else "name"
    by_key = {one[key]: one for one in new}
    kept = [_merged(one, by_key.pop(one[key])) if one[key] in by_key else one for one in old]
    return copy.deepcopy([*by_key.values(), *kept])


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def stateful_set(role: str, *, tls: bool = False) -> dict[str, Any]:
    """Return the StatefulSet of the controllers or of the brokers."""
    if not tls:
        return of_kind(manifests(f"{role}s.yaml"), "StatefulSet")
    sets = [one for one in overlay() if one["kind"] == "StatefulSet"]
    (found,) = (one for one in sets if one["metadata"]["name"] == f"raftlog-{role}")
    return found


@dataclass(frozen=True)
class Pod:
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
        """Return the environment with fields, the ConfigMap and $(NAME) substituted in order, as
        the kubelet does.
        """
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
    spec = stateful_set["spec"]
    first = spec["ordinals"]["start"]
    for index in range(first, first + spec["replicas"]):
        yield Pod(f"{stateful_set['metadata']['name']}-{index}", index, spec["template"]["spec"])


KINDS = {
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaim-v1",
    ("v1", "Service"): "service-v1",
    ("apps/v1", "StatefulSet"): "statefulset-apps-v1",
    ("batch/v1", "Job"): "job-batch-v1",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicy-networking-v1",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudget-policy-v1",
}
FILE = Path(__file__).with_name("kubernetes_schemas.json.gz")
_SHORT = "#/definitions/"


def _without_words(node: Any, *, names: bool = False) -> Any:
    """Return a schema without its descriptions; ``names``: the keys are names of fields."""
    if isinstance(node, list):
        return [_without_words(item) for item in node]
    if isinstance(node, dict):
        return {
            key: _without_words(value, names=key in ("properties", "$defs") and not names)
            for key, value in node.items()
            if names or key != "description"
        }
    if isinstance(node, str):
        return re.sub(r"^(/api/_definitions\.json)?#/\$defs/", _SHORT, node)
    return node


def _used(node: Any) -> set[str]:
    if isinstance(node, list):
        return {name for item in node for name in _used(item)}
    if isinstance(node, dict):
        own = node.get("$ref")
        found = {own.removeprefix(_SHORT)} if isinstance(own, str) else set()
        return found | {name for value in node.values() for name in _used(value)}
    return set()


def make(directory: Path) -> dict[str, Any]:
    """Return the schemas of ``KINDS`` and those that they refer to."""
    known = _without_words(json.loads((directory / "_definitions.json").read_text()))["$defs"]
    kinds = {
        name: _without_words(json.loads((directory / f"{name}.json").read_text()))
        for name in KINDS.values()
    }
    definitions: dict[str, Any] = {}
    wanted = _used(kinds)
    while wanted:
        name = wanted.pop()
        definitions[name] = known[name]
        wanted |= _used(known[name]) - definitions.keys()
    return {"version": directory.name, "kinds": kinds, "definitions": definitions}


@cache
def _validator(name: str) -> Any:
    """Return a compiled validator; compiling takes most of a second."""
    schemas = json.loads(gzip.decompress(FILE.read_bytes()))
    schema = {**schemas["kinds"][name], "definitions": schemas["definitions"]}
    schema.pop("$schema", None)
    return fastjsonschema.compile(
        {"$schema": "http://json-schema.org/draft-07/schema#", **schema}, use_formats=False
    )


def check(manifest: dict[str, Any]) -> None:
    """Raise JsonSchemaValueException, which names the field, if Kubernetes would refuse it."""
    _validator(KINDS[manifest["apiVersion"], manifest["kind"]])(manifest)


if __name__ == "__main__":
    text = json.dumps(make(Path(sys.argv[1])), separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
