"""Tests of memory limits: the memory of the GPU fraction minus the overhead, in the unit of each framework."""

import pytest

from tune_policies import InvalidResourcesError, MemoryLimitError
from tune_policies.trainers import GpuMemoryLimit
from tune_policies.trainers.gpu_memory.fraction_limits import GpuShare

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "convert", "expected"),
    [
        pytest.param("6GiB", lambda limit: limit.torch_fraction(16 * GIB), (6 - 0.85) / 16, id="torch: a fraction"),
        pytest.param("16GiB", lambda limit: limit.torch_fraction(8 * GIB), 1.0, id="torch: at most the device"),
        pytest.param("12.85GiB", lambda limit: limit.torch_mps_fraction(8 * GIB), 1.5, id="Apple: more than 1"),
        pytest.param("80GiB", lambda limit: limit.torch_mps_fraction(8 * GIB), 2.0, id="Apple: at most 2"),
        pytest.param("8GiB", lambda limit: limit.jax_fraction(24 * GIB), 0.297916, id="JAX: rounded down"),
        pytest.param("16GiB", lambda limit: limit.jax_fraction(8 * GIB), 1.0, id="JAX: at most the device"),
        pytest.param("6GiB", lambda limit: limit.cupy_limit_bytes(), 6 * GIB - int(0.85 * GIB), id="CuPy: bytes"),
        *(
            pytest.param(
                "6GiB",
                lambda limit, capability=capability: limit.tensorflow_memory_limit_mb(capability),
                6 * 1024 - overhead,
                id=f"TensorFlow: MiB on {capability}",
            )
            for capability, overhead in (((8, 0), 1536), ((9, 0), 1800), (None, 1800))
        ),
    ],
)
def test_each_framework_gets_the_memory_of_the_fraction_minus_its_overhead(limit, convert, expected):
    assert convert(GpuMemoryLimit(limit)) == pytest.approx(expected, rel=1e-9)


def test_the_fraction_for_mps_is_never_zero_because_zero_means_unlimited():
    assert GpuMemoryLimit(int(0.85 * GIB) + 1).torch_mps_fraction(500 * GIB) > 0


def test_a_measured_overhead_replaces_the_safe_default():
    limit = GpuMemoryLimit("6GiB", overhead_bytes={"torch": GIB // 2, "tensorflow": GIB})

    assert (limit.torch_fraction(11 * GIB), limit.tensorflow_memory_limit_mb()) == (0.5, 5 * 1024)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "cupy"])
def test_a_fraction_without_room_for_tensors_raises_an_error_with_a_fix(framework):
    with pytest.raises(
        MemoryLimitError, match=rf"512 MiB leaves no memory for tensors, because {framework} .* fewer trials per GPU"
    ):
        GpuMemoryLimit("512MiB").budget_bytes(framework)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GpuMemoryLimit("6 gigs"), "limit_bytes must be a number of bytes above 0"),
        (lambda: GpuMemoryLimit("50%"), "limit_bytes must be a number of bytes above 0"),
        (lambda: GpuMemoryLimit("6GiB").torch_fraction(0), "total_bytes must be a number of bytes above 0"),
        (
            lambda: GpuMemoryLimit("6GiB").torch_mps_fraction(0),
            "recommended_max_bytes must be a number of bytes above 0",
        ),
        (lambda: GpuMemoryLimit("6GiB").jax_fraction(-1), "total_bytes must be a number of bytes above 0"),
        (lambda: GpuMemoryLimit("6GiB").budget_bytes("tensorflw"), "framework 'tensorflw'; did you mean 'tensorflow'"),
    ],
)
def test_an_invalid_argument_is_named_in_the_error(call, message):
    with pytest.raises(InvalidResourcesError, match=message):
        call()


@pytest.mark.parametrize(
    ("memory_bytes", "total_gib", "expected_gib"),
    [(None, 80, 20), (8 * GIB, 80, 8), (8 * GIB, 32, 8), (8 * GIB, 16, 4)],
)
def test_a_limit_is_the_planned_memory_but_at_most_the_fraction_of_the_device(memory_bytes, total_gib, expected_gib):
    assert GpuShare(fraction=0.25, memory_bytes=memory_bytes).bytes_of(total_gib * GIB) == expected_gib * GIB
