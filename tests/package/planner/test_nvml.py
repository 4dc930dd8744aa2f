"""Tests of the NVML reader with a stand-in for the NVML functions that it calls."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tune_policies.probe.nvml import GpuCounters, NvmlError, read_device_use, read_driver, read_gpus
from tune_policies.probe.process_facts import read_processes

GIB = 2**30

A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory": 40 * GIB}
SMALL = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "memory": 5 * GIB}
LARGE = {"name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "memory": 20 * GIB}


class Nvml(ModuleType):
    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, gpus):
        super().__init__("pynvml")
        self.gpus = gpus

    def nvmlInit(self):  # noqa: N802 - NVML's names, here and below
        pass

    def nvmlShutdown(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if self.gpus[index] is None:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
        if "mig" not in gpu:
            raise self.NVMLError("Not Supported")
        return [int(gpu["mig"] is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):  # noqa: N802
        if index not in gpu["mig"]:
            raise self.NVMLError("Not Found")
        return gpu["mig"][index]

    def nvmlDeviceGetName(self, gpu):  # noqa: N802
        return gpu["name"]

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        return SimpleNamespace(total=gpu["memory"], used=GIB, free=gpu["memory"] - GIB)

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        if gpu["uuid"] is None:
            raise self.NVMLError("GPU is lost")
        return gpu["uuid"].encode()  # older bindings return bytes

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):  # noqa: N802
        if "energy_mj" not in gpu:
            raise self.NVMLError("Not Supported")
        return gpu["energy_mj"]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):  # noqa: N802
        return gpu["throttled_by"]


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus):
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(gpus))

    return install


def split():
    """Return two GPUs: one without MIG, and one with MIG devices at two of its seven indices."""
    return (
        {**A100, "uuid": "GPU-a"},
        {**A100, "uuid": "GPU-b", "mig": {0: {**LARGE, "uuid": "MIG-x"}, 4: {**SMALL, "uuid": "MIG-y"}}},
    )


def listed():
    return [(gpu["index"], gpu["uuid"], gpu["memory_bytes"] // GIB) for gpu in read_gpus()]


def test_mig_devices_replace_their_gpu_in_the_list_and_have_their_own_size(nvml):
    nvml(*split())

    assert listed() == [(0, "GPU-a", 40), (1, "MIG-x", 20), (2, "MIG-y", 5)]
    assert [gpu["name"] for gpu in read_gpus()] == [A100["name"], LARGE["name"], SMALL["name"]]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-y", [(2, "MIG-y", 5)]),
        ("MIG-y,MIG-x", [(1, "MIG-x", 20), (2, "MIG-y", 5)]),
        ("GPU-a", [(0, "GPU-a", 40)]),
        ("1", [(1, "MIG-x", 20), (2, "MIG-y", 5)]),
        ("", [(0, "GPU-a", 40), (1, "MIG-x", 20), (2, "MIG-y", 5)]),
    ],
)
def test_cuda_visible_devices_also_selects_mig_devices(nvml, visible, expected, monkeypatch):
    nvml(*split())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert listed() == expected


@pytest.mark.parametrize("mig", [{}, {"mig": None}], ids=["does not support MIG", "has MIG disabled"])
def test_a_gpu_without_mig_is_listed_as_a_whole(nvml, mig):
    nvml({**A100, "uuid": "GPU-a", **mig})

    assert listed() == [(0, "GPU-a", 40)]


def test_a_gpu_with_mig_but_without_mig_devices_is_omitted(nvml):
    nvml({**A100, "uuid": "GPU-a", "mig": {}})

    assert listed() == []


@pytest.mark.parametrize("failed", [None, {**A100, "uuid": None}], ids=["no handle", "no answers"])
def test_a_gpu_that_has_failed_does_not_affect_the_other_gpus(nvml, monkeypatch, failed):
    nvml(failed, {**A100, "uuid": "GPU-b"})

    assert listed() == [(1, "GPU-b", 40)]
    assert [(gpu["index"], gpu["uuid"]) for gpu in read_driver()["gpus"]] == [(1, "GPU-b")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(NvmlError, match="GPU is lost"):
        read_gpus()


def test_if_all_gpus_have_failed_the_error_contains_the_reason(nvml):
    nvml(None, None)

    with pytest.raises(NvmlError, match="GPU is lost"):
        read_gpus()


def test_a_cuda_visible_devices_value_that_matches_no_device_is_an_error(nvml, monkeypatch):
    nvml(*split())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-z")

    with pytest.raises(NvmlError, match="CUDA_VISIBLE_DEVICES=MIG-z selects none of the GPUs"):
        read_gpus()


def test_the_driver_lists_whole_gpus_even_if_they_are_split_or_hidden(nvml, monkeypatch):
    nvml(*split())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")

    gpus = [(gpu["uuid"], gpu["memory_bytes"] // GIB, gpu["is_mig"]) for gpu in read_driver()["gpus"]]

    assert gpus == [("GPU-a", 40, False), ("GPU-b", 40, True)]


def test_values_that_the_driver_does_not_report_are_none(nvml):
    nvml({**A100, "uuid": "GPU-a"})

    driver = read_driver()

    assert (driver["driver_version"], driver["cuda_version"]) == (None, None)
    assert (driver["gpus"][0]["max_clock_mhz"], driver["gpus"][0]["power_limit_w"]) == (None, None)


def test_the_use_of_a_process_includes_its_gpu_memory_and_the_utilization_of_the_gpu(nvml, monkeypatch):
    nvml({**A100, "uuid": "GPU-1"}, {**A100, "uuid": "GPU-2"})
    binding = sys.modules["pynvml"]
    processes = {"GPU-1": [], "GPU-2": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)]}
    monkeypatch.setattr(
        binding, "nvmlDeviceGetComputeRunningProcesses", lambda gpu: processes[gpu["uuid"]], raising=False
    )
    monkeypatch.setattr(binding, "nvmlDeviceGetUtilizationRates", lambda gpu: SimpleNamespace(gpu=12), raising=False)

    used = read_processes([os.getpid(), 2**22 + 1])["processes"]

    assert list(used) == [os.getpid()]
    assert (used[os.getpid()]["gpu_bytes"], used[os.getpid()]["gpu_utilization"]) == (3 * GIB, 0.12)
    assert used[os.getpid()]["device_bytes"] == 40 * GIB
    assert used[os.getpid()]["cpu_s"] > 0


@pytest.mark.parametrize("read", [read_gpus, read_driver, read_device_use, GpuCounters], ids=lambda read: read.__name__)
@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_errors_of_the_binding_are_converted_and_nvml_is_closed(nvml, monkeypatch, function, read):
    nvml(*split())
    binding, opened = sys.modules["pynvml"], []
    monkeypatch.setattr(binding, "nvmlInit", lambda: opened.append(1))
    monkeypatch.setattr(binding, "nvmlShutdown", opened.pop)

    def refuse(*_):
        raise Nvml.NVMLError("Driver Not Loaded")

    read()  # with frequent reads, NVML stays initialized after the first call
    opened.clear()
    monkeypatch.setattr(binding, function, refuse)

    with pytest.raises(NvmlError, match=r"^Driver Not Loaded$"):
        read()
    assert opened == []


def test_the_error_for_a_missing_nvml_binding_contains_the_install_command(monkeypatch):
    for name in ("pynvml", "ray._private.thirdparty", "ray._private.thirdparty.pynvml"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(NvmlError, match=r"the NVML binding is missing\. Run pip install nvidia-ml-py"):
        read_gpus()


@pytest.mark.parametrize("visible", ["", "-1", "GPU-z"], ids=["hidden", "hidden by number", "unknown name"])
def test_a_process_without_visible_gpus_has_no_counters(nvml, monkeypatch, visible):
    nvml(*split())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert GpuCounters.visible() is None


def test_energy_is_summed_over_the_visible_gpus_and_all_throttle_reasons_are_returned(nvml, monkeypatch):
    first = {**A100, "uuid": "GPU-a", "energy_mj": 1500, "throttled_by": 0x01 | 0x04}  # an idle GPU is not throttled
    second = {**A100, "uuid": "GPU-b", "energy_mj": 500, "throttled_by": 0x40}
    without_energy = {**A100, "uuid": "GPU-c", "throttled_by": 0x80}
    nvml(first, second, without_energy)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    counters = GpuCounters.visible()

    assert (counters.energy_j(), counters.throttled()) == (2.0, ("power cap", "temperature, by hardware"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert GpuCounters.visible().energy_j() is None


class NewerNvml(Nvml):
    """A driver and Python binding that report the memory that the driver reserves, as on a T4."""

    nvmlMemory_v2 = 0x02000028  # noqa: N815 - NVML's name

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):  # noqa: N802
        return SimpleNamespace(total=gpu["memory"], **({"reserved": 451 * 2**20} if version == 0x02000028 else {}))


def test_memory_that_the_driver_reserves_is_not_available(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", NewerNvml([{"name": "T4", "memory": 15360 * 2**20, "uuid": "GPU-a"}]))

    assert [gpu["memory_bytes"] for gpu in read_gpus()] == [14909 * 2**20]


def test_the_binding_in_ray_can_read_the_memory_that_the_driver_reserves():
    pynvml = pytest.importorskip("ray._private.thirdparty.pynvml")

    assert pynvml.nvmlMemory_v2
    assert "version" in pynvml.nvmlDeviceGetMemoryInfo.__code__.co_varnames
    assert {"total", "reserved"} <= {name for name, _ in pynvml.c_nvmlMemory_v2_t._fields_}


@pytest.mark.parametrize(
    ("variables", "gib"),
    [
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"}, [10, 40], id="HAMi for one device"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "8g"}, [8, 8], id="HAMi for all devices"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "1048576k"}, [1, 1], id="kibibytes"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g"}, [8, 4], id="the smaller"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "100g"}, [40, 40], id="more than the device has"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "0"}, [40, 40], id="no limit"),
        pytest.param({"GPU_MEMORY_LIMIT": str(20 * GIB)}, [20, 20], id="KAI in bytes"),
        pytest.param({"GPU_MEMORY_LIMIT": "12"}, [40, 40], id="another program's variable"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "half"}, [40, 40], id="not an amount"),
    ],
)
def test_the_memory_of_a_gpu_is_at_most_the_part_of_the_container(variables, gib, nvml, monkeypatch):
    nvml({**A100, "uuid": "GPU-a"}, {**A100, "uuid": "GPU-b"})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert [gpu["memory_bytes"] for gpu in read_gpus()] == [amount * GIB for amount in gib]
