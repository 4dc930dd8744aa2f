"""Tests of the calls that each limiter makes to its framework. Stand-ins define the functions that the limiters use.

The real frameworks detect no GPU in these tests. The tests in ``tests/on_gpu`` check that the limits are enforced.
"""

import os
import sys
from types import SimpleNamespace

import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers.gpu_memory import fraction_limits, framework_limiters
from tune_policies.trainers.gpu_memory.fraction_limits import FractionLimits, GpuShare, LimitOptions
from tune_policies.trainers.gpu_memory.framework_limiters import LIMITERS
from tune_policies.trainers.gpu_memory.framework_overhead import MeasuredOverhead, Overheads
from tune_policies.trainers.gpu_memory.framework_settings import OwnEnvironment

GIB = 2**30
TOTAL = 16 * GIB
VERSIONS = {"torch": "2.13.0", "tensorflow": "2.21.0", "cupy": "14.2", "jax": "0.10.2"}


def measured(framework, gpu_model="H200"):
    return MeasuredOverhead(
        gpu_model=gpu_model,
        framework=framework,
        version=VERSIONS[framework],
        overhead_bytes=GIB,
        measured_on="2026-07-01",
        how="process",
    )


OVERHEADS = Overheads(measured=tuple(measured(name) for name in ("torch", "tensorflow", "cupy")))


def limits_of(on_unenforced_limit="raise", gib=5.0, fraction=0.3333, environment=None):
    options = LimitOptions(on_unenforced_limit=on_unenforced_limit, overheads=OVERHEADS)
    share = GpuShare(fraction=fraction, memory_bytes=int(gib * GIB))
    return FractionLimits(share, options, environment or OwnEnvironment())


def limit(framework, module, limits=None):
    """Limit a framework that detects a GPU, and return the limits."""
    limits = limits or limits_of()
    assert LIMITERS[framework].limit(module, limits)
    return limits


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    monkeypatch.setattr(fraction_limits, "are_gpus_simulated", lambda: False)  # the frameworks here detect a GPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # hide the GPUs of the machine, if it has any
    for name in (
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "TF_GPU_ALLOCATOR"),
        *("CUPY_GPU_MEMORY_LIMIT", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"),
        *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY"),
        "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB",
    ):
        monkeypatch.setenv(name, "")  # makes monkeypatch restore the variable after the test
        monkeypatch.delenv(name)


class BackEnd:
    """A stand-in for ``torch.cuda``, ``torch.xpu`` or ``torch.npu`` with one device."""

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


class Apple:
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
        __version__=VERSIONS["torch"],
        backends=SimpleNamespace(mps=apple),
        mps=apple,
        **{"cuda": hidden, **back_ends},
    )


class TensorFlowConfig:
    """A stand-in for ``tensorflow.config`` with one GPU. The first tensor starts the runtime."""

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
    return SimpleNamespace(__version__=VERSIONS["tensorflow"], config=TensorFlowConfig(**state))


class CupyCuda:
    """A stand-in for ``cupy.cuda`` with one device."""

    def __init__(self, *, held=0, allocator=None):
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
        return int(self.held)

    def set_limit(self, *, size):
        self.limit = size

    def get_limit(self):
        return self.limit


def cupy(**state):
    cuda = CupyCuda(**state)
    return SimpleNamespace(__version__=VERSIONS["cupy"], cuda=cuda, get_default_memory_pool=lambda: cuda)


@pytest.fixture
def jax(monkeypatch):
    """Return a function that builds a stand-in for JAX with a plugin, by default for CUDA."""

    def build(
        *, has_started=False, platform="gpu", platforms=None, plugin="xla_cuda12", bytes_limit=None, options=None
    ):
        bridge = SimpleNamespace(backends_are_initialized=lambda: has_started)
        monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "jax._src", SimpleNamespace(xla_bridge=bridge))
        monkeypatch.setattr(framework_limiters, "entry_points", lambda group: [SimpleNamespace(name=plugin)])
        stats = bytes_limit and {"bytes_limit": bytes_limit}
        return SimpleNamespace(
            __version__=VERSIONS["jax"],
            devices=lambda: [SimpleNamespace(platform=platform)],
            local_devices=lambda: [SimpleNamespace(platform=platform, memory_stats=lambda: stats)],
            config=SimpleNamespace(jax_platforms=platforms, jax_pjrt_client_create_options=options),
        )

    return build


