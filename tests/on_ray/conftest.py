"""Every test here starts a real Ray; the folder is marked as a whole.

A module that says which ``RAY`` it needs shares it with the others that say the same, and they run one after the other.
All others have Rays of their own.
"""

from pathlib import Path

import pytest

from tests.on_ray.kernel_kills import small_group
from tests.on_ray.rays import end_shared_ray, ray_with_stand_ins, share_ray
from tests.stand_ins import state_counts

HERE = Path(__file__).parent
GIB = 2**30


@pytest.fixture(scope="package", autouse=True)
def no_gpu_was_chosen():
    """Ray refuses more logical GPUs than CUDA_VISIBLE_DEVICES names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield
        end_shared_ray()


@pytest.fixture(scope="module", autouse=True)
def shared_ray(request, no_gpu_was_chosen):
    if resources := getattr(request.module, "RAY", None):
        share_ray(**resources)
    else:
        end_shared_ray()


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """A Ray whose workers find the stand-ins for CuPy and NVML; the file that states NVML's counts."""
    with ray_with_stand_ins(tmp_path_factory.mktemp("packages"), num_cpus=4, num_gpus=1) as counts:
        state_counts(counts, total=16 * GIB, free=15 * GIB, processes={"self": 3 * GIB})
        yield counts


def pytest_collection_modifyitems(items):
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    # Sorting keeps the order of what needs the same Ray, and of what has one of its own, which comes first.
    for place, item in zip(places, sorted((items[place] for place in places), key=_needs), strict=True):
        item.add_marker(pytest.mark.ray)
        items[place] = item


def _needs(item):
    return sorted(getattr(item.module, "RAY", {}).items())


@pytest.fixture
def memory_group():
    """A cgroup in which the kernel kills what takes too much host memory."""
    with small_group() as group:
        yield group
