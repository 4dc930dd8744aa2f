"""Every test in this folder uses a real Ray cluster and gets the mark ``ray``.

Modules with equal ``RAY`` resources share one Ray instance and run one after the other. All other modules start their
own Ray instances.
"""

from pathlib import Path

import pytest

from tests.on_ray.kernel_kills import small_group
from tests.on_ray.rays import end_shared_ray, ray_with_stand_ins, share_ray
from tests.stand_ins import state_counts

HERE = Path(__file__).parent
GIB = 2**30


@pytest.fixture(scope="package", autouse=True)
def no_visible_devices_variable():
    """Unset CUDA_VISIBLE_DEVICES, because Ray rejects more simulated GPUs than this variable lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield
        end_shared_ray()


@pytest.fixture(scope="module", autouse=True)
def ends_its_ray():
    """Replace the check of all other tests, because the modules in this folder may share a Ray instance."""


@pytest.fixture(scope="module", autouse=True)
def shared_ray(request, no_visible_devices_variable):
    if resources := getattr(request.module, "RAY", None):
        share_ray(**resources)
    else:
        end_shared_ray()


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Start a Ray instance whose workers import stand-ins for CuPy and NVML, and yield the file of NVML's values."""
    with ray_with_stand_ins(tmp_path_factory.mktemp("packages"), num_cpus=4, num_gpus=1) as counts:
        state_counts(counts, total=16 * GIB, free=15 * GIB, processes={"self": 3 * GIB})
        yield counts


def pytest_collection_modifyitems(items):
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    # The stable sort keeps the order of the tests in each module. Modules with their own Ray instances come first.
    for place, item in zip(places, sorted((items[place] for place in places), key=_required_resources), strict=True):
        item.add_marker(pytest.mark.ray)
        items[place] = item


def _required_resources(item):
    return sorted(getattr(item.module, "RAY", {}).items())


@pytest.fixture
def without_loggers(monkeypatch):
    """Disable Tune's loggers, because they do not close their files if a run is stopped or a trial is paused."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


@pytest.fixture
def memory_group():
    """Create a cgroup in which the kernel kills processes that use too much host memory."""
    with small_group() as group:
        yield group
