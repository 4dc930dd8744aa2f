"""What the core knows about accelerators agrees with the installed Ray."""

import os

import pytest
import ray
import ray.util.accelerators
from ray._private.accelerators import get_accelerator_manager_for_resource

from tests.on_ray.rays import local_ray
from tune_policies.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPES, GPU_VISIBILITY_VARIABLES


def test_every_device_type_of_the_installed_ray_is_known():
    """A newer Ray shows here what is missing."""
    names = {value for key, value in vars(ray.util.accelerators).items() if key.isupper() and isinstance(value, str)}

    assert names - ACCELERATOR_TYPES == set()


def test_the_variable_by_which_ray_shows_gpus_is_one_that_hides_them():
    assert get_accelerator_manager_for_resource("GPU").get_visible_accelerator_ids_env_var() in GPU_VISIBILITY_VARIABLES


def test_ray_holds_as_much_of_a_device_type_as_the_plan_counts():
    with local_ray(num_cpus=1, resources={"accelerator_type:A100": 1}):

        @ray.remote(num_cpus=0, accelerator_type="A100")
        def held():
            return ray.get_runtime_context().get_assigned_resources()

        assigned = ray.get(held.remote(), timeout=60)

    assert assigned["accelerator_type:A100"] == pytest.approx(ACCELERATOR_TYPE_AMOUNT)


def test_ray_may_show_a_task_without_gpus_every_gpu_of_its_node():
    """Why a CPU trial has to hide them. The setting is the default of newer Rays; 2.50 still had the other one."""
    shown = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    with local_ray(num_cpus=1, num_gpus=2, runtime_env=shown):

        @ray.remote(num_cpus=1)
        def visible():
            return os.environ.get("CUDA_VISIBLE_DEVICES")

        assert ray.get(visible.remote(), timeout=60) != ""
