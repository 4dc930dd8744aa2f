"""What the limiters of PyTorch, TensorFlow and CuPy ask of them; stand-ins have the calls that the limiters make.

The real frameworks show no GPU here. That the limits hold is for tests on a GPU (``tests/on_gpu``).
"""

from types import SimpleNamespace

import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers.gpu_memory.limiters import (
    cupy_still_holds,
    limit_cupy,
    limit_tensorflow,
    limit_torch,
    tensorflow_still_holds,
    torch_still_holds,
)
from tune_policies.trainers.gpu_memory.overhead import MeasuredOverhead, Overheads
from tune_policies.trainers.gpu_memory.share import GpuShare, LimiterContext

GIB = 2**30
TOTAL = 16 * GIB


def measured(framework, version):
    return MeasuredOverhead(
        gpu_model="H200",
        framework=framework,
        version=version,
        overhead_bytes=GIB,
        measured_on="2026-07-01",
        how="process",
    )


OVERHEADS = Overheads(
    measured=(measured("torch", "2.13.0"), measured("tensorflow", "2.21.0"), measured("cupy", "14.2"))
)


def holding(on_void_limit="raise", share=5 * GIB):
    return LimiterContext(GpuShare(fraction=0.3333, memory_bytes=share), OVERHEADS, on_void_limit)


class BackEnd:
    """``torch.cuda``, ``torch.xpu`` or ``torch.npu`` with one device."""

    def __init__(self, *, reserved=0, allocator="native"):
        self.reserved = reserved
        self.allocator = allocator
        self.fractions = {}

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=TOTAL, name="H200")

    def memory_reserved(self, device):
        return self.reserved

    def get_allocator_backend(self):
        return self.allocator

    def set_per_process_memory_fraction(self, fraction, device):
        self.fractions[device] = fraction

    def get_per_process_memory_fraction(self, device):
        return self.fractions[device]


class OldBackEnd:
    def is_available(self):
        return True


class Apple:
    fraction = None

    def is_available(self):
        return True

    def recommended_max_memory(self):
        return 10 * GIB

    def set_per_process_memory_fraction(self, fraction):
        self.fraction = fraction


def torch(**back_ends):
    hidden = SimpleNamespace(is_available=lambda: False)
    apple = back_ends.pop("mps", hidden)
    return SimpleNamespace(
        __version__="2.13.0", backends=SimpleNamespace(mps=apple), mps=apple, **{"cuda": hidden, **back_ends}
    )


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "TF_GPU_ALLOCATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)


@pytest.mark.parametrize("name", ["cuda", "xpu", "npu"])
def test_each_back_end_of_torch_is_held_to_a_fraction_of_its_device(name):
    back_end, held = BackEnd(), holding()

    assert limit_torch(torch(**{name: back_end}), held)
    assert back_end.fractions == {0: 0.25}
    assert held.report.limit_bytes == {"torch": 4 * GIB}


def test_a_share_is_never_more_than_its_part_of_what_the_framework_has_of_the_device():
    back_end = BackEnd()
    held = LimiterContext(GpuShare(fraction=0.25, memory_bytes=5 * GIB), OVERHEADS)

    limit_torch(torch(cuda=back_end), held)

    assert (held.report.share_bytes, held.report.limit_bytes) == (4 * GIB, {"torch": 3 * GIB})


def test_what_holds_is_written_down_with_the_source_of_the_overhead():
    held = holding()

    limit_torch(torch(cuda=BackEnd()), held)

    assert held.report.share_bytes == 5 * GIB
    assert held.report.overhead_bytes == {"torch": GIB}
    assert held.report.overhead_sources == {"torch": "measured on 2026-07-01 (H200, torch 2.13.0, by process)"}
    assert held.report.isolation == "framework"


@pytest.mark.parametrize(("fraction", "expected"), [(None, True), (0.125, True), (1.0, False)])
def test_a_fraction_that_was_raised_later_holds_no_more(fraction, expected):
    back_end, held = BackEnd(), holding()
    limit_torch(torch(cuda=back_end), held)
    if fraction:
        back_end.set_per_process_memory_fraction(fraction, 0)

    assert torch_still_holds(torch(cuda=back_end), held.report.limit_bytes["torch"]) == expected


