"""A run that ends early writes its usage and releases its resources."""

import signal
import time
from pathlib import Path

import pytest
import ray
from ray import tune

from tests.on_ray.rays import wait_until
from tune_policies import CpuPolicy, PolicyCallback, run
from tune_policies.trainers.usage.resource_usage import USAGE_FILE, ResourceUsage

RAY = {"num_cpus": 2}

pytestmark = pytest.mark.usefixtures("without_loggers")


def run_indefinitely(config):
    while True:
        time.sleep(0.2)
        tune.report({"loss": 1})


def fail(config):
    tune.report({"loss": 1})
    raise ValueError("mine")


class Interrupt(tune.Callback):
    """Sends Ctrl-C after the first result."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("trainable", "kwargs", "error"),
    [
        pytest.param(run_indefinitely, {"callbacks": [Interrupt()]}, None, id="Ctrl-C"),
        pytest.param(fail, {"fail_fast": True}, tune.TuneError, id="fail_fast", marks=pytest.mark.ci),
        # The failure of a second trial during Tune's clean-up would be raised before Tune calls any callback.
        pytest.param(
            fail,
            {"fail_fast": "raise", "num_samples": 1},
            ValueError,
            id="fail_fast='raise'",
            marks=pytest.mark.rest,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:fail_fast='raise' detected:UserWarning")
def test_a_run_that_ends_early_writes_its_usage_and_releases_its_resources(trainable, kwargs, error, tmp_path):
    kwargs = kwargs | {"callbacks": [PolicyCallback(), *kwargs.get("callbacks", [])]}
    kwargs = {"num_samples": 3, "storage_path": str(tmp_path), "name": "run", "verbose": 0, **kwargs}

    if error is None:
        run(trainable, CpuPolicy(cpus=1), **kwargs)
    else:
        with pytest.raises(error):
            run(trainable, CpuPolicy(cpus=1), **kwargs)

    usage = ResourceUsage.from_json(Path(tmp_path, "run", USAGE_FILE).read_text())
    assert usage.is_final
    assert usage.trials.num_finished == 0
    wait_until(lambda: ray.available_resources().get("CPU") == 2, timeout_s=30)
