from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from tune_policies import CpuPolicy, GpuPolicy, InvalidResourcesError, MixedPolicy
from tune_policies.values.units import check_seconds, format_bytes, format_request, parse_bytes, parse_memory

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("6GiB", 6 * GIB), ("6 GiB", 6 * GIB), ("1.5gib", 3 * GIB // 2), ("500MB", 500_000_000)),
        *((1024, 1024), ("7", 7), ("6Gi", 6 * GIB), ("1.5 Mi", 3 * 2**19), ("6G", 6 * 10**9), ("500M", 5 * 10**8)),
        ("64k", 64_000),
    ],
)
def test_an_amount_of_memory_is_parsed_with_its_unit(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "amount",
    [
        *("6 gigs", "500m", "6g", "6K", "6i", "Gi", "50%", "1,5GiB", "", "GiB", "-1GiB"),
        *(0, -5, float("nan"), float("inf"), True, None, [6]),
    ],
    ids=repr,
)
def test_an_invalid_amount_raises_an_error_with_its_name_the_rule_and_an_example(amount):
    with pytest.raises(InvalidResourcesError) as caught:
        parse_bytes(amount, name="gpu_memory")

    assert f"gpu_memory must be a number of bytes above 0 or a string such as '6GiB', got {amount!r}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (4, "memory=4 would be 4 bytes, but the minimum is 1 MiB. Write '4GiB'"),
        ("16", "memory='16' would be 16 bytes, but the minimum is 1 MiB. Write '16GiB'"),
        ("8.5", "memory='8.5' would be 8 bytes, but the minimum is 1 MiB. Write '8.5GiB'"),
        (1e6, "memory=1000000.0 would be 1000000 bytes, but the minimum is 1 MiB. Write '1000000MiB'"),
        (np.float32(8), "memory=np.float32(8.0) would be 8 bytes, but the minimum is 1 MiB. Write '8GiB'"),
        (np.int64(4096), "memory=np.int64(4096) would be 4096 bytes, but the minimum is 1 MiB. Write '4096MiB'"),
        (Fraction(17, 2), "memory=Fraction(17, 2) would be 8 bytes, but the minimum is 1 MiB. Write '8.5GiB'"),
        (8192, "memory=8192 would be 8192 bytes, but the minimum is 1 MiB. Write '8192MiB'"),
        ("4kB", "memory='4kB' would be 4000 bytes, but the minimum is 1 MiB"),
    ],
)
def test_a_requested_amount_without_a_unit_raises_an_error_that_suggests_a_unit(amount, message):
    with pytest.raises(InvalidResourcesError) as caught:
        CpuPolicy(memory=amount)

    assert str(caught.value) == message
    assert parse_memory(2**20) == 2**20


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(6 * GIB, "6 GiB"), (3 * GIB // 2, "1.5 GiB"), (GIB - 1, "1 GiB"), (2**20, "1 MiB"), (12, "12 B")],
)
def test_memory_is_formatted_in_binary_units(amount, expected):
    assert format_bytes(amount) == expected


@pytest.mark.parametrize("amount", [1, 2**20, 5 * GIB, 15_843_721_216])
def test_a_formatted_request_is_at_most_1_mib_less_than_the_amount(amount):
    suggested = parse_bytes(format_request(amount))

    assert amount - 2**20 < suggested <= amount


@pytest.mark.parametrize("seconds", [0, -1, "5", None, True, float("nan")])
def test_seconds_must_be_a_number_above_0(seconds):
    with pytest.raises(InvalidResourcesError, match="interval must be above 0 seconds, got "):
        check_seconds(seconds, "interval")


def test_valid_seconds_are_returned_as_a_float():
    assert [check_seconds(seconds, "interval") for seconds in (3, 0.5)] == [3.0, 0.5]


@pytest.mark.filterwarnings("error")
def test_a_small_float_of_numpy_is_an_amount_without_a_warning():
    half = np.float16(0.5)

    assert GpuPolicy(gpus=half) == GpuPolicy(gpus=0.5)
    assert MixedPolicy(CpuPolicy(), speeds=(half,)) == MixedPolicy(CpuPolicy(), speeds=(0.5,))
    assert parse_bytes(np.float16(1024)) == 1024


@pytest.mark.parametrize("amount", [np.True_, np.array(1.0), Decimal(1), Decimal("0.5")], ids=repr)
def test_an_amount_that_only_converts_to_a_number_is_rejected(amount):
    with pytest.raises(InvalidResourcesError, match="cpus must be a number, got "):
        CpuPolicy(cpus=amount)


@pytest.mark.parametrize("amount", [Fraction(10**400), Fraction(-(10**400))], ids=["large", "small"])
def test_a_fraction_beyond_the_range_of_floats_is_rejected(amount):
    with pytest.raises(InvalidResourcesError, match="cpus must be "):
        CpuPolicy(cpus=amount)
