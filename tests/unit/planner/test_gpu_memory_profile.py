import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import GpuMemoryProfile, InvalidResourcesError
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement

GIB = 2**30


def profile_of(*measured, **kwargs):
    """Return a profile from tuples of a config, its GPU memory in GiB and, optionally, ``ended_by``."""
    return GpuMemoryProfile(
        measurements=tuple(
            GpuMemoryMeasurement(config=config, total_bytes=int(gib * GIB), ended_by=(*ended, "max_steps")[0])
            for config, gib, *ended in measured
        ),
        **kwargs,
    )


BATCHES = profile_of(({"batch": 8}, 2), ({"batch": 16}, 3), ({"batch": 64}, 9))


def test_a_config_between_measured_configs_gets_the_memory_of_the_formula():
    assert BATCHES.gpu_memory_bytes({"batch": 32}) == pytest.approx(5 * GIB, rel=0.001)


def test_each_combination_of_non_numeric_values_has_its_own_formula():
    profile = profile_of(
        ({"net": "small", "batch": 8}, 1),
        ({"net": "small", "batch": 16}, 2),
        ({"net": "large", "batch": 8}, 10),
        ({"net": "large", "batch": 16}, 20),
    )

    assert profile.gpu_memory_bytes({"net": "small", "batch": 32}) == pytest.approx(4 * GIB, rel=0.01)
    assert profile.gpu_memory_bytes({"net": "large", "batch": 32}) == pytest.approx(40 * GIB, rel=0.01)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"net": "huge", "batch": 8}, id="another value"),
        pytest.param({"net": "small"}, id="a missing number"),
        pytest.param({"net": "small", "batch": 8, "fused": True}, id="another key"),
        pytest.param({"net": "small", "batch": 16}, id="a larger number if only one was measured"),
    ],
)
def test_the_memory_of_a_config_unlike_the_measured_configs_is_unknown(config):
    assert profile_of(({"net": "small", "batch": 8}, 1)).gpu_memory_bytes(config) is None


def test_configs_that_ran_out_of_memory_and_larger_configs_only_have_a_lower_bound():
    profile = profile_of(({"batch": 8}, 2), ({"batch": 64}, 16, "out_of_memory"))

    assert (profile.gpu_memory_bytes({"batch": 64}), profile.more_than_bytes({"batch": 64})) == (None, 16 * GIB)
    assert (profile.gpu_memory_bytes({"batch": 99}), profile.more_than_bytes({"batch": 99})) == (None, 16 * GIB)
    assert (profile.gpu_memory_bytes({"batch": 8}), profile.more_than_bytes({"batch": 8})) == (2 * GIB, None)


def test_configs_are_compared_as_plain_data():
    profile = profile_of(({"model": {"sizes": (64, 32), "act": len}, "batch": np.int64(8)}, 2))

    assert profile.gpu_memory_bytes({"model": {"act": len, "sizes": [64, 32]}, "batch": 8}) == 2 * GIB
    assert json.loads(profile.to_json())["measurements"][0]["config"] == {
        "batch": 8,
        "model/act": "builtins.len",
        "model/sizes": [64, 32],
    }


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
configs = st.dictionaries(st.sampled_from(["batch", "width", "net", "lr"]), plain, max_size=3)


@given(st.lists(st.tuples(configs, st.floats(0.001, 80)), min_size=1, max_size=5), configs)
def test_a_profile_round_trips_through_json(measured, asked):
    profile = profile_of(*measured, versions={"ray": "2.60.0"})
    again = GpuMemoryProfile.from_json(profile.to_json())

    assert again == profile
    assert [again.gpu_memory_bytes(each) for each in (asked, *(config for config, *_ in measured))] == [
        profile.gpu_memory_bytes(each) for each in (asked, *(config for config, *_ in measured))
    ]


@given(st.lists(st.tuples(configs, st.floats(0.001, 80)), min_size=1, max_size=5))
def test_a_measured_config_never_gets_less_than_its_measured_memory(measured):
    profile = profile_of(*measured)

    assert all(profile.gpu_memory_bytes(config) >= int(gib * GIB) for config, gib in measured)


def test_the_explanation_has_the_measurements_and_the_formula():
    profile = profile_of(({"batch": 8}, 2), ({"batch": 16}, 3), versions={"torch": "2.13.0"})

    assert profile.explain().splitlines() == [
        "2 measurements with torch 2.13.0",
        "  {'batch': 8}: 2 GiB (stopped after 0 steps)",
        "  {'batch': 16}: 3 GiB (stopped after 0 steps)",
        "  GPU memory by config: 1 GiB + 128 MiB x batch + 0 B (the largest residual). "
        "The formula extrapolates above batch 16",
    ]


def test_a_profile_without_measurements_is_rejected():
    with pytest.raises(InvalidResourcesError, match="measurements"):
        GpuMemoryProfile(measurements=())


def test_memory_is_unknown_if_an_integer_parameter_exceeds_its_only_measured_value():
    profile = profile_of(({"batch": 8, "width": 256}, 2), ({"batch": 16, "width": 256}, 3))

    assert profile.gpu_memory_bytes({"batch": 8, "width": 8192}) is None
    assert profile.gpu_memory_bytes({"batch": 512, "width": 256}) > 60 * GIB


@pytest.mark.parametrize("lr", [0.0001, 0.5])
def test_a_learning_rate_that_correlates_by_chance_is_ignored(lr):
    profile = profile_of(
        ({"batch": 16, "lr": 0.001}, 1),
        ({"batch": 64, "lr": 0.01}, 2),
        ({"batch": 64, "lr": 0.02}, 2),
        ({"batch": 256, "lr": 0.1}, 6),
    )

    assert profile.gpu_memory_bytes({"batch": 256, "lr": lr}) >= 6 * GIB
    assert profile.gpu_memory_bytes({"batch": 64, "lr": lr}) < 3 * GIB


def test_no_config_gets_less_than_the_overhead():
    profile = GpuMemoryProfile(
        measurements=tuple(
            GpuMemoryMeasurement(
                config={"batch": batch},
                peak_bytes={"torch": batch * GIB},
                overhead_bytes=GIB,
                total_bytes=(batch + 1) * GIB,
                gpu_model="T4",
            )
            for batch in (8, 16)
        )
    )

    assert profile.gpu_memory_bytes({"batch": 0}) >= GIB
    assert profile.gpu_memory_bytes({"batch": 4}) == pytest.approx(5 * GIB, rel=0.001)
