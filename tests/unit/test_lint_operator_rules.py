"""Each rule that only KubeRay's operator and Ray's autoscaler know is found where it is broken, and nowhere else."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.manifests_with import CLUSTER, changed
from tune_policies.lint.linting import lint_text
from tune_policies.lint.rules import READER_RULES, all_rules, operator

OWN = {rule.name for rule in (*operator.RULES, *READER_RULES)}
HEAD, GROUP = "headGroupSpec", "workerGroupSpecs.0"
HEAD_ENV = "headGroupSpec.template.spec.containers.0.env"


def found(kind, changes):
    """Rules that are broken, each with where, after changes by dotted path; ``C.`` is the cluster's place."""
    at_its_place = {path.replace("C.", f"{CLUSTER[kind]}.", 1): value for path, value in changes.items()}
    findings = lint_text(changed(kind, at_its_place), "demo.yaml")
    return {(each.rule, ".".join(map(str, each.path))) for each in findings if each.rule in OWN}


def variable(name, value="1"):
    return [{"name": name, "value": value}]


CLUSTERS = {
    "more at the least than at the most": ("min-above-max", f"{GROUP}.minReplicas", {f"C.{GROUP}.minReplicas": 5}),
    "a negative minimum": ("negative-number", f"{GROUP}.minReplicas", {f"C.{GROUP}.minReplicas": -1}),
    "no hosts": ("negative-number", f"{GROUP}.numOfHosts", {f"C.{GROUP}.numOfHosts": 0}),
    "a negative time-out": (
        "negative-number",
        "autoscalerOptions.idleTimeoutSeconds",
        {"C.autoscalerOptions.idleTimeoutSeconds": -1},
    ),
    "replicas above the most": ("replicas-outside", f"{GROUP}.replicas", {f"C.{GROUP}.replicas": 9}),
    "the same name twice": (
        "group-name-twice",
        "workerGroupSpecs.1.groupName",
        {"C.workerGroupSpecs.1.groupName": "small"},
    ),
    "the head's name": ("group-name-unusable", f"{GROUP}.groupName", {f"C.{GROUP}.groupName": "headgroup"}),
    "an empty name": ("group-name-unusable", f"{GROUP}.groupName", {f"C.{GROUP}.groupName": ""}),
    "a name of 64 characters": ("group-name-unusable", f"{GROUP}.groupName", {f"C.{GROUP}.groupName": "g" * 64}),
    "resources in two places": (
        "resources-twice",
        f"{GROUP}.rayStartParams.num-gpus",
        {f"C.{GROUP}.resources": {"CPU": "4"}, f"C.{GROUP}.rayStartParams.num-gpus": "1"},
    ),
    "labels among the start parameters": (
        "labels-in-start-params",
        f"{GROUP}.rayStartParams.labels",
        {f"C.{GROUP}.rayStartParams.labels": "market=spot"},
    ),
    "a label's key with a blank": ("label-syntax", f"{GROUP}.labels.a b", {f"C.{GROUP}.labels": {"a b": "c"}}),
    "a label's value with a dash at its end": (
        "label-syntax",
        f"{GROUP}.labels.market",
        {f"C.{GROUP}.labels": {"market": "spot-"}},
    ),
    "a suspended group": ("group-suspended", f"{GROUP}.suspend", {f"C.{GROUP}.suspend": True}),
    "a head that starts again": (
        "restart-policy-v2",
        "headGroupSpec.template.spec.restartPolicy",
        {"C.headGroupSpec.template.spec.restartPolicy": "Always"},
    ),
    "an idle time-out without v2": (
        "group-idle-without-v2",
        f"{GROUP}.idleTimeoutSeconds",
        {f"C.{GROUP}.idleTimeoutSeconds": 30, "C.autoscalerOptions.version": None},
    ),
    "a priority without v2": (
        "priority-without-v2",
        f"{GROUP}.priority",
        {f"C.{GROUP}.priority": 1, "C.autoscalerOptions.version": "v1"},
    ),
    "a priority with an older Ray": (
        "priority-without-v2",
        f"{GROUP}.priority",
        {
            f"C.{GROUP}.priority": 1,
            "C.rayVersion": "2.52.0",
            **{
                f"C.{each}.template.spec.containers.0.image": "ray:2.52.0"
                for each in (HEAD, GROUP, "workerGroupSpecs.1")
            },
        },
    ),
    "no CPUs": (
        "no-cpus",
        f"{GROUP}.template.spec.containers.0.resources",
        {f"C.{GROUP}.template.spec.containers.0.resources": {"limits": {"memory": "1Gi"}}},
    ),
    "half a GPU": (
        "start-param-not-whole",
        f"{GROUP}.rayStartParams.num-gpus",
        {f"C.{GROUP}.rayStartParams.num-gpus": "0.5"},
    ),
    "memory with a unit": (
        "start-param-not-whole",
        f"{GROUP}.rayStartParams.memory",
        {f"C.{GROUP}.rayStartParams.memory": "8Gi"},
    ),
    "one pair of quotes": (
        "start-param-resources",
        f"{GROUP}.rayStartParams.resources",
        {f"C.{GROUP}.rayStartParams.resources": '{"Disk": 1}'},
    ),
    "a part of a resource": (
        "start-param-resources",
        f"{GROUP}.rayStartParams.resources",
        {f"C.{GROUP}.rayStartParams.resources": '"{\\"Disk\\": 0.5}"'},
    ),
    "an underscore": (
        "start-param-unknown",
        f"{GROUP}.rayStartParams.num_gpus",
        {f"C.{GROUP}.rayStartParams.num_gpus": "1"},
    ),
    "an image of another Ray": (
        "version-of-image",
        f"{GROUP}.template.spec.containers.0.image",
        {f"C.{GROUP}.template.spec.containers.0.image": "example.com/rayproject/ray:2.50.1-py312-gpu"},
    ),
    "v2 without an autoscaler": (
        "autoscaler-v2-twice",
        f"{HEAD_ENV}.0",
        {
            f"C.{HEAD_ENV}": variable("RAY_enable_autoscaler_v2"),
            "C.enableInTreeAutoscaling": False,
            "C.autoscalerOptions": None,
        },
    ),
    "v2 said twice": (
        "autoscaler-v2-twice",
        f"{HEAD_ENV}.0",
        {f"C.{HEAD_ENV}": variable("RAY_enable_autoscaler_v2")},
    ),
    "the autoscaler's command": (
        "autoscaler-command",
        "autoscalerOptions.env.0",
        {"C.autoscalerOptions.env": variable("KUBERAY_GEN_AUTOSCALER_START_CMD")},
    ),
    "options of an autoscaler that is off": (
        "autoscaler-options-unused",
        "autoscalerOptions",
        {"C.enableInTreeAutoscaling": False},
    ),
    "another manager": ("managed-by", "managedBy", {"C.managedBy": "kueue"}),
    "Redis without fault tolerance": (
        "redis-said-twice",
        f"{HEAD_ENV}.0",
        {f"C.{HEAD_ENV}": variable("RAY_REDIS_ADDRESS", "redis:6379")},
    ),
    "a password beside the options": (
        "redis-said-twice",
        "headGroupSpec.rayStartParams.redis-password",
        {
            "C.gcsFaultToleranceOptions": {"redisAddress": "redis:6379"},
            "C.headGroupSpec.rayStartParams.redis-password": "secret",
        },
    ),
    "a user of Redis": ("redis-said-twice", f"{HEAD_ENV}.0", {f"C.{HEAD_ENV}": variable("REDIS_USERNAME", "ray")}),
    "an annotation beside the options": (
        "redis-said-twice",
        "gcsFaultToleranceOptions",
        {
            "C.gcsFaultToleranceOptions": {"redisAddress": "redis:6379"},
            "metadata.annotations": {"ray.io/ft-enabled": "true"},
        },
    ),
    "storage for Redis": (
        "gcs-backend",
        "gcsFaultToleranceOptions.storage",
        {"C.gcsFaultToleranceOptions": {"redisAddress": "redis:6379", "storage": {"size": "1Gi"}}},
    ),
    "tokens with an old Ray": (
        "authentication",
        "authOptions",
        {"C.authOptions": {"mode": "token"}, "C.rayVersion": None},
    ),
    "Kubernetes' tokens without tokens": (
        "authentication",
        "authOptions.enableK8sTokenAuth",
        {"C.authOptions": {"enableK8sTokenAuth": True}},
    ),
    "an unknown upgrade": (
        "cluster-upgrade-strategy",
        "upgradeStrategy.type",
        {"C.upgradeStrategy": {"type": "Rolling"}},
    ),
    "a variable that TLS sets": (
        "tls-said-twice",
        f"{HEAD_ENV}.0",
        {"C.tlsOptions": {"enabled": True}, f"C.{HEAD_ENV}": variable("RAY_USE_TLS")},
    ),
    "a policy for no group": (
        "network-policy",
        "networkPolicy.workerGroups.0",
        {"C.networkPolicy": {"workerGroups": [{"groupName": "smal"}]}},
    ),
    "rules for what is open": (
        "network-policy",
        "networkPolicy.head.egressRules",
        {"C.networkPolicy": {"mode": "DenyAllIngress", "head": {"egressRules": [{}]}}},
    ),
    "what needs a gate": ("feature-gate", "networkPolicy", {"C.networkPolicy": {"mode": "DenyAll"}}),
}


