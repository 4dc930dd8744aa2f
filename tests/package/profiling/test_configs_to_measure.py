"""Tests of the selection of configs to measure from a list or a Tune search space, without starting Ray."""

import pytest
import torch
from ray import tune

from tune_policies import InvalidResourcesError
from tune_policies.trainers import measure_gpu_memory, plan_by_measuring
from tune_policies.trainers.profiling.configs_to_measure import configs_to_measure
from tune_policies.trainers.profiling.measure import check_trainable


@pytest.mark.parametrize(
    ("domain", "least", "most"),
    [
        pytest.param(tune.choice([64, 16, 256]), 16, 256, id="a choice"),
        pytest.param(tune.randint(0, 1000), 0, 999, id="an integer"),
        pytest.param(tune.lograndint(2, 1000), 2, 999, id="a logarithmic integer"),
        pytest.param(tune.qrandint(5, 1000, 8), 8, 1000, id="a step"),
    ],
)
def test_the_largest_and_smallest_integers_of_a_space_are_measured(domain, least, most):
    space = {"net": {"batch": domain}, "lr": tune.loguniform(1e-4, 1e-1), "act": tune.choice(["relu", "tanh"])}

    configs = configs_to_measure(space, num_samples=6, seed=0)

    assert [config["net"]["batch"] for config in configs[:2]] == [most, least]
    assert all(least <= config["net"]["batch"] <= most for config in configs)
    assert len(configs) == 6


def test_all_values_of_a_grid_are_measured_with_the_largest_integers():
    space = {
        "batch": tune.grid_search([8, 32]),
        "width": tune.choice([64, 128]),
        "x": tune.sample_from(lambda s: s.config.width),
    }

    configs = configs_to_measure(space, num_samples=1, seed=0)

    assert configs == [{"batch": batch, "width": 128, "x": 128} for batch in (8, 32)]


def test_the_same_seed_draws_the_same_configs():
    space = {"batch": tune.choice([8, 16]), "lr": tune.uniform(0, 1)}

    assert configs_to_measure(space, 4, seed=7) == configs_to_measure(space, 4, seed=7)


@pytest.mark.parametrize("seed", [-1, 2**32, "0"])
def test_a_seed_that_numpy_rejects_is_an_error(seed):
    with pytest.raises(InvalidResourcesError, match="no configs can be drawn from the search space"):
        configs_to_measure({"a": 1}, num_samples=1, seed=seed)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        pytest.param([], "no configs to measure", id="none"),
        pytest.param(7, "configs must be a list of configs or a search space, got 7", id="a number"),
        pytest.param([{"a": 1}, 2], r"configs\[1\] must be a mapping of names to values, got 2", id="not a mapping"),
        pytest.param(
            [{"lr": tune.uniform(0, 1)}],
            r"configs\[0\] has a search space for 'lr', not a value",
            id="a search space instead of a value",
        ),
        pytest.param(
            [{"a": {"b": tune.randint(0, 1)}}],
            r"a search space for 'a/b', not a value",
            id="a search space in a nested value",
        ),
        pytest.param(
            {"a": tune.sample_from(lambda s: 1 / 0)},
            "no configs can be drawn from the search space",
            id="an error in sample_from",
        ),
    ],
)
def test_the_error_for_invalid_configs_contains_the_reason(configs, message):
    with pytest.raises(InvalidResourcesError, match=message):
        configs_to_measure(configs, num_samples=2, seed=0)


@pytest.mark.parametrize("measure", [measure_gpu_memory, plan_by_measuring])
def test_a_call_without_configs_is_refused_with_the_form_to_write(measure):
    with pytest.raises(InvalidResourcesError, match=r"configs is missing.*measure_gpu_memory\(train_fn, \[\{"):
        measure(lambda config: None)


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        ("PPO", "a trainable must be a function of a config or a subclass of ray.tune.Trainable, got 'PPO'"),
        (int, "a trainable must be a function of a config or a subclass of ray.tune.Trainable"),
        (lambda: None, r"is not a trainable: (.|\n)* Write a function such as def train_fn\(config\)"),
        (torch.nn.Linear(2, 2), r"Linear is a model. Pass .* estimate_gpu_memory\(lambda: model, batch\)"),
    ],
    ids=["a name", "another class", "a function without a config", "a model"],
)
def test_the_error_for_an_invalid_trainable_contains_the_reason(trainable, message):
    with pytest.raises(InvalidResourcesError, match=message):
        check_trainable(trainable)