def jax_limits(gib=4.85, environment=None):
    """Return limits on a device of 16 GiB. The plan determines this size, because the device cannot be read."""
    return limits_of(gib=gib, fraction=gib / 16, environment=environment)


@pytest.mark.parametrize("name", ["cuda", "xpu", "npu"])
def test_each_back_end_of_torch_is_limited_to_a_fraction_of_its_device(name):
    back_end = BackEnd()

    limits = limit("torch", torch(**{name: back_end}))

    assert (back_end.fractions, limits.limit_bytes) == ({0: 0.25}, {"torch": 4 * GIB})
    assert (limits.share_bytes, limits.isolation) == (5 * GIB, "framework")
    assert limits.overheads == {"torch": (GIB, measured("torch"))}


def test_the_limit_is_at_most_the_fraction_of_the_visible_device():
    limits = limit("torch", torch(cuda=BackEnd()), limits_of(fraction=0.25))

    assert (limits.share_bytes, limits.limit_bytes) == (4 * GIB, {"torch": 3 * GIB})


def test_the_mps_back_end_is_limited_to_a_fraction_of_the_recommended_memory():
    apple = Apple()

    limit("torch", torch(mps=apple), FractionLimits(GpuShare(fraction=0.585)))

    assert apple.fraction == pytest.approx(0.5)


def test_torch_without_a_gpu_is_not_limited():
    assert not LIMITERS["torch"].limit(torch(), limits_of())


@pytest.mark.parametrize(
    ("name", "value", "fraction"),
    [
        ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.125", 0.125),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            "roundup_power2_divisions:[256:1,512:2], per_process_memory_fraction : .125",
            0.125,
        ),
        ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.75", 0.25),
        ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:much", 0.25),
    ],
)
def test_the_users_smaller_fraction_for_torch_has_precedence(name, value, fraction, monkeypatch):
    monkeypatch.setenv(name, value)
    back_end = BackEnd()

    limits = limit("torch", torch(cuda=back_end))

    assert (back_end.fractions, limits.limit_bytes) == ({0: fraction}, {"torch": int(TOTAL * fraction)})


def test_the_limit_of_a_back_end_of_an_older_torch_version_is_reported_as_not_enforceable():
    limits = limit("torch", torch(xpu=SimpleNamespace(is_available=lambda: True)))

    assert (limits.not_enforceable, limits.limit_bytes) == (["torch.xpu"], {})


def test_tensorflow_is_limited_by_a_logical_device():
    module = tensorflow()

    limits = limit("tensorflow", module)

    assert [each.memory_limit for each in module.config.limits] == [4 * 1024]
    assert limits.limit_bytes == {"tensorflow": 4 * GIB}


