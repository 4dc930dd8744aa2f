"""What breaks a rule breaks just that one, in a cluster, a job and a service alike."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.manifests_with import CLUSTER, changed
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.lint.rules import READER_RULES, all_rules

GROUP = "workerGroupSpecs.0"


def found(kind, changes):
    """Rules that are broken, each with where, after changes by dotted path; ``C.`` is the cluster's place."""
    at_its_place = {path.replace("C.", f"{CLUSTER[kind]}.", 1): value for path, value in changes.items()}
    findings = lint_text(changed(kind, at_its_place), "demo.yaml")
    return {(each.rule, ".".join(map(str, each.path))) for each in findings if each.rule in OWN}


CLUSTERS = {
    "more at the least than at the most": ("min-above-max", f"{GROUP}.minReplicas", {f"C.{GROUP}.minReplicas": 5}),
    "replicas above the most": ("replicas-outside", f"{GROUP}.replicas", {f"C.{GROUP}.replicas": 9}),
    "the same name twice": (
        "group-name-twice",
        "workerGroupSpecs.1.groupName",
        {"C.workerGroupSpecs.1.groupName": "small"},
    ),
    "labels among the start parameters": (
        "labels-in-start-params",
        f"{GROUP}.rayStartParams.labels",
        {f"C.{GROUP}.rayStartParams.labels": "market=spot"},
    ),
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
        "ray-versions-differ",
        f"{GROUP}.template.spec.containers.0.image",
        {f"C.{GROUP}.template.spec.containers.0.image": "example.com/rayproject/ray:2.50.1-py312-gpu"},
    ),
    "options of an autoscaler that is off": (
        "autoscaler-options-unused",
        "autoscalerOptions",
        {"C.enableInTreeAutoscaling": False},
    ),
    "the head's name": ("group-name-twice", f"{GROUP}.groupName", {f"C.{GROUP}.groupName": "headgroup"}),
}


@pytest.mark.parametrize("kind", CLUSTER)
@pytest.mark.parametrize(("rule", "place", "changes"), CLUSTERS.values(), ids=CLUSTERS.keys())
def test_a_mistake_in_a_cluster_is_found_in_each_kind(kind, rule, place, changes):
    assert found(kind, changes) == {(rule, f"{CLUSTER[kind]}.{place}")}


@pytest.mark.parametrize("kind", CLUSTER)
def test_in_a_sound_manifest_nothing_is_found(kind):
    assert found(kind, {}) == set()


SOUND = {
    "resources in two pairs of quotes": {f"C.{GROUP}.rayStartParams.resources": '"{\\"Disk\\": 1}"'},
    "a nightly image": {f"C.{GROUP}.template.spec.containers.0.image": "rayproject/ray:nightly-py312"},
    "an image of one's own": {f"C.{GROUP}.template.spec.containers.0.image": "example.com/x-ray:1.2.3"},
    "a label with a prefix": {f"C.{GROUP}.labels": {"ray.io/accelerator-type": "A100-80G"}},
    "an autoscaler of version 1": {"C.autoscalerOptions.version": "v1"},
}


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND.keys())
def test_what_is_sound_is_let_through(changes):
    assert found("RayService", changes) == set()


OWN = {rule for rule, *_ in CLUSTERS.values()} | {rule.name for rule in READER_RULES}
ALL = [
    *((kind, changes) for kind in CLUSTER for _, _, changes in CLUSTERS.values()),
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


def test_each_rule_has_a_name_of_its_own():
    names = [rule.name for rule in all_rules()]

    assert len(names) == len(set(names))
