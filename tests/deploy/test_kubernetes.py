"""The Kubernetes manifests. ``tests/cluster/test_kubernetes_processes.py`` starts their processes."""

import copy
import json
import os
import shutil
from typing import Any

import fastjsonschema
import pytest
import yaml
from command_runs import run_text
from kubernetes_kit import (
    CONFIG,
    MANIFESTS,
    OVERLAY,
    ROLES,
    Pod,
    check,
    manifests,
    of_kind,
    overlay,
    pods,
    stateful_set,
)

from raftlog.node.config.settings import Settings

DEPLOYMENT = MANIFESTS.parents[1] / "deployment.md"
PATH = os.environ["PATH"]
FILES = sorted(path.name for path in MANIFESTS.glob("*.yaml") if path.name != "kustomization.yaml")


def all_pod_specs() -> list[dict[str, Any]]:
    job = of_kind(manifests("bootstrap.yaml"), "Job")
    return [
        job["spec"]["template"]["spec"],
        *(
            stateful_set(role, tls=tls)["spec"]["template"]["spec"]
            for role in ROLES
            for tls in (False, True)
        ),
    ]


def test_kubernetes_accepts_each_manifest() -> None:
    assert FILES == ["bootstrap.yaml", "brokers.yaml", "controllers.yaml"]
    for name in FILES:
        for manifest in manifests(name):
            check(manifest)
    for manifest in overlay():
        check(manifest)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_overlay_equals_the_output_of_kustomize() -> None:
    ran = run_text(["kubectl", "kustomize", str(OVERLAY)], check=True)
    theirs = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(ran.stdout)}
    ours = {(one["kind"], one["metadata"]["name"]): one for one in overlay()}
    assert theirs.keys() == ours.keys()
    for key, one in ours.items():
        if key[0] == "StatefulSet":
            for pod, other in zip(pods(one), pods(theirs[key]), strict=True):
                for mine, other_one in ((pod.formats, other.formats), (pod.runs, other.runs)):
                    made = other.environment(other_one, CONFIG)
                    assert pod.environment(mine, CONFIG) == made, "each variable is known in time"
        assert _in_order(theirs[key]) == _in_order(one)


def test_documented_command_sets_the_registry_image() -> None:
    page = DEPLOYMENT.read_text()
    command = next(line for line in page.splitlines() if line.startswith("$ deploy() {"))
    script = command.removeprefix("$ ").replace("kubectl apply -f -", "cat")
    image = "registry.example:5000/team/raftlog:0.1.0"
    sources = [MANIFESTS / name for name in FILES]
    texts = [path.read_text() for path in sources]
    if shutil.which("kubectl") is not None:
        texts += [
            run_text(["kubectl", "kustomize", str(path)], check=True).stdout
            for path in (MANIFESTS, OVERLAY)
        ]
    for text in texts:
        put_in = run_text(
            ["bash", "-c", f"{script}\ndeploy"],
            input=text,
            check=True,
            env={"IMAGE": image, "PATH": PATH},
        ).stdout
        before, after = list(yaml.safe_load_all(text)), list(yaml.safe_load_all(put_in))
        for manifest in after:
            check(manifest)
        assert set(_images(after)) == {image}
        assert len(_images(after)) == len(_images(before)) > 0
        assert put_in.count(image) == len(_images(before))
        assert put_in.replace(image, "raftlog") == text, "nothing else has changed"


def _images(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["image"]] if isinstance(node.get("image"), str) else []
        return own + [found for value in node.values() for found in _images(value)]
    return [found for value in node for found in _images(value)] if isinstance(node, list) else []


def _in_order(node: Any) -> Any:
    """Return the object with lists of named items sorted by name: kustomize puts new ones first."""
    if isinstance(node, dict):
        return {key: _in_order(value) for key, value in node.items()}
    if isinstance(node, list):
        return sorted(
            (_in_order(one) for one in node), key=lambda one: json.dumps(one, sort_keys=True)
        )
    return node