def test_after_tensorflows_start_the_same_limit_is_accepted():
    module = tensorflow()
    limit("tensorflow", module)
    module.config.started = True

    assert limit("tensorflow", module).limit_bytes == {"tensorflow": 4 * GIB}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, 4 * GIB),
        ("1073741824", GIB),
        ("10%", int(1.6 * GIB)),
        ("50%", 4 * GIB),
        ("0", 4 * GIB),  # no limit
        ("nan%", 4 * GIB),
        ("-5", 4 * GIB),
    ],
)
def test_cupys_pool_is_limited_to_its_budget_or_the_users_smaller_limit(own, expected, monkeypatch):
    if own:
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", own)
    module = cupy()

    limits = limit("cupy", module)

    assert (module.cuda.limit, limits.limit_bytes) == (expected, {"cupy": expected})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"XLA_CLIENT_MEM_FRACTION": "0.250000", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.250000"}),
        (
            {"XLA_CLIENT_MEM_FRACTION": ".1", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
            {"XLA_CLIENT_MEM_FRACTION": "0.100000", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
        ),
        ({"XLA_CLIENT_MEM_FRACTION": "3.2"}, {"XLA_CLIENT_MEM_FRACTION": "0.250000"}),
    ],
    ids=[
        "under the new name",
        "under the old name, set by the user",
        "a smaller fraction stays",
        "host memory is not used",
    ],
)
def test_jax_is_limited_by_environment_variables_before_it_starts(jax, environ, expected, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    limits = limit("jax", jax(), jax_limits())

    assert {name: os.environ[name] for name in expected} == expected
    assert limits.limit_bytes["jax"] == pytest.approx(float(expected[next(iter(expected))]) * TOTAL, rel=1e-5)


@pytest.mark.parametrize(("own", "expected"), [(None, "0.500000"), (".3", "0.300000")])
def test_a_later_limit_replaces_an_earlier_limit_but_not_the_users_setting(jax, own, expected, monkeypatch):
    if own:
        monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", own)
    environment = OwnEnvironment()
    limit("jax", jax(), jax_limits(environment=environment))

    limit("jax", jax(), jax_limits(8.85, environment))

    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == expected


@pytest.mark.parametrize("gib", [2.85, 4.85, 8.85], ids=["smaller", "the same", "larger"])
def test_after_jaxs_start_only_the_same_limit_is_accepted(jax, gib):
    environment = OwnEnvironment()
    limit("jax", jax(), jax_limits(environment=environment))
    later = jax_limits(gib, environment)

    if gib == 4.85:
        assert limit("jax", jax(has_started=True), later).limit_bytes
    else:
        with pytest.raises(MemoryLimitError, match="JAX's back end has started"):
            limit("jax", jax(has_started=True), later)


@pytest.mark.parametrize(
    "state",
    [{"has_started": True, "platform": "cpu"}, {"platforms": "cpu"}, {"plugin": "xla_metal"}],
    ids=["it has started on the CPU", "it may use only the CPU", "no GPU plugin is installed"],
)
def test_jax_without_a_gpu_is_not_limited(jax, state):
    assert not LIMITERS["jax"].limit(jax(**state), jax_limits())
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ


@pytest.mark.parametrize(
    ("framework", "module", "environ", "message"),
    [
        (
            "torch",
            lambda: torch(cuda=BackEnd(reserved=int(4.5 * GIB))),
            {},
            r"torch already uses 4\.5 GiB of GPU 0, which exceeds its budget of 4 GiB",
        ),
        ("cupy", lambda: cupy(held=int(4.5 * GIB)), {}, r"cupy already uses 4\.5 GiB"),
        ("cupy", lambda: cupy(held="inf%"), {"CUPY_GPU_MEMORY_LIMIT": "inf%"}, "CuPy cannot parse CUPY.*=inf%"),
        ("tensorflow", lambda: tensorflow(started=True), {}, "tensorflow's runtime has started"),
        ("jax", {"has_started": True}, {}, "JAX's back end has started"),
        (
            "jax",
            {},
            {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"},
            "Unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        ),
    ],
)
def test_a_limit_that_cannot_be_set_raises_an_error(jax, framework, module, environ, message, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    built = jax(**module) if framework == "jax" else module()

    with pytest.raises(MemoryLimitError, match=message):
        LIMITERS[framework].limit(built, jax_limits() if framework == "jax" else limits_of())


UNENFORCED = [
    ("torch", lambda: torch(cuda=BackEnd(allocator="pluggable")), {}, "'pluggable' does not support a limit"),
    ("tensorflow", tensorflow, {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, "TF_GPU_ALLOCATOR=cuda_malloc_async"),
    ("cupy", lambda: cupy(allocator=print), {}, "default memory pool was replaced"),
    ("jax", {"options": {"memory_fraction": 0.9}}, {}, "memory_fraction in jax_pjrt_client_create_options overrides"),
    ("jax", {"options": "a:1;allocator:platform"}, {}, "allocator in jax_pjrt_client_create_options overrides"),
    ("jax", {}, {"TF_FORCE_UNIFIED_MEMORY": "true"}, "TF_FORCE_UNIFIED_MEMORY=true disables"),
    *(
        ("jax", {}, {"XLA_PYTHON_CLIENT_ALLOCATOR": name}, f"XLA_PYTHON_CLIENT_ALLOCATOR={name.lower()} disables")
        for name in ("platform", "CUDA_ASYNC", "vmm")
    ),
]


@pytest.mark.parametrize(("framework", "module", "environ", "message"), UNENFORCED)
def test_a_setting_that_disables_the_limit_causes_an_error_or_a_warning(
    jax, framework, module, environ, message, monkeypatch
):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    built = jax(**module) if framework == "jax" else module()
    accepted = limits_of(on_unenforced_limit="warn")

    with pytest.raises(MemoryLimitError, match=f'{message}.*on_unenforced_limit="warn"'):
        LIMITERS[framework].limit(built, limits_of())
    assert LIMITERS[framework].limit(built, accepted)
    assert (accepted.limit_bytes, accepted.isolation, len(accepted.warnings)) == ({}, None, 1)


@pytest.mark.parametrize(
    "environ",
    [{"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"}, {"TF_FORCE_UNIFIED_MEMORY": "0"}],
)
def test_a_setting_that_does_not_affect_jaxs_limit_is_accepted(jax, environ, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert limit("jax", jax(options="max_inflight_computations:1"), jax_limits()).limit_bytes


@pytest.mark.parametrize(
    ("framework", "module", "environ", "message"),
    [
        (
            "torch",
            lambda: torch(cuda=BackEnd(allocator="cudaMallocAsync")),
            {},
            "cudaMallocAsync limits the memory of tensors",
        ),
        (
            "tensorflow",
            lambda: tensorflow(growth=True),
            {},
            "TensorFlow ignores set_memory_growth if there is a memory limit",
        ),
        ("jax", {}, {"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": "64"}, "reserves memory that"),
    ],
)
def test_a_setting_that_weakens_the_limit_causes_a_warning(jax, framework, module, environ, message, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    limits = limit(framework, jax() if framework == "jax" else module(), jax_limits() if framework == "jax" else None)

    assert message in limits.warnings[0]
    assert limits.limit_bytes[framework] == pytest.approx(4 * GIB, rel=1e-5)


def changed(name, value):
    return lambda module: setattr(module, name, value)


@pytest.mark.parametrize(
    ("framework", "build", "change", "is_in_force"),
    [
        ("torch", lambda: torch(cuda=BackEnd()), lambda module: None, True),
        ("torch", lambda: torch(cuda=BackEnd()), lambda module: changed("fractions", {0: 0.125})(module.cuda), True),
        ("torch", lambda: torch(cuda=BackEnd()), lambda module: changed("fractions", {0: 1.0})(module.cuda), False),
        ("tensorflow", tensorflow, lambda module: None, True),
        *(
            (
                "tensorflow",
                tensorflow,
                lambda module, size=size: changed("limits", [SimpleNamespace(memory_limit=size)])(module.config),
                size == 1024,
            )
            for size in (1024, 8192)
        ),
        ("tensorflow", tensorflow, lambda module: os.environ.update(TF_GPU_ALLOCATOR="cuda_malloc_async"), False),
        ("cupy", cupy, lambda module: None, True),
        ("cupy", cupy, lambda module: module.cuda.set_limit(size=GIB), True),
        ("cupy", cupy, lambda module: module.cuda.set_limit(size=TOTAL), False),
        ("cupy", cupy, lambda module: module.cuda.set_limit(size=0), False),
        ("cupy", cupy, lambda module: changed("allocator", print)(module.cuda), False),
    ],
)
def test_a_limit_is_in_force_until_it_is_raised_or_removed(framework, build, change, is_in_force):
    module = build()
    limits = limit(framework, module)

    change(module)

    assert LIMITERS[framework].is_in_force(module, limits) == is_in_force


@pytest.mark.parametrize(
    ("environ", "state", "is_in_force"),
    [
        ({}, {}, True),
        ({"XLA_CLIENT_MEM_FRACTION": "0.9"}, {}, False),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, {}, False),
        ({}, {"has_started": True, "bytes_limit": 3 * GIB}, True),
        ({}, {"has_started": True, "bytes_limit": int(4.1 * GIB)}, True),
        ({}, {"has_started": True, "bytes_limit": 12 * GIB}, False),
        ({}, {"has_started": True}, False),
    ],
)
def test_jaxs_limit_is_checked_in_the_environment_and_then_on_the_devices(
    jax, environ, state, is_in_force, monkeypatch
):
    limits = limit("jax", jax(), jax_limits())
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert LIMITERS["jax"].is_in_force(jax(**state), limits) == is_in_force
