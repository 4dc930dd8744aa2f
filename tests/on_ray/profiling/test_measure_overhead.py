"""A task on the node of a GPU measures the memory overhead, and the result is saved.

The GPU is not real. A stand-in for NVML lists it, and a stand-in for CuPy increases its memory use.
"""

import os

import pytest
import ray

from tests.on_ray.rays import local_ray
from tune_policies import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.trainers import calibrate_gpu_overhead, load_overheads

MIB = 2**20

PYNVML = """
from pathlib import Path
from types import SimpleNamespace
HERE = Path(__file__).parent
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return int((HERE / "gpus").read_text())
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "Stand-in GPU"
def nvmlDeviceGetUUID(handle): return "GPU-0"
def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=2**34, free=2**34 - int((HERE / "used").read_text()))
def nvmlDeviceGetComputeRunningProcesses(handle): return []
"""
CUPY = f"""
from pathlib import Path
from types import SimpleNamespace
__version__ = "14.2.0"
float32 = "float32"
class Matrix:
    __matmul__ = lambda self, other: self
    sum = lambda self: None
random = SimpleNamespace(standard_normal=lambda shape, dtype: Matrix())
linalg = SimpleNamespace(inv=lambda matrix: None)
fft = SimpleNamespace(fft2=lambda matrix: None)
def maximum(matrix, number): return matrix
class Device:
    def synchronize(self): (Path(__file__).parent / "used").write_text(str({700 * MIB}))
cuda = SimpleNamespace(Device=Device)
def get_default_memory_pool(): return SimpleNamespace(total_bytes=lambda: {40 * MIB})
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Start Ray with one simulated GPU, and yield the folder of the stand-ins."""
    packages = tmp_path_factory.mktemp("packages")
    for name, text in {"pynvml.py": PYNVML, "cupy.py": CUPY, "gpus": "1", "used": str(100 * MIB)}.items():
        (packages / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        patch.setenv("TUNE_POLICIES_CACHE", str(packages / "cache"))
        with local_ray(num_cpus=1, num_gpus=1):
            yield packages


@pytest.mark.rest
def test_measured_overheads_are_saved_for_later_plans(node):
    measured = calibrate_gpu_overhead(["cupy"], timeout_s=60)

    assert load_overheads() == measured
    overhead, source = measured.bytes_for("Stand-in GPU", "cupy", "14.2.0")
    assert overhead == (700 - 100 - 40) * MIB
    assert source in measured.measured


@pytest.mark.rest
def test_measure_overhead_raises_an_error_with_advice_if_the_gpu_stays_in_use(node):
    @ray.remote(num_gpus=1, num_cpus=0)
    class Busy:
        def ready(self):
            return True

    busy = Busy.remote()
    ray.get(busy.ready.remote(), timeout=60)

    with pytest.raises(ProbeError, match=r"no Stand-in GPU could be measured within 0\.5 s. Wait until a whole"):
        calibrate_gpu_overhead(["cupy"], timeout_s=0.5)
    ray.kill(busy)


@pytest.mark.rest
def test_an_unknown_framework_raises_an_error_with_a_suggestion(node):
    with pytest.raises(InvalidResourcesError, match=r"unknown framework 'torhc'; did you mean 'torch'\?"):
        calibrate_gpu_overhead(["torhc"])


@pytest.mark.rest
def test_frameworks_must_be_a_list(node):
    with pytest.raises(
        InvalidResourcesError, match=r"frameworks must be a list of names, got 'torch'\. Use \['torch'\]"
    ):
        calibrate_gpu_overhead("torch")


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_measuring_without_a_gpu_raises_an_error(node):
    (node / "gpus").write_text("0")

    with pytest.raises(InfeasibleRequestError, match="no node has a GPU of a known model"):
        calibrate_gpu_overhead()
