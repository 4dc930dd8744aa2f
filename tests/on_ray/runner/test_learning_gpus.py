"""A run learns from its first trials how much GPU memory the others need. A stand-in replaces NVIDIA's driver."""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from ray import tune

from tests.on_ray.rays import local_ray
from tests.stand_ins import PYNVML_OF_PROCESSES
from tune_policies import LearningPolicy, load_policy, run

GIB = 2**30


def use_memory(config):
    """State the use of a GPU to the driver's stand-in: 1 GiB for each unit of the batch size."""
    device = int(os.environ["CUDA_VISIBLE_DEVICES"])
    use = Path(os.environ["STAND_IN_GPUS"], str(os.getpid()))
    # In one step, so that the stand-in never reads half a file.
    new = use.with_suffix(".new")
    new.write_text(json.dumps({"device": device, "bytes": config["batch"] * GIB, "busy": 0.05}))
    new.replace(use)
    for _ in range(4):
        time.sleep(1)
        tune.report({"device": device})
    use.unlink()


class MostOnOneGpu(tune.Callback):
    """Counts the trials that have reported from the same GPU and still run."""

    most = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        running = [other for other in trials if other.status == "RUNNING" and "device" in other.last_result]
        counts = Counter(other.last_result["device"] for other in running)
        self.most = max([self.most, *counts.values()])


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Run trials of 1 and 2 GiB on two GPUs of 16 GiB. Return the trials, the callback and the learned policy."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "pynvml.py").write_text(PYNVML_OF_PROCESSES)
    uses = folder / "uses"
    uses.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAND_IN_GPUS", str(uses))
        patch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        patch.syspath_prepend(str(folder))
        callback = MostOnOneGpu()
        with local_ray(num_cpus=16, num_gpus=2):
            analysis = run(
                use_memory,
                LearningPolicy(),
                config={"batch": tune.grid_search([1, 2] * 6)},
                storage_path=str(folder),
                name="run",
                callbacks=[callback],
                reuse_actors=True,
                verbose=0,
            )
    return analysis.trials, callback, load_policy(folder / "run" / "learned_policy.json")


@pytest.mark.rest
def test_trials_share_a_gpu_according_to_the_memory_that_the_first_ones_used(learned):
    trials, callback, _ = learned

    assert {trial.status for trial in trials} == {"TERMINATED"}
    assert callback.most > 1


@pytest.mark.rest
def test_the_learned_memory_is_what_the_driver_reported(learned):
    *_, policy = learned

    assert policy.needs.amounts["gpu_memory_bytes"].largest == 2 * GIB
