import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies.plan.gpu_memory_profile import fit_memory

GIB = 2**30
MIB = 2**20
coefficients = st.just(0) | st.integers(1, 100).map(lambda mib: mib * MIB)


def points_of(function, **values):
    """Return a (config, result) pair for each combination of the listed values of the function's parameters."""
    configs = [{}]
    for name, choices in values.items():
        configs = [{**config, name: choice} for config in configs for choice in choices]
    return [(config, function(**config)) for config in configs]


@pytest.mark.parametrize(
    ("function", "values", "asked"),
    [
        pytest.param(lambda batch: 3 * GIB, {"batch": [8, 32]}, {"batch": 999}, id="a constant"),
        pytest.param(
            lambda batch: GIB + 20 * MIB * batch, {"batch": [8, 32]}, {"batch": 64}, id="a line through two points"
        ),
        pytest.param(lambda width: width**2 * 40, {"width": [512, 1024, 4096]}, {"width": 8192}, id="a square"),
        pytest.param(
            lambda batch, width: GIB + 8 * width**2 + 400 * batch * width,
            {"batch": [8, 32, 256], "width": [256, 1024, 4096]},
            {"batch": 512, "width": 8192},
            id="a square and a product",
        ),
        pytest.param(
            lambda batch, seed: GIB + 20 * MIB * batch,
            {"batch": [8, 64, 256], "seed": [7, 1234]},
            {"batch": 512, "seed": 10**9},
            id="a number without an effect",
        ),
    ],
)
def test_the_formula_contains_the_parameters_that_affect_memory(function, values, asked):
    fit = fit_memory(points_of(function, **values))

    assert fit.bytes_for(asked) == pytest.approx(function(**asked), rel=0.001)


numbers = st.fixed_dictionaries({"batch": st.integers(1, 512), "width": st.integers(0, 4096), "rate": st.floats(-5, 1)})
measured = st.lists(st.tuples(numbers, st.integers(1, 80 * GIB)), min_size=1, max_size=8)


@given(points=measured)
def test_the_formula_is_never_below_a_measurement(points):
    fit = fit_memory(points)

    assert all(fit.bytes_for(config) >= needed for config, needed in points)


@given(points=measured, less=numbers, more=numbers)
def test_larger_parameters_never_need_less_memory(points, less, more):
    fit = fit_memory(points)
    larger = {name: max(less[name], more[name]) for name in less}

    assert fit.bytes_for(larger) >= fit.bytes_for(less)


@pytest.mark.parametrize("number", [2.3e-308, 1e300, 10**400, -1], ids=["tiny", "huge", "beyond floats", "negative"])
def test_a_parameter_that_does_not_affect_memory_does_not_change_the_estimate(number):
    fit = fit_memory(
        [({"batch": 8, "n": number}, GIB), ({"batch": 16, "n": 0}, 2 * GIB), ({"batch": 16, "n": 1}, 2 * GIB)]
    )

    assert fit.bytes_for({"batch": 32, "n": number}) == pytest.approx(4 * GIB, rel=0.01)


def test_the_formula_does_not_cover_unused_parameters_above_the_measured_range():
    fit = fit_memory(points_of(lambda batch, width: batch * MIB, batch=[8, 16], width=[256]))

    assert fit.covers({"batch": 999, "width": 256})
    assert not fit.covers({"batch": 8, "width": 257})


def test_a_learning_rate_that_correlates_by_chance_is_not_in_the_formula():
    points = [({"batch": batch, "lr": lr}, batch * MIB) for batch, lr in ((16, 0.001), (64, 0.01), (256, 0.1))]

    assert fit_memory(points).largest.keys() == {"batch"}


def test_measurements_are_not_fitted_once_for_each_omitted_measurement(monkeypatch):
    calls = []
    pinv = np.linalg.pinv
    monkeypatch.setattr(np.linalg, "pinv", lambda matrix: calls.append(matrix) or pinv(matrix))
    points = points_of(
        lambda batch, width, lr, wd: batch * MIB + width**2 * 40,
        batch=[8, 16, 32, 64],
        width=[128, 256, 512, 1024, 2048],
        lr=[0.1, 0.2, 0.3, 0.4, 0.5],
        wd=[0.1, 0.2, 0.3, 0.4, 0.5],
    )

    fit_memory(points)

    assert len(points) == 500
    assert len(calls) < len(points)