@pytest.mark.parametrize("kind", CLUSTER)
@pytest.mark.parametrize(("rule", "place", "changes"), CLUSTERS.values(), ids=CLUSTERS.keys())
def test_a_mistake_in_a_cluster_is_found_in_each_kind(kind, rule, place, changes):
    gates = set() if rule == "feature-gate" else {each for each in found(kind, changes) if each[0] == "feature-gate"}

    assert found(kind, changes) - gates == {(rule, f"{CLUSTER[kind]}.{place}")}


JOBS = {
    "a selector without a name": (
        "job-selector",
        "spec.clusterSelector",
        {"spec.rayClusterSpec": None, "spec.clusterSelector": {"app": "ray"}},
    ),
    "a selector and a cluster": (
        "job-part-unused",
        "spec.rayClusterSpec",
        {"spec.clusterSelector": {"ray.io/cluster": "demo"}},
    ),
    "a command that nobody submits": ("job-part-unused", "spec.entrypoint", {"spec.submissionMode": "InteractiveMode"}),
    "a submitter that there is not": (
        "job-part-unused",
        "spec.submitterConfig",
        {"spec.submissionMode": "HTTPMode", "spec.submitterConfig": {"backoffLimit": 1}},
    ),
    "suspended and kept": (
        "job-suspend",
        "spec.suspend",
        {"spec.suspend": True, "spec.shutdownAfterJobFinishes": False},
    ),
    "a time to live of what stays": (
        "job-time-to-live",
        "spec.ttlSecondsAfterFinished",
        {"spec.ttlSecondsAfterFinished": 60, "spec.shutdownAfterJobFinishes": None},
    ),
    "no time at all": ("job-deadline", "spec.activeDeadlineSeconds", {"spec.activeDeadlineSeconds": 0}),
    "a negative number of retries": ("job-retries", "spec.backoffLimit", {"spec.backoffLimit": -1}),
    "retries of what a person submits": (
        "job-retries",
        "spec.backoffLimit",
        {"spec.backoffLimit": 2, "spec.submissionMode": "InteractiveMode", "spec.entrypoint": None},
    ),
    "an unknown mode": ("job-mode", "spec.submissionMode", {"spec.submissionMode": "HttpMode"}),
    "a submitter in the sidecar's mode": (
        "job-mode",
        "spec.submitterConfig",
        {"spec.submissionMode": "SidecarMode", "spec.submitterConfig": {"backoffLimit": 1}},
    ),
    "nothing to run": ("job-entrypoint", "spec.entrypoint", {"spec.entrypoint": None}),
    "resources that are no JSON": (
        "job-json-and-yaml",
        "spec.entrypointResources",
        {"spec.entrypointResources": "Disk=1"},
    ),
    "an environment that is a list": ("job-json-and-yaml", "spec.runtimeEnvYAML", {"spec.runtimeEnvYAML": "- pip"}),
    "half a deletion strategy": (
        "job-deletion",
        "spec.deletionStrategy",
        {"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteCluster"}}},
    ),
    "rules beside a shutdown": (
        "job-deletion",
        "spec.deletionStrategy.deletionRules",
        {"spec.deletionStrategy": {"deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]}},
    ),
    "workers that the autoscaler brings back": (
        "job-deletion",
        "spec.deletionStrategy.deletionRules.0.policy",
        {
            "spec.shutdownAfterJobFinishes": None,
            "spec.deletionStrategy": {
                "deletionRules": [{"policy": "DeleteWorkers", "condition": {"jobStatus": "FAILED"}}]
            },
        },
    ),
    "the job before its cluster": (
        "job-deletion-order",
        "spec.deletionStrategy.deletionRules",
        {
            "spec.shutdownAfterJobFinishes": None,
            "spec.deletionStrategy": {
                "deletionRules": [
                    {"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED", "ttlSeconds": 60}},
                    {"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED", "ttlSeconds": 30}},
                ]
            },
        },
    ),
    "a name of 48 characters": ("name-too-long", "metadata.name", {"metadata.name": "n" * 48}),
}

