import pytest

from tune_policies import InvalidResourcesError, MemoryLimitError
from tune_policies.trainers import GpuMemoryLimit
from tune_policies.trainers.gpu_memory.share import GpuShare

GIB = 2**30


def test_torch_gets_the_share_less_its_overhead_as_a_fraction_of_the_total():
    fraction = GpuMemoryLimit("6GiB").torch_fraction(total_bytes=16 * GIB)

    assert fraction == pytest.approx((6 - 0.85) / 16)


def test_eight_workers_with_their_overhead_fit_one_device():
    limit = GpuMemoryLimit(80 * GIB // 8)

    assert 8 * (limit.torch_fraction(80 * GIB) * 80 + 0.85) == pytest.approx(80)


@pytest.mark.parametrize("convert", ["torch_fraction", "jax_fraction"])
def test_a_fraction_is_never_above_the_whole_device(convert):
    assert getattr(GpuMemoryLimit("16GiB"), convert)(8 * GIB) == 1.0


def test_apples_fraction_may_be_above_what_metal_recommends():
    assert GpuMemoryLimit("12.85GiB").torch_mps_fraction(8 * GIB) == pytest.approx(1.5)


def test_apples_fraction_ends_at_twice_what_metal_recommends():
    assert GpuMemoryLimit("80GiB").torch_mps_fraction(8 * GIB) == 2.0


def test_apples_fraction_is_never_the_zero_that_means_unlimited():
    assert GpuMemoryLimit(int(0.85 * GIB) + 1).torch_mps_fraction(500 * GIB) > 0


def test_jax_gets_a_fraction_that_is_not_rounded_up():
    limit = GpuMemoryLimit(8 * GIB)

    assert limit.jax_fraction(24 * GIB) == 0.297916 < (8 - 0.85) / 24


def test_cupy_gets_bytes():
    assert GpuMemoryLimit("6GiB").cupy_limit_bytes() == 6 * GIB - int(0.85 * GIB)


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 6 * 1024 - 1536), ((9, 0), 6 * 1024 - 1800), (None, 6 * 1024 - 1800)]
)
def test_tensorflow_gets_the_share_less_its_overhead_in_mebibytes(capability, expected):
    assert GpuMemoryLimit("6GiB").tensorflow_memory_limit_mb(capability) == expected


def test_a_measured_overhead_takes_the_place_of_the_safe_default():
    limit = GpuMemoryLimit("6GiB", overhead_bytes={"torch": GIB // 2, "tensorflow": GIB})

    assert (limit.torch_fraction(11 * GIB), limit.tensorflow_memory_limit_mb()) == (0.5, 5 * 1024)


@pytest.mark.parametrize(
    ("convert", "framework"),
    [
        (lambda limit: limit.torch_fraction(GIB), "torch"),
        (lambda limit: limit.torch_mps_fraction(GIB), "torch"),
        (lambda limit: limit.tensorflow_memory_limit_mb(), "tensorflow"),
        (lambda limit: limit.jax_fraction(GIB), "jax"),
        (lambda limit: limit.cupy_limit_bytes(), "cupy"),
        (lambda limit: limit.environment({"jax": "0.10.2"}, GIB, {}), "jax"),
    ],
)
def test_a_share_that_leaves_nothing_for_tensors_is_an_error_with_a_way_out(convert, framework):
    with pytest.raises(
        MemoryLimitError, match=rf"512 MiB leaves nothing for tensors: {framework} .* fewer trials per GPU"
    ):
        convert(GpuMemoryLimit("512MiB"))


@pytest.mark.parametrize("amount", ["6 gigs", "50%", "1,5GiB"])
def test_a_limit_must_be_an_amount_of_memory(amount):
    with pytest.raises(InvalidResourcesError, match="limit_bytes must be above 0"):
        GpuMemoryLimit(amount)


@pytest.mark.parametrize(
    "convert",
    [
        lambda limit: limit.torch_fraction(0),
        lambda limit: limit.torch_mps_fraction(0),
        lambda limit: limit.jax_fraction(-1),
        lambda limit: limit.environment({"cupy": "14.2"}, 0, {}),
    ],
)
def test_a_device_must_have_memory(convert):
    with pytest.raises(InvalidResourcesError, match="_bytes must be above 0"):
        convert(GpuMemoryLimit("6GiB"))


def test_a_framework_without_a_limit_is_an_error_that_names_those_with_one():
    with pytest.raises(InvalidResourcesError, match=r"no limit is known for 'tensorflw'; did you mean 'tensorflow'"):
        GpuMemoryLimit("6GiB").environment({"tensorflw": "2.21"}, 8 * GIB, {})


def test_a_version_must_be_a_text():
    with pytest.raises(
        InvalidResourcesError, match=r"the version of torch must be a text such as '2\.13\.0', got None"
    ):
        GpuMemoryLimit("6GiB").environment({"torch": None}, 8 * GIB, {})


def test_a_share_that_the_plan_does_not_state_is_taken_of_the_device():
    assert GpuShare(fraction=0.25).bytes_of(80 * GIB) == 20 * GIB


def test_a_share_that_the_plan_states_is_the_same_on_every_device_that_has_as_much():
    share = GpuShare(fraction=0.25, memory_bytes=8 * GIB)

    assert [share.bytes_of(gib * GIB) for gib in (80, 32, 16)] == [8 * GIB, 8 * GIB, 4 * GIB]
