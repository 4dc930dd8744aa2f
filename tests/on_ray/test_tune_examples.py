"""The examples of the ways in which Tune is used, each run as it is written."""

import importlib.util
from pathlib import Path

import pytest

from tests.marks import further
from tests.on_ray.bohb import skip_without_bohb

EXAMPLES = Path(__file__).parents[2] / "examples"


RAY = {"num_cpus": 2}


def run_example(name, folder):
    """Return what each trial of an example reported last."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    results = example.main(storage_path=str(folder))
    if hasattr(results, "trials"):
        return [trial.last_result for trial in results.trials]
    return [result.metrics for result in results]


@pytest.mark.parametrize(
    ("name", "metric", "values"),
    [
        ("tune_with_tuner", "loss", [0, 0.01]),
        *further(
            ("tune_class", "loss", [0, 0.01, 0.04]),
            ("tune_with_parameters", "loss", [250, 339.7]),
            ("tune_partial", "loss", [0, 0.01]),
            ("tune_method", "loss", [0, 0.01]),
            ("tune_callable_object", "loss", [0, 0.01]),
            ("tune_experiments", "loss", [0, 0, 0.01, 0.01]),
            ("tune_resources_by_config", "threads", [1, 2]),
            ("tune_resume", "threads", [1, 2]),
            ("tune_restore", "threads", [1, 2]),
        ),
    ],
)
def test_the_trials_of_an_example_report_what_it_says(tmp_path, name, metric, values):
    results = run_example(name, tmp_path)

    assert sorted(result[metric] for result in results) == pytest.approx(values)


@pytest.mark.rest
def test_one_process_serves_all_trials_of_the_example_that_uses_it_again(tmp_path):
    results = run_example("tune_reuse_actors", tmp_path)

    assert len(results) == 4
    assert len({result["process"] for result in results}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_trials", "num_iterations"),
    [
        ("tune_optuna", 4, 4),
        ("tune_hyperopt", 4, 4),
        ("tune_asha", 4, 4),
        ("tune_pbt", 2, 3),
        ("tune_hyperband", 3, 3),
        ("tune_bohb", 3, 3),
    ],
)
@pytest.mark.filterwarnings("ignore:Please use `:DeprecationWarning")  # how Ray and hpbandster use ConfigSpace
@pytest.mark.filterwarnings("ignore:Consider boosting PBT performance:UserWarning")
def test_a_search_runs_its_best_trials_to_the_end(tmp_path, name, num_trials, num_iterations):
    if name == "tune_bohb":
        skip_without_bohb()

    results = run_example(name, tmp_path)

    assert len(results) == num_trials
    assert max(result["training_iteration"] for result in results) == num_iterations