def test_apples_back_end_is_held_to_a_fraction_of_what_metal_recommends():
    apple, held = Apple(), LimiterContext(GpuShare(fraction=0.585))

    assert limit_torch(torch(mps=apple), held)
    assert apple.fraction == pytest.approx(0.5)


def test_a_torch_without_any_gpu_sees_none():
    assert not limit_torch(torch(), holding())


def test_a_smaller_fraction_that_the_user_set_for_torch_is_kept(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.125")
    back_end, held = BackEnd(), holding()

    limit_torch(torch(cuda=back_end), held)

    assert (back_end.fractions, held.report.limit_bytes) == ({0: 0.125}, {"torch": 2 * GIB})


def test_a_back_end_of_an_older_torch_is_not_enforceable():
    held = holding()

    assert limit_torch(torch(xpu=OldBackEnd()), held)
    assert (held.report.not_enforceable, held.report.limit_bytes) == (["torch.xpu"], {})


def test_a_torch_that_holds_more_than_its_budget_is_too_late():
    with pytest.raises(MemoryLimitError, match=r"torch already holds 4\.5 GiB of GPU 0, more than its budget of 4 GiB"):
        limit_torch(torch(cuda=BackEnd(reserved=int(4.5 * GIB))), holding())


def test_a_pluggable_allocator_voids_torchs_limit():
    with pytest.raises(MemoryLimitError, match=r"'pluggable' knows no limit.*on_void_limit=\"warn\""):
        limit_torch(torch(cuda=BackEnd(allocator="pluggable")), holding())


def test_a_void_limit_is_a_warning_in_the_result_where_the_user_insists():
    held = holding(on_void_limit="warn")

    assert limit_torch(torch(cuda=BackEnd(allocator="pluggable")), held)
    assert held.report.warnings == ["torch's allocator 'pluggable' knows no limit: use the native one"]
    assert (held.report.limit_bytes, held.report.isolation) == ({}, None)


@pytest.mark.parametrize("framework", ["tensorflow", "cupy"])
def test_a_void_limit_is_not_claimed(framework, monkeypatch):
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    held = holding(on_void_limit="warn")

    assert limit_tensorflow(tensorflow(), held) if framework == "tensorflow" else limit_cupy(cupy(allocator=1), held)
    assert (held.report.limit_bytes, held.report.isolation, len(held.report.warnings)) == ({}, None, 1)


def test_cudas_asynchronous_allocator_keeps_torchs_limit_with_a_remark():
    held = holding()

    limit_torch(torch(cuda=BackEnd(allocator="cudaMallocAsync")), held)

    assert held.report.limit_bytes == {"torch": 4 * GIB}
    assert "cudaMallocAsync limits what tensors use" in held.report.warnings[0]


class TensorFlowConfig:
    """``tensorflow.config`` with one GPU; starting is what the first tensor does."""

    def __init__(self, *, growth=False, started=False):
        self.growth = growth
        self.started = started
        self.limits = None
        self.experimental = self

    def LogicalDeviceConfiguration(self, memory_limit):  # noqa: N802 - TensorFlow's name
        return SimpleNamespace(memory_limit=memory_limit)

    def list_physical_devices(self, kind):
        return ["/physical_device:GPU:0"]

    def get_device_details(self, device):
        return {"device_name": "H200", "compute_capability": (9, 0)}

    def get_memory_growth(self, device):
        return self.growth

    def get_logical_device_configuration(self, device):
        return self.limits

    def set_logical_device_configuration(self, device, limits):
        if self.started:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits = limits


def tensorflow(**state):
    return SimpleNamespace(__version__="2.21.0", config=TensorFlowConfig(**state))


def test_tensorflow_is_held_by_a_logical_device():
    module, held = tensorflow(), holding()

    assert limit_tensorflow(module, held)
    assert [each.memory_limit for each in module.config.limits] == [4 * 1024]
    assert held.report.limit_bytes == {"tensorflow": 4 * GIB}


def test_the_same_share_again_is_no_error_after_tensorflow_has_started():
    module, held = tensorflow(), holding()
    limit_tensorflow(module, holding())
    module.config.started = True

    assert limit_tensorflow(module, held)
    assert held.report.limit_bytes == {"tensorflow": 4 * GIB}


def test_a_tensorflow_that_has_started_is_too_late():
    with pytest.raises(MemoryLimitError, match="tensorflow's runtime has started"):
        limit_tensorflow(tensorflow(started=True), holding())


def test_growth_that_tensorflow_drops_is_told():
    held = holding()

    limit_tensorflow(tensorflow(growth=True), held)

    assert held.report.warnings[0].startswith("TensorFlow drops set_memory_growth beside a memory limit")


def test_cudas_asynchronous_allocator_voids_tensorflows_limit(monkeypatch):
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")

    with pytest.raises(MemoryLimitError, match="TF_GPU_ALLOCATOR=cuda_malloc_async"):
        limit_tensorflow(tensorflow(), holding())


@pytest.mark.parametrize(("megabytes", "expected"), [(None, True), (1024, True), (8192, False)])
def test_a_logical_device_that_was_made_larger_later_holds_no_more(megabytes, expected):
    module, held = tensorflow(), holding()
    limit_tensorflow(module, held)
    if megabytes:
        module.config.limits = [SimpleNamespace(memory_limit=megabytes)]

    assert tensorflow_still_holds(module, held.report.limit_bytes["tensorflow"]) == expected


def test_an_allocator_without_a_limit_that_was_set_later_voids_tensorflows(monkeypatch):
    module, held = tensorflow(), holding()
    limit_tensorflow(module, held)
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")

    assert not tensorflow_still_holds(module, held.report.limit_bytes["tensorflow"])


class CupyCuda:
    """``cupy.cuda`` with one device."""

    def __init__(self, *, held, allocator):
        self.held = held
        self.allocator = allocator
        self.limit = None
        self.runtime = self

    def __call__(self, number):  # cupy.cuda.Device(number)
        return self

    Device = property(lambda self: self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def is_available(self):
        return True

    def getDeviceCount(self):  # noqa: N802 - CuPy's name
        return 1

    def getDeviceProperties(self, device):  # noqa: N802 - CuPy's name
        return {"totalGlobalMem": TOTAL, "name": b"H200"}

    def get_allocator(self):
        return self.allocator or self.malloc

    def malloc(self, size):
        raise NotImplementedError

    def total_bytes(self):
        return self.held

    def set_limit(self, *, size):
        self.limit = size

    def get_limit(self):
        return self.limit


def cupy(*, held=0, allocator=None):
    cuda = CupyCuda(held=held, allocator=allocator)
    return SimpleNamespace(__version__="14.2", cuda=cuda, get_default_memory_pool=lambda: cuda)


@pytest.mark.parametrize(("own", "expected"), [(None, 4 * GIB), ("10%", int(1.6 * GIB)), ("50%", 4 * GIB)])
def test_cupys_pool_is_held_to_its_budget_or_to_the_users_own_smaller_limit(own, expected, monkeypatch):
    if own:
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", own)
    module, held = cupy(), holding()

    assert limit_cupy(module, held)
    assert (module.cuda.limit, held.report.limit_bytes) == (expected, {"cupy": expected})


def test_a_cupy_that_holds_more_than_its_budget_is_too_late():
    with pytest.raises(MemoryLimitError, match=r"cupy already holds 4\.5 GiB"):
        limit_cupy(cupy(held=int(4.5 * GIB)), holding())


def test_a_limit_of_the_users_that_cupy_cannot_read_is_named(monkeypatch):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "inf%")
    module = cupy()
    monkeypatch.setattr(CupyCuda, "total_bytes", lambda self: int("inf%"))  # it reads the variable only now

    with pytest.raises(MemoryLimitError, match=r"CuPy cannot read CUPY_GPU_MEMORY_LIMIT=inf%"):
        limit_cupy(module, holding())


def test_another_allocator_voids_cupys_limit():
    with pytest.raises(MemoryLimitError, match="default memory pool was replaced"):
        limit_cupy(cupy(allocator=print), holding())


@pytest.mark.parametrize(("limit", "expected"), [(None, True), (GIB, True), (16 * GIB, False), (0, False)])
def test_a_pool_whose_limit_was_lifted_later_holds_no_more(limit, expected):
    module, held = cupy(), holding()
    limit_cupy(module, held)
    if limit is not None:
        module.cuda.set_limit(size=limit)

    assert cupy_still_holds(module, held.report.limit_bytes["cupy"]) == expected


def test_a_pool_that_was_replaced_later_holds_no_more():
    module, held = cupy(), holding()
    limit_cupy(module, held)
    module.cuda.allocator = print

    assert not cupy_still_holds(module, held.report.limit_bytes["cupy"])
