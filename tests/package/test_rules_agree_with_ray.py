"""Rules about Ray's autoscaler agree with its reader in the installed Ray."""

from typing import Any

import pytest
import ray
import yaml

from tests.unit.planted import files, groups, pods
from tests.unit.planted.no_mistakes import NO_MISTAKES
from tests.unit.planted.sound import CLUSTER, TPU
from tune_policies.kuberay.reading.ray_counts import TPU_TYPES
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

needs_newer_ray = pytest.mark.skipif(
    tuple(map(int, ray.__version__.split(".")[:2])) < (2, 51),
    reason="this Ray reads fewer fields and supports fewer TPUs",
)
TEXTS = {mistake.claim: mistake.text for mistake in (*pods.MISTAKES, *groups.MISTAKES, *files.MISTAKES)}


def _counted(text: str, group: str = "l4") -> dict[str, Any]:
    config = read_ray_cluster(yaml.safe_load(text))
    resources: dict[str, Any] = config["available_node_types"][group]["resources"]
    return resources


@pytest.mark.parametrize("claim", [each.claim for each in pods.DEVICES if each.rule == "device-not-counted"])
def test_ray_does_not_count_the_devices_of_the_rule(claim: str) -> None:
    assert _counted(TEXTS[claim]).keys() <= {"CPU", "memory"}


@pytest.mark.parametrize(
    ("text", "resource", "amount"),
    [
        pytest.param(CLUSTER, "GPU", 2, id="NVIDIA's GPUs"),
        pytest.param(NO_MISTAKES["AMD's GPUs, which the autoscaler counts"], "GPU", 8, id="AMD's GPUs"),
        pytest.param(
            NO_MISTAKES["a MIG device declared to Ray"],
            "GPU",
            1,
            id="a slice declared to Ray",
            marks=needs_newer_ray,
        ),
        pytest.param(
            NO_MISTAKES["Gaudi devices declared to Ray"],
            "HPU",
            8,
            id="devices declared to Ray",
            marks=needs_newer_ray,
        ),
        pytest.param(
            TEXTS["GPU in lower case"], "gpu", 2, id="a lower-case name is a custom resource", marks=needs_newer_ray
        ),
        pytest.param(TEXTS["more declared GPUs than the limit"], "GPU", 4, id="more than exist, if declared"),
    ],
)
def test_ray_counts_the_amounts_that_rules_assume(text: str, resource: str, amount: int) -> None:
    assert _counted(text)[resource] == amount


def test_ray_counts_half_a_cpu_as_one() -> None:
    assert _counted(TEXTS["half a CPU, which Ray counts as one"], "cpu")["CPU"] == 1


def test_ray_creates_a_slice_resource_if_both_selectors_exist() -> None:
    assert _counted(TPU, "v6e")["TPU-v6e-16-head"] == 1


@needs_newer_ray
@pytest.mark.parametrize("name", sorted(TPU_TYPES))
def test_ray_supports_the_tpu_types_of_the_rules(name: str) -> None:
    text = TPU.replace("tpu-v6e-slice", name)

    assert any(each.startswith("TPU-") for each in _counted(text, "v6e"))


@needs_newer_ray
@pytest.mark.parametrize("claim", ["TPUs without topology", "TPUs without accelerator", "an unknown TPU type"])
def test_ray_creates_no_slice_resource_for_wrong_selectors(claim: str) -> None:
    assert not any(name.startswith("TPU-") for name in _counted(TEXTS[claim], "v6e"))


@pytest.mark.parametrize("claim", ["an invalid topology", "half a GPU in the parameters of ray start"])
def test_ray_cannot_read_the_planted_mistake(claim: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        _counted(TEXTS[claim])