UPGRADE = {
    "type": "NewClusterWithIncrementalUpgrade",
    "clusterUpgradeOptions": {"stepSizePercent": 10, "intervalSeconds": 30, "gatewayClassName": "istio"},
}


def upgrade(**options):
    return {**UPGRADE, "clusterUpgradeOptions": {**UPGRADE["clusterUpgradeOptions"], **options}}


OPTIONS = "spec.upgradeStrategy.clusterUpgradeOptions"
SERVICES = {
    "an unknown upgrade": (
        "service-upgrade-type",
        "spec.upgradeStrategy.type",
        {"spec.upgradeStrategy.type": "Rolling"},
    ),
    "an upgrade without an autoscaler": (
        "service-upgrade-options",
        "spec.upgradeStrategy.type",
        {
            "spec.upgradeStrategy": UPGRADE,
            "spec.rayClusterConfig.enableInTreeAutoscaling": None,
            "spec.rayClusterConfig.autoscalerOptions": None,
        },
    ),
    "a step above the surge": (
        "service-upgrade-options",
        f"{OPTIONS}.stepSizePercent",
        {"spec.upgradeStrategy": upgrade(maxSurgePercent=5)},
    ),
    "a step above everything": (
        "service-upgrade-options",
        f"{OPTIONS}.stepSizePercent",
        {"spec.upgradeStrategy": upgrade(stepSizePercent=101)},
    ),
    "no interval": (
        "service-upgrade-options",
        f"{OPTIONS}.intervalSeconds",
        {"spec.upgradeStrategy": upgrade(intervalSeconds=0)},
    ),
    "a negative delay": (
        "service-deletion-delay",
        "spec.rayClusterDeletionDelaySeconds",
        {"spec.rayClusterDeletionDelaySeconds": -1},
    ),
    "a head service with a name": (
        "service-head-name",
        "spec.rayClusterConfig.headGroupSpec.headService.metadata.name",
        {"spec.rayClusterConfig.headGroupSpec.headService": {"metadata": {"name": "head"}}},
    ),
    "a time-out in words": (
        "service-initializing-timeout",
        "metadata.annotations.ray.io/initializing-timeout",
        {"metadata.annotations": {"ray.io/initializing-timeout": "five minutes"}},
    ),
    "applications that are no YAML": (
        "service-config",
        "spec.serveConfigV2",
        {"spec.serveConfigV2": "applications: ["},
    ),
    "no applications": ("service-config", "spec.serveConfigV2", {"spec.serveConfigV2": "proxy_location: Disabled"}),
    "a name in capitals": ("name-unusable", "metadata.name", {"metadata.name": "Demo"}),
    "no name": ("name-unusable", "metadata", {"metadata.name": None}),
}


