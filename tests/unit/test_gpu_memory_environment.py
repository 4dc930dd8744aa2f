import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers import GpuMemoryLimit

GIB = 2**30
OVERHEAD = dict.fromkeys(["torch", "tensorflow", "jax", "cupy"], GIB)


def variables(framework, version, environ=()):
    """What a share of 5 GiB on a device of 8 GiB sets, of which the framework needs 1 GiB for itself."""
    limit = GpuMemoryLimit(5 * GIB, overhead_bytes=OVERHEAD)
    return limit.environment({framework: version}, 8 * GIB, dict(environ))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.500000"}),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True, max_split_size_mb:128"},
            {
                "PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128,"
                "per_process_memory_fraction:0.500000"
            },
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "max_split_size_mb:128"},
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.500000"},
        ),
        (
            {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"},
            {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.500000"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.25"},
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.250000"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.75"},
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.500000"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],backend:native"},
            {
                "PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],backend:native,"
                "per_process_memory_fraction:0.500000"
            },
        ),
    ],
    ids=[
        "in the general variable",
        "beside other settings",
        "in CUDA's own variable, which wins",
        "in ROCm's own variable",
        "a smaller fraction of the user's is kept",
        "a larger one is not",
        "a list with commas is kept whole",
    ],
)
def test_torch_is_limited_by_its_allocators_settings(environ, expected):
    assert variables("torch", "2.10.0", environ) == expected


@pytest.mark.parametrize("version", ["2.9.1+cu128", "2.4.0"])
def test_a_torch_that_would_refuse_the_setting_is_not_given_it(version):
    assert variables("torch", version) == {}


@pytest.mark.parametrize("version", ["2.10.0a0+gitabc", "2.13.0+cu128", "3.0"])
def test_a_torch_that_knows_the_setting_is_given_it(version):
    assert variables("torch", version) == {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.500000"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"XLA_CLIENT_MEM_FRACTION": "0.500000", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
        (
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"},
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.500000", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        (
            {"XLA_CLIENT_MEM_FRACTION": ".25", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
            {"XLA_CLIENT_MEM_FRACTION": "0.250000", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
        ),
        (
            {"XLA_CLIENT_MEM_FRACTION": "3.2"},
            {"XLA_CLIENT_MEM_FRACTION": "0.500000", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
    ],
    ids=[
        "by the new name",
        "by the old name where the user has it",
        "a smaller fraction of the user's is kept",
        "one that spills into host memory is not",
    ],
)
def test_jax_is_limited_by_one_name_only(environ, expected):
    assert variables("jax", "0.10.2", environ) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "CUDA_ASYNC"),
        ("TF_FORCE_UNIFIED_MEMORY", "1"),
        ("TF_FORCE_UNIFIED_MEMORY", "true"),
        ("JAX_PJRT_CLIENT_CREATE_OPTIONS", "max_inflight_computations:1;memory_fraction:0.9"),
        ("JAX_PJRT_CLIENT_CREATE_OPTIONS", "allocator:platform"),
        ("JAX_PJRT_CLIENT_CREATE_OPTIONS", "gpu_system_memory_size:1000"),
    ],
)
def test_a_setting_that_turns_jaxs_limit_into_none_is_an_error(name, value):
    setting = value.split(";")[-1].partition(":")[0] if name.startswith("JAX") else name

    with pytest.raises(MemoryLimitError, match=setting):
        variables("jax", "0.10.2", {name: value})


@pytest.mark.parametrize(
    "environ",
    [
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"},
        {"TF_FORCE_UNIFIED_MEMORY": "0"},
        {"JAX_PJRT_CLIENT_CREATE_OPTIONS": "max_inflight_computations:1"},
    ],
)
def test_a_setting_that_lets_jaxs_limit_be_is_none(environ):
    assert variables("jax", "0.10.2", environ)["XLA_CLIENT_MEM_FRACTION"] == "0.500000"


def test_both_of_jaxs_names_at_once_are_an_error_that_says_which_to_unset():
    with pytest.raises(MemoryLimitError, match="unset the second, the old name"):
        variables("jax", "0.10.2", {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"})


@pytest.mark.parametrize(
    ("own", "expected"),
    [(None, 4 * GIB), ("1073741824", GIB), ("25%", 2 * GIB), ("75%", 4 * GIB), ("0", 4 * GIB)],
    ids=["no own", "smaller in bytes", "smaller in percent", "larger", "0 is no limit"],
)
def test_cupy_is_limited_to_the_smaller_of_its_budget_and_the_users_own_limit(own, expected):
    environ = {"CUPY_GPU_MEMORY_LIMIT": own} if own else {}

    assert variables("cupy", "14.2.0", environ) == {"CUPY_GPU_MEMORY_LIMIT": str(expected)}


@pytest.mark.parametrize("own", ["lots", "inf%", "nan%", "-5", "-5%"])
def test_a_limit_that_cupy_cannot_read_is_replaced(own):
    assert variables("cupy", "14.2.0", {"CUPY_GPU_MEMORY_LIMIT": own}) == {"CUPY_GPU_MEMORY_LIMIT": str(4 * GIB)}


def test_tensorflow_has_no_variable():
    assert variables("tensorflow", "2.21.0") == {}
