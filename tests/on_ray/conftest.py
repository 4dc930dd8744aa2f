"""Every test here starts a real Ray; the folder is marked as a whole."""

import os
from pathlib import Path

import pytest

from tests.on_ray.rays import local_ray
from tests.stand_ins import state_counts, write_stand_ins

HERE = Path(__file__).parent
GIB = 2**30


@pytest.fixture(scope="package", autouse=True)
def no_gpu_was_chosen():
    """Ray refuses more logical GPUs than CUDA_VISIBLE_DEVICES names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """A Ray whose workers find the stand-ins for CuPy and NVML; the file that states NVML's counts."""
    packages = tmp_path_factory.mktemp("packages")
    counts = write_stand_ins(packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("STAND_IN_NVML", str(counts))
        with local_ray(num_cpus=4, num_gpus=1):
            state_counts(counts, total=16 * GIB, free=15 * GIB, processes={"self": 3 * GIB})
            yield counts


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