@pytest.mark.parametrize(("rule", "place", "changes"), JOBS.values(), ids=JOBS.keys())
def test_a_mistake_in_a_job_is_found(rule, place, changes):
    assert found("RayJob", changes) == {(rule, place)}


@pytest.mark.parametrize(("rule", "place", "changes"), SERVICES.values(), ids=SERVICES.keys())
def test_a_mistake_in_a_service_is_found(rule, place, changes):
    assert found("RayService", changes) == {(rule, place)}


@pytest.mark.parametrize("kind", CLUSTER)
def test_in_a_sound_manifest_nothing_is_found(kind):
    assert found(kind, {}) == set()


SOUND = {
    "seconds": {"metadata.annotations": {"ray.io/initializing-timeout": "300"}},
    "a duration": {"metadata.annotations": {"ray.io/initializing-timeout": "1h5m"}},
    "an incremental upgrade": {"spec.upgradeStrategy": UPGRADE},
    "resources in two pairs of quotes": {f"C.{GROUP}.rayStartParams.resources": '"{\\"Disk\\": 1}"'},
    "a nightly image": {f"C.{GROUP}.template.spec.containers.0.image": "rayproject/ray:nightly-py312"},
    "an image of one's own": {f"C.{GROUP}.template.spec.containers.0.image": "example.com/x-ray:1.2.3"},
    "a label with a prefix": {f"C.{GROUP}.labels": {"ray.io/accelerator-type": "A100-80G"}},
    "a group in capitals": {f"C.{GROUP}.groupName": "GPU_group"},
    "an autoscaler of version 1": {"C.autoscalerOptions.version": "v1"},
    "Redis by its options": {"C.gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}},
}


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND.keys())
def test_what_is_sound_is_let_through(changes):
    assert found("RayService", changes) == set()