@pytest.mark.parametrize("role", ROLES)
def test_tls_manifests_use_no_plaintext(role: str) -> None:
    for pod in pods(stateful_set(role, tls=True)):
        for container in (pod.formats, pod.runs):
            made = pod.environment(container, CONFIG)
            assert made["RAFTLOG_SECURITY_PLAINTEXT_ALLOW"] == "false"
            assert made["RAFTLOG_HTTP_LISTENER"].startswith("https://")
            assert made["RAFTLOG_TLS_KEY_FILE"] == f"/etc/raftlog/tls/node-{pod.index}.key"
            assert not [value for value in made.values() if "$(" in value]
            mounted = {one["mountPath"] for one in container["volumeMounts"]}
            files = [v for k, v in made.items() if k.endswith("_FILE")]
            assert {path.rpartition("/")[0] for path in files} <= mounted
        probes = [
            pod.runs[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
        ]
        assert {one["scheme"] for one in probes} == {"HTTPS"}
        secrets = [one["secret"] for one in pod.spec["volumes"] if "secret" in one]
        assert {one["secretName"] for one in secrets} == {"raftlog-tls", "raftlog-console"}
        assert {one["defaultMode"] for one in secrets} == {0o440}


def test_schemas_refuse_an_unknown_field_and_a_wrong_type() -> None:
    made = stateful_set("controller")
    wrong = copy.deepcopy(made)
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(fastjsonschema.JsonSchemaValueException, match="terminationGracePeriod"):
        check(wrong)
    wrong = copy.deepcopy(made)
    wrong["spec"]["replicas"] = "three"
    with pytest.raises(fastjsonschema.JsonSchemaValueException, match=r"spec\.replicas"):
        check(wrong)


def test_no_process_is_root_or_can_write_outside_its_volumes() -> None:
    for spec in all_pod_specs():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["fsGroup"] == 10001
        assert f"USER {security['runAsUser']}:" in (MANIFESTS.parent / "Dockerfile").read_text()
        assert spec["automountServiceAccountToken"] is False
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("role", ROLES)
def test_workload_service_budget_and_policy_select_the_same_pods(role: str) -> None:
    documents = manifests(f"{role}s.yaml")
    found = stateful_set(role)
    labels = found["spec"]["template"]["metadata"]["labels"]
    service = of_kind(documents, "Service")
    assert found["spec"]["selector"]["matchLabels"] == labels
    assert (service["spec"]["selector"], service["spec"]["clusterIP"]) == (labels, "None")
    assert service["metadata"]["name"] == found["spec"]["serviceName"]
    budget = of_kind(documents, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["maxUnavailable"] == 1
    policy = of_kind(documents, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    pod = found["spec"]["template"]["spec"]
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert opened == list(ports.values())


@pytest.mark.parametrize("role", ROLES)
def test_peers_reach_the_lane_port_above_their_listener(role: str) -> None:
    container = stateful_set(role)["spec"]["template"]["spec"]["containers"][0]
    (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == "lanes")
    (given,) = (one["value"] for one in container["env"] if one["name"] == "RAFTLOG_LISTENERS")
    assert port == int(given.rpartition(":")[2]) + Settings.lane_port_offset
    policy = of_kind(manifests(f"{role}s.yaml"), "NetworkPolicy")
    (rule,) = (one for one in policy["spec"]["ingress"] if {"port": port} in one["ports"])
    assert {"port": port - Settings.lane_port_offset} in rule["ports"], "the same sources as gRPC"


def test_pod_has_enough_time_to_stop_and_node_ids_are_unique() -> None:
    grace = {r: stateful_set(r)["spec"]["template"]["spec"] for r in ROLES}
    least = Settings.controlled_shutdown_timeout_ms // 1000
    assert grace["broker"]["terminationGracePeriodSeconds"] >= least + 15
    assert grace["controller"]["terminationGracePeriodSeconds"] >= 20
    ids = [pod.index for role in ROLES for pod in pods(stateful_set(role))]
    assert ids == [1, 2, 3, 101, 102, 103]
    assert max(ids) <= Settings.reserved_broker_max_id


def test_only_the_job_formats_the_first_controller_and_starts_a_quorum() -> None:
    job = of_kind(manifests("bootstrap.yaml"), "Job")
    claim = of_kind(manifests("bootstrap.yaml"), "PersistentVolumeClaim")
    found = stateful_set("controller")
    (template,) = found["spec"]["volumeClaimTemplates"]
    first = next(pods(found))
    assert claim["metadata"]["name"] == f"{template['metadata']['name']}-{first.name}"
    assert claim["spec"] == template["spec"]
    (begins,) = job["spec"]["template"]["spec"]["containers"]
    assert "--standalone" in begins["args"]
    assert "--ignore-formatted" not in begins["args"], "a second Job must fail"
    assert "--no-initial-controllers" in first.formats["args"]
    own = first.environment(first.formats, CONFIG)
    own["RAFTLOG_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"] = own["RAFTLOG_ADVERTISED_LISTENERS"]
    for name, value in Pod(first.name, 1, {}).environment(begins, CONFIG).items():
        assert own[name] == value
