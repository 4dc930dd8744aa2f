"""Tests that the table of accelerators agrees with the installed Ray, without starting Ray."""

import os
import subprocess
import sys

import pytest
import ray
import ray.util.accelerators.accelerators
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from ray._private.accelerators import get_all_accelerator_managers

from tests.clusters import with_devices
from tune_policies import AcceleratorPolicy
from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, FAMILIES
from tune_policies.cluster.tpu_slices import TOPOLOGIES, SliceShape

MANAGERS = {manager.__name__: manager for manager in get_all_accelerator_managers()}
TABLE = "tune_policies/cluster/accelerators.py"
# The table describes Ray 2.60. Older versions support fewer accelerator types and use another variable for Intel GPUs.
IS_OLDER = Version(ray.__version__) < Version("2.60")
FORMER_VARIABLES = {"IntelGPUAcceleratorManager": "ONEAPI_DEVICE_SELECTOR"} if IS_OLDER else {}

only_for_the_ray_of_the_table = pytest.mark.skipif(
    IS_OLDER, reason="the table is for Ray 2.60, and this Ray supports fewer types"
)
every_family = pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.ray_manager in MANAGERS], ids=str
)


def test_every_accelerator_family_of_the_installed_ray_has_a_row():
    missing = sorted(MANAGERS.keys() - {family.ray_manager for family in FAMILIES})

    assert not missing, f"add a row to FAMILIES in {TABLE} for {', '.join(missing)}"


@only_for_the_ray_of_the_table
def test_every_row_is_an_accelerator_family_of_the_installed_ray():
    gone = sorted(str(family) for family in FAMILIES if family.ray_manager not in MANAGERS)

    assert not gone, f"this Ray lacks these rows of {TABLE}: {', '.join(gone)}"


@every_family
def test_a_row_contains_the_resource_and_the_visibility_variable_of_ray(family):
    manager = MANAGERS[family.ray_manager]
    variable = FORMER_VARIABLES.get(family.ray_manager, family.visibility_variable)

    assert manager.get_resource_name() == family.resource
    assert manager.get_visible_accelerator_ids_env_var() == variable


amounts = st.sampled_from([0.0001, 0.25, 0.5, 0.9999, 1, 1.0, 1.5, 2, 2.5, 3, 4, 4.0, 7, 8, 8.5, 16, 1000, 10**6]) | (
    st.integers(1, 10**11) | st.floats(0.0001, 10**6)
)


@every_family
@given(amount=amounts)
def test_a_row_allows_the_amounts_that_ray_accepts(family, amount):
    """Ray also rejects amounts above 1 that are not integers. ``tests/on_ray`` tests this rule."""
    is_valid, _ = MANAGERS[family.ray_manager].validate_resource_request_quantity(amount)

    assert family.allows(amount) == (is_valid and (amount < 1 or float(amount).is_integer()))


def test_every_accelerator_type_of_the_installed_ray_is_in_the_table():
    missing = sorted(types_of_ray() - ACCELERATOR_TYPES)

    assert not missing, f"add to the types of their family in {TABLE}: {', '.join(missing)}"


@only_for_the_ray_of_the_table
def test_every_accelerator_type_in_the_table_exists_in_ray():
    assert ACCELERATOR_TYPES - types_of_ray() == set()


def types_of_ray():
    # The package exports only some of Ray's accelerator types, so read them from the module.
    names = vars(ray.util.accelerators.accelerators)
    return {value for key, value in names.items() if isinstance(value, str) and not key.startswith("__")}


@only_for_the_ray_of_the_table
def test_the_tpu_topologies_are_the_same_as_in_ray():
    from ray._private.accelerators.tpu import VALID_TPU_TOPOLOGY

    assert {f"TPU-{version.upper()}": known for version, known in VALID_TPU_TOPOLOGY.items()} == TOPOLOGIES


@only_for_the_ray_of_the_table
def test_the_pod_type_and_single_host_slices_are_the_same_as_in_ray():
    from ray._private.accelerators.tpu import get_chips_per_host, infer_tpu_pod_type_from_topology
    from ray.util.tpu import get_tpu_version_from_type

    for accelerator_type, topologies in TOPOLOGIES.items():
        for topology in topologies:
            shape = SliceShape(topology, accelerator_type)
            per_host = get_chips_per_host(topology, get_tpu_version_from_type(accelerator_type))

            assert shape.pod_type == infer_tpu_pod_type_from_topology(topology, accelerator_type)
            assert shape.has_one_host == (shape.chips <= per_host)


@pytest.mark.parametrize(("resource", "amount", "use_tpu"), [("HPU", 2, False), ("NPU", 0.5, False), ("TPU", 4, True)])
def test_scaling_config_accepts_plans_for_hpus_npus_and_tpus(resource, amount, use_tpu):
    plan = AcceleratorPolicy(resource=resource, amount=amount, num_workers=1).plan(with_devices((8, {resource: 4})))

    config = plan.scaling_config()

    assert config.resources_per_worker[resource] == amount
    assert (config.use_gpu, config.use_tpu, config.topology) == (False, use_tpu, None)


PLAN_FOR_TPUS = """
from tune_policies import AcceleratorPolicy, ClusterCapacity, Resources
plan = AcceleratorPolicy(resource="TPU", num_workers=1).plan(ClusterCapacity.of(Resources(cpus=8, custom={"TPU": 4})))
plan.scaling_config()
"""


def test_the_error_for_tpus_with_ray_train_v1_suggests_a_fix():
    environment = {**os.environ, "RAY_TRAIN_V2_ENABLED": "0"}

    done = subprocess.run(
        [sys.executable, "-c", PLAN_FOR_TPUS], capture_output=True, text=True, env=environment, check=False
    )

    assert "Set RAY_TRAIN_V2_ENABLED=1 in the environment" in done.stderr
