"""The GPU vendor's visibility variable lists exactly the GPUs of a trial.

Each vendor needs its own Ray instance, because Ray detects the vendor only once."""

import os
import warnings

import pytest
import ray
from packaging.version import Version
from ray._private.accelerators import get_accelerator_manager_for_resource

from tests.on_ray.devices import VARIABLES, all_devices, devices_of_each_trial
from tests.on_ray.rays import local_ray
from tune_policies import AcceleratorPolicy, ProbeWarning, probe_cluster
from tune_policies.cluster.accelerators import GPU_VISIBILITY_VARIABLES

# Ray uses these packages to detect the vendor of a machine's GPUs. The real packages need the hardware, so stand-ins
# replace them here. Everything else, in Ray and in the trial, is real.
AMDSMI = """
class AmdSmiInitFlags: INIT_AMD_GPUS = 2
class AmdSmiMemoryType: VRAM = 0
class AmdSmiLibraryException(Exception): pass
def amdsmi_init(flags): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return list(range(4))
"""
DPCTL = """
class SyclContext:
    def __init__(self, selector): self.device_count = 4 if selector == "level_zero:gpu" else 0
"""
SLOW = [pytest.param(vendor, marks=pytest.mark.slow) for vendor in ("Intel GPU", "NVIDIA GPU")]
PACKAGES = {"NVIDIA GPU": {}, "AMD GPU": {"amdsmi.py": AMDSMI}, "Intel GPU": {"dpctl.py": DPCTL}}


@pytest.fixture(scope="module")
def vendor(request, tmp_path_factory):
    """A Ray instance with four simulated GPUs of one vendor."""
    packages = tmp_path_factory.mktemp("packages")
    for name, source in PACKAGES[request.param].items():
        if Version(ray.__version__) < Version("2.60"):
            pytest.skip(
                "requires Ray 2.60 or later: earlier versions use AMD's C library and a different variable for Intel"
            )
        (packages / name).write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        with local_ray(num_cpus=4, num_gpus=4):
            yield request.param


@pytest.mark.rest
@pytest.mark.parametrize("vendor", ["AMD GPU", *SLOW], indirect=True, scope="module")
def test_concurrent_trials_share_no_gpu_and_use_all_gpus_of_the_node(vendor, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        plan = AcceleratorPolicy(resource="GPU", amount=2).plan(probe_cluster())

    seen = devices_of_each_trial(plan, VARIABLES[vendor], tmp_path)

    assert [len(devices) for devices in seen] == [2, 2]
    assert all_devices(seen) == ["0", "1", "2", "3"]


def test_gpu_visibility_variables_include_the_variable_that_ray_uses():
    assert get_accelerator_manager_for_resource("GPU").get_visible_accelerator_ids_env_var() in GPU_VISIBILITY_VARIABLES
