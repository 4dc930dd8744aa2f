import pytest

from tune_policies import CpuPolicy, InvalidResourcesError
from tune_policies.values.units import format_bytes, format_request, parse_bytes, parse_memory

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
