"""Every test here starts a real Ray; the folder is marked as a whole.

A module that says which ``RAY`` it needs finds it started. All others start theirs themselves.
"""

from pathlib import Path

import pytest

from tests.on_ray.rays import local_ray, ray_with_stand_ins
from tests.stand_ins import state_counts

HERE = Path(__file__).parent
GIB = 2**30


@pytest.fixture(scope="package", autouse=True)
def no_gpu_was_chosen():
    """Ray refuses more logical GPUs than CUDA_VISIBLE_DEVICES names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def started_ray(request, no_gpu_was_chosen):
    if resources := getattr(request.module, "RAY", None):
        with local_ray(**resources):
            yield
    else:
        yield


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """A Ray whose workers find the stand-ins for CuPy and NVML; the file that states NVML's counts."""
    with ray_with_stand_ins(tmp_path_factory.mktemp("packages"), num_cpus=4, num_gpus=1) as counts:
        state_counts(counts, total=16 * GIB, free=15 * GIB, processes={"self": 3 * GIB})
        yield counts


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