ALL = [
    *((kind, changes) for kind in CLUSTER for _, _, changes in CLUSTERS.values()),
    *(("RayJob", changes) for _, _, changes in JOBS.values()),
    *(("RayService", changes) for _, _, changes in SERVICES.values()),
]
ANYTHING = st.recursive(
    st.sampled_from([None, True, -1, 0, 2**40, 0.5, "", "1", "x", "DenyAllIngress", "2.56.0", "\n"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "type", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_stands_where_rules_look_there_is_no_error(data):
    kind, changes = data.draw(st.sampled_from(ALL))
    at_its_place = {path.replace("C.", f"{CLUSTER[kind]}.", 1): value for path, value in changes.items()}
    manifest = yaml.safe_load(changed(kind, at_its_place))
    part = manifest
    while True:
        key = data.draw(st.sampled_from(list(part) if isinstance(part, dict) else range(len(part))))
        if not part[key] or not isinstance(part[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
            break
        part = part[key]
    part[key] = data.draw(ANYTHING)

    assert lint_text(yaml.safe_dump(manifest), "demo.yaml") is not None


def test_each_rule_has_a_case():
    told = {rule for cases in (CLUSTERS, JOBS, SERVICES) for rule, *_ in cases.values()}

    assert {rule.name for rule in operator.RULES} == told


def test_each_rule_has_a_name_of_its_own():
    names = [rule.name for rule in all_rules()]

    assert len(names) == len(set(names))
