"""If a program ends with plain Tune, it also ends under a policy, as soon and with the same results.

Each test is a minimal program for one kind of disagreement that ``python -m tests.evidence plain-tune`` found.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.on_ray.rays import cluster_of
from tests.rest_parameters import further
from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy, run

# The GPUs are simulated, so their memory cannot be read.
pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]

LONGEST_S = 90
"""The time after which a run counts as hanging, in seconds. On an idle machine, each program ends in less than 20 s."""
SMALL_STORE = {"object_store_memory": 80 * 2**20}


class EndsInTime(tune.Callback):
    """Raises an error in the run if it has not ended after ``LONGEST_S``."""

    def __init__(self):
        self.deadline_s = time.monotonic() + LONGEST_S

    def on_step_begin(self, iteration, trials, **info):
        if time.monotonic() > self.deadline_s:
            raise TimeoutError(f"after {LONGEST_S} s: {[trial.status for trial in trials]}")


@ray.remote(num_cpus=0)
class OtherProgram:
    def ready(self):
        return True


@pytest.fixture
def on_nodes(monkeypatch):
    """Return a function that starts a cluster of nodes with these (CPUs, GPUs)."""
    # Tune's loggers do not close their files if a run ends with an error.
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    with ExitStack() as stack:

        def start(*nodes):
            shapes = [{"num_cpus": cpus, "num_gpus": gpus, **SMALL_STORE} for cpus, gpus in nodes]
            cluster = stack.enter_context(cluster_of(*shapes))
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
            return cluster

        yield start


def hold(**resources):
    """Start an actor that holds resources, and return it when it runs."""
    actor = OtherProgram.options(**resources).remote()
    ray.get(actor.ready.remote())
    return actor


def report(config):
    tune.report({"loss": 1})


class Training(tune.Trainable):
    """Takes four steps of 0.1 s. Its processes can be reused."""

    def setup(self, config):
        self.steps = 0

    def step(self):
        time.sleep(0.1)
        self.steps += 1
        return {"loss": self.config["x"], "done": self.steps >= 4}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint):
        self.steps = int(Path(checkpoint, "steps").read_text())

    def reset_config(self, new_config):
        self.steps = 0
        return True


def population_arguments(folder, name, *, synch=False, callbacks=None):
    """Return the arguments of a run of ``Training`` with population-based training and reused processes."""
    return {
        "config": {"x": tune.grid_search([0.1, 0.3, 0.6, 0.9])},
        "metric": "loss",
        "mode": "min",
        "scheduler": PopulationBasedTraining(
            "training_iteration", perturbation_interval=2, hyperparam_mutations={"x": [0.1, 0.9]}, synch=synch
        ),
        "reuse_actors": True,
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
        "storage_path": str(folder),
        "name": name,
        "callbacks": callbacks or [EndsInTime()],
        "verbose": 0,
    }


@pytest.mark.parametrize(
    "policy",
    [GpuPolicy(), *further(MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=1)))],
    ids=["slots with the CPUs of each node", "slots with and without a GPU"],
)
def test_a_run_ends_if_another_program_holds_a_gpu_of_one_node(on_nodes, tmp_path, policy):
    """With several slot types, a trial must not wait for the slot that another program occupies."""
    on_nodes((4, 1), (2, 1))
    holder = hold(num_gpus=1)

    found = run(report, policy, num_samples=4, storage_path=str(tmp_path), callbacks=[EndsInTime()], verbose=0)

    assert [trial.status for trial in found.trials] == ["TERMINATED"] * 4
    ray.kill(holder)


@pytest.mark.rest
def test_trials_that_wait_for_each_other_all_get_a_slot_if_another_program_holds_a_gpu(on_nodes, tmp_path):
    """Synchronous PBT pauses each trial until all others reach the same step, so one pending trial stops the run."""
    on_nodes((4, 1), (2, 1))
    holder = hold(num_gpus=1)

    found = run(Training, GpuPolicy(), **population_arguments(tmp_path, "run", synch=True))

    assert [trial.status for trial in found.trials] == ["TERMINATED"] * 4
    ray.kill(holder)


class Processes(tune.Callback):
    """Collects the processes that reported the results of a run."""

    def __init__(self):
        self.ids = set()

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.ids.add(result["pid"])


@pytest.mark.slow
def test_a_run_with_slots_of_two_types_reuses_processes(on_nodes, tmp_path):
    """Trials that PBT pauses and copies must not start a new process each time."""
    on_nodes((4, 1), (2, 1))
    policy = MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=1))
    processes = Processes()

    run(Training, policy, **population_arguments(tmp_path, "policy", callbacks=[EndsInTime(), processes]))

    assert len(processes.ids) <= 6  # the cluster has six slots
