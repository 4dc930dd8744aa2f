"""Tests that lint rules about fields that Ray reads agree with the installed Ray."""

import json

import pytest
import ray
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kuberay.manifests_with import changed
from tests.unit.kuberay.planted import groups, pods
from tests.unit.kuberay.planted.sound import TPU
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.reading.ray_counts import TPU_TYPES
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

GROUP = "spec.workerGroupSpecs.0"

AMOUNTS = st.dictionaries(
    st.sampled_from(["Disk", "a b", ""]),
    st.one_of(st.integers(-1, 3), st.booleans(), st.just(0.5), st.just("1")),
    max_size=2,
)
RESOURCES = st.one_of(
    AMOUNTS.map(json.dumps),
    AMOUNTS.map(lambda amounts: json.dumps(json.dumps(amounts))),
    AMOUNTS.map(lambda amounts: f"'{json.dumps(amounts)}'"),
    st.text(alphabet="{}[]\"'\\:, a1", max_size=8),
)
NUMBERS = st.one_of(
    st.integers(0, 9).map(str), st.sampled_from(["", " 4", "4 ", "0.5", "500m", "4e1", "+4", "1_0", "x"])
)


def is_read(text):
    try:
        read_ray_cluster(yaml.safe_load(text))
    except ValueError:
        return False
    return True


def rules(text):
    return {each.rule for each in lint_text(text, "demo.yaml")}


@settings(max_examples=60, deadline=None)
@given(RESOURCES)
def test_resources_are_a_finding_if_and_only_if_ray_cannot_read_them(resources):
    text = changed("RayCluster", {f"{GROUP}.rayStartParams.resources": resources})

    assert ("start-param-resources" in rules(text)) == (not is_read(text))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["num-cpus", "num-gpus", "memory"]), NUMBERS)
def test_a_number_is_a_finding_if_and_only_if_ray_cannot_read_it(name, number):
    text = changed("RayCluster", {f"{GROUP}.rayStartParams.{name}": number})

    assert ("start-param-not-whole" in rules(text)) == (not is_read(text))


@pytest.mark.parametrize("field", ["limits", "requests", "neither"])
def test_missing_cpus_are_a_finding_if_and_only_if_ray_fails(field):
    resources = {} if field == "neither" else {field: {"cpu": "4"}}
    text = changed("RayCluster", {f"{GROUP}.template.spec.containers.0.resources": resources})

    assert ("cpus-missing" in rules(text)) == (not is_read(text))


TEXTS = {mistake.claim: mistake.text for mistake in (*pods.MISTAKES, *groups.MISTAKES)}


def makes_a_slice(text):
    """Return whether Ray adds the resource of a TPU slice to a group."""
    resources = read_ray_cluster(yaml.safe_load(text))["available_node_types"]["v6e"]["resources"]
    return any(name.startswith("TPU-") for name in resources)


@pytest.mark.skipif(tuple(map(int, ray.__version__.split(".")[:2])) < (2, 51), reason="this Ray supports fewer TPUs")
def test_ray_supports_the_tpu_types_of_the_rules_and_ignores_slices_that_the_rules_report():
    mistakes = ("TPUs without topology", "TPUs without accelerator", "an unknown TPU type")

    assert all(makes_a_slice(TPU.replace("tpu-v6e-slice", name)) for name in TPU_TYPES)
    assert not any(makes_a_slice(TEXTS[claim]) for claim in mistakes)
    with pytest.raises(ValueError, match=r"."):
        makes_a_slice(TEXTS["an invalid topology"])
