import pytest

from trainers import GpuMemoryLimit
from trainers.gpu_memory.enforcement import GpuShare
from tune_policies import InvalidResourcesError, MemoryLimitError

GIB = 2**30


def test_torch_gets_the_share_less_its_overhead_as_a_fraction_of_the_total():
    fraction = GpuMemoryLimit("6GiB").torch_fraction(total_bytes=16 * GIB)

    assert fraction == pytest.approx((6 - 0.85) / 16)


def test_eight_workers_with_their_overhead_fit_one_device():
    limit = GpuMemoryLimit(80 * GIB // 8)

    assert 8 * (limit.torch_fraction(80 * GIB) * 80 + 0.85) == pytest.approx(80)


def test_the_fraction_is_never_above_the_whole_device():
    assert GpuMemoryLimit("16GiB").torch_fraction(total_bytes=8 * GIB) == 1.0


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 6 * 1024 - 1536), ((9, 0), 6 * 1024 - 1800), (None, 6 * 1024 - 1800)]
)
def test_tensorflow_gets_the_share_less_its_overhead_in_mebibytes(capability, expected):
    assert GpuMemoryLimit("6GiB").tensorflow_memory_limit_mb(capability) == expected


@pytest.mark.parametrize(
    ("convert", "framework"),
    [
        (lambda limit: limit.torch_fraction(GIB), "torch"),
        (lambda limit: limit.tensorflow_memory_limit_mb(), "tensorflow"),
    ],
)
def test_a_share_that_leaves_nothing_for_tensors_is_an_error_with_a_way_out(convert, framework):
    with pytest.raises(
        MemoryLimitError, match=rf"512 MiB leaves nothing for tensors: {framework} .* fewer trials a GPU"
    ):
        convert(GpuMemoryLimit("512MiB"))


def test_a_limit_must_be_an_amount_of_memory():
    with pytest.raises(InvalidResourcesError, match="limit_bytes must be above 0"):
        GpuMemoryLimit("6 gigs")


def test_a_share_that_the_plan_does_not_state_is_taken_of_the_device():
    assert GpuShare(fraction=0.25).limit(lambda: 80 * GIB) == GpuMemoryLimit(20 * GIB)


def test_a_share_that_the_plan_states_is_the_same_on_every_device():
    assert GpuShare(fraction=0.25, memory_bytes=8 * GIB).limit(lambda: 80 * GIB) == GpuMemoryLimit(8 * GIB)
