import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import InvalidResourcesError, Resources
from tune_policies.values.resources import from_ticks, to_ticks


@given(st.integers(min_value=1, max_value=10**9))
def test_ray_reads_the_exact_ticks_of_an_amount(ticks):
    """Ray multiplies the amount by 10,000 and truncates the product, so 0.0384 would lose a tick."""
    assert int(from_ticks(ticks) * 10_000) == ticks


@given(st.integers(min_value=1, max_value=10**9))
def test_ticks_are_equal_after_conversion_to_an_amount_and_back(ticks):
    assert to_ticks(ticks / 10_000) == to_ticks(from_ticks(ticks)) == ticks


def test_amounts_finer_than_a_tick_are_rounded_down_as_in_ray():
    assert to_ticks(1 / 3) == 3333


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpus": -1}, "cpus must be 0 or more, got -1"),
        ({"gpus": float("nan")}, "gpus must be a finite number up to 1e+11, got nan"),
        ({"cpus": float("inf")}, "cpus must be a finite number up to 1e+11, got inf"),
        ({"gpus": 1.5}, "gpus above 1 must be whole, got 1.5. Request 1 or 2"),
        ({"gpus": 0.00005}, "gpus must be 0, or at least 0.0001 (Ray's smallest amount), got 5e-05"),
        ({"cpus": "4"}, "cpus must be a number, got '4'"),
        ({"cpus": True}, "cpus must be a number, got True"),
        ({"memory_bytes": "6 gigs"}, "memory_bytes must be a number of bytes above 0"),
        ({"cpus": 10**400}, "cpus must be a finite number up to 1e+11, got 1000000"),
        ({"cpus": 1e306}, "cpus must be a finite number up to 1e+11, got 1e+306"),
        ({"memory_bytes": 10**400}, "memory_bytes must be a number of bytes above 0"),
        ({"custom": {"TPU": -4}}, "TPU must be 0 or more"),
        ({"custom": {"GPU": 1}}, "custom cannot contain 'GPU'. Use the field gpus"),
        ({"custom": 4}, "custom must map names of Ray resources to amounts, got 4"),
        ({"gpu": 1}, "unknown field 'gpu'; did you mean 'gpus'?"),
    ],
    ids=str,
)
def test_an_invalid_amount_raises_an_error_with_the_rule(fields, message):
    with pytest.raises(InvalidResourcesError) as caught:
        Resources(**fields)

    assert message in str(caught.value)


def test_numpy_numbers_are_valid():
    numpy = pytest.importorskip("numpy")

    assert Resources(cpus=numpy.int64(4), gpus=numpy.float32(0.5)) == Resources(cpus=4, gpus=0.5)


def test_a_custom_resource_may_differ_from_a_ray_resource_only_in_case():
    assert Resources(custom={"gpu": 1}).ticks == {"gpu": 10_000}


def test_all_mistakes_are_listed_in_one_error():
    with pytest.raises(InvalidResourcesError) as caught:
        Resources(cpus=-1, gpus=1.5)

    assert len(str(caught.value).splitlines()) == 2


def test_resources_are_compared_by_content():
    assert Resources(cpus=1, gpus=0.57) == Resources(cpus=1.0, gpus=0.57)


@pytest.mark.parametrize(("name", "field"), [("cpus", "cpus"), ("cpu", "cpus"), ("colour", "colour")])
def test_resources_cannot_be_changed_but_the_error_contains_the_change_to_write(name, field):
    advice = re.escape(f"Create a changed copy: model_copy(update={{'{field}': 2}})")

    with pytest.raises(InvalidResourcesError, match=f"a Resources cannot be changed. {advice}"):
        setattr(Resources(cpus=1), name, 2)


def test_resources_are_formatted_as_text():
    resources = Resources(cpus=2, gpus=0.5, memory_bytes="4GiB", custom={"TPU": 4})

    assert str(resources) == "2 CPUs, 0.5 GPU, 4 TPUs, 4 GiB of host memory"
