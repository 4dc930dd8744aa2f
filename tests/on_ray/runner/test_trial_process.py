"""Tune trials under a policy have the reserved resources and visible devices, and run the unchanged trainable."""

import json
import os
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray import tune
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tests.on_ray.rays import wait_until
from tests.rest_parameters import further
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuPolicy,
    InvalidResourcesError,
    OomRetryScheduler,
    PolicyCallback,
    PolicyScheduler,
    ProbeWarning,
    Resources,
    probe_cluster,
)
from tune_policies.probe.node_facts import are_gpus_simulated
from tune_policies.trainers import trial_plan
from tune_policies.trainers.usage.resource_usage import ResourceUsage

RAY = {"num_cpus": 4, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")


@pytest.fixture(scope="module")
def capacity():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        return probe_cluster()


def process_state(config):
    import ray

    return {
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "order": os.environ.get("CUDA_DEVICE_ORDER"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "assigned": ray.get_runtime_context().get_assigned_resources(),
        "x": config.get("x"),
    }


def report(config):
    tune.report(process_state(config))


class Reporting(tune.Trainable):
    def setup(self, config):
        self.seen_in_setup = os.environ.get("CUDA_VISIBLE_DEVICES")

    def step(self):
        return {**process_state(self.config), "seen_in_setup": self.seen_in_setup, "done": True}


def run(trainable, policy, tmp_path, **kwargs):
    return tune.run(
        trainable,
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
        **{"scheduler": PolicyScheduler(policy), **kwargs},
    ).trials


def threads_of_torch(config):
    import torch

    tune.report({"threads": torch.get_num_threads()})


@pytest.mark.parametrize("trainable", [report, *further(Reporting)], ids=["function", "class"])
def test_a_cpu_trial_sees_no_gpu_and_uses_one_thread_per_cpu(tmp_path, trainable):
    """Without a policy, Ray exposes every GPU of the node to a trial without GPUs."""
    (trial,) = run(trainable, CpuPolicy(cpus=2), tmp_path, config={"x": 7})

    seen = trial.last_result
    assert (seen["gpus"], seen["threads"], seen["x"]) == ("", "2", 7)
    assert seen["assigned"]["CPU"] == 2
    assert seen.get("seen_in_setup", "") == ""
    assert "gpu_memory" not in seen


def test_a_trial_with_a_gpu_fraction_sees_one_device(tmp_path):
    (trial,) = run(report, GpuPolicy(gpus=0.3), tmp_path)

    assert trial.last_result["gpus"] in ("0", "1")
    assert trial.last_result["order"] == "PCI_BUS_ID"  # the order in which Ray numbers devices
    assert trial.last_result["assigned"]["GPU"] == pytest.approx(0.3333)


def report_and_change_the_environment(config):
    seen = process_state(config)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "OMP_NUM_THREADS": "9"}
    tune.report(seen | {"pid": os.getpid()})


@pytest.mark.ci
def test_a_reused_process_resets_environment_variables_that_the_previous_trial_changed(tmp_path):
    trials = run(
        report_and_change_the_environment,
        GpuPolicy(cpus=1),
        tmp_path,
        num_samples=2,
        reuse_actors=True,
        max_concurrent_trials=1,
    )

    seen = [[trial.last_result[name] for name in ("pid", "gpus", "order", "threads")] for trial in trials]
    assert seen[0] == seen[1]


@pytest.mark.rest
@pytest.mark.ray_border
def test_tune_run_kwargs_set_the_resources_and_the_limit_on_concurrent_trials(capacity, tmp_path):
    plan = CappedPolicy(CpuPolicy(cpus=0.5), max_concurrent_trials=1).plan(capacity)

    trials = run(spans, plan, tmp_path, scheduler=None, num_samples=2, **plan.tune_run_kwargs())

    results = [trial.last_result for trial in trials]
    assert {(result["cpus"], "slot" in result) for result in results} == {(0.5, False)}
    ordered = sorted((result["start"], result["end"]) for result in results)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))


def spans(config):
    start = time.time()
    time.sleep(0.3)
    cpus = ray.get_runtime_context().get_assigned_resources()["CPU"]
    tune.report({"start": start, "end": time.time(), "cpus": cpus})


@pytest.mark.parametrize("policy", [CpuPolicy(), CappedPolicy(CpuPolicy(), 1)], ids=["policy", "capped"])
def test_a_policy_as_resources_per_trial_is_rejected_with_a_suggestion(policy, tmp_path):
    with pytest.raises(InvalidResourcesError, match=r"scheduler=PolicyScheduler\(policy\)"):
        tune.run(report, resources_per_trial=policy, storage_path=str(tmp_path), verbose=0)


@pytest.mark.rest
def test_torch_uses_one_thread_per_cpu(tmp_path):
    (trial,) = run(threads_of_torch, CpuPolicy(cpus=3), tmp_path)

    assert trial.last_result["threads"] == 3


class Named(tune.Trainable):
    """A trainable that reports the class of its instance."""

    def step(self):
        return {"class": type(self).__name__, "is_own": type(self) is Named, "done": True}


@pytest.mark.rest
def test_a_trainable_keeps_its_class_and_name_and_is_not_modified(tmp_path):
    before = dict(vars(report)), dict(vars(Named))

    (of_class,) = run(Named, CpuPolicy(), tmp_path)
    (of_function,) = run(report, CpuPolicy(), tmp_path)

    assert (of_class.last_result["class"], of_class.last_result["is_own"]) == ("Named", True)
    assert [trial.trainable_name for trial in (of_class, of_function)] == ["Named", "report"]
    assert (dict(vars(report)), dict(vars(Named))) == before


def break_driver():
    """Let this process look like one on a GPU node whose driver is broken."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hide the GPU of the machine, if it has one

    def fail():
        raise OSError("Driver Not Loaded")

    sys.modules["pynvml"] = SimpleNamespace(NVMLError=OSError, nvmlInit=fail)


def train_on_the_available_device(config):
    break_driver()
    import torch

    plan = trial_plan()
    device = "cuda" if plan.use_gpu else "cpu"
    tune.report({"use_gpu": plan.use_gpu, "device": str(torch.zeros(1, device=device).device)})


class TrainsOnTheAvailableDevice(tune.Trainable):
    def setup(self, config):
        break_driver()
        import torch

        self.device = str(torch.zeros(1).device)

    def step(self):
        return {
            "use_gpu": self.trial_resources.required_resources.get("GPU", 0) > 0,
            "device": self.device,
            "done": True,
        }


ON_GPUS = GpuPolicy(gpus=0.5)


@pytest.mark.parametrize(
    ("trainable", "policy", "slot"),
    [
        pytest.param(train_on_the_available_device, ON_GPUS | CpuPolicy(cpus=2), "2 CPUs", marks=pytest.mark.rest),
        # CPUs that trials of this run use count as free.
        pytest.param(
            TrainsOnTheAvailableDevice,
            FreeCapacityPolicy(ON_GPUS | CpuPolicy(cpus=4)),
            "4 CPUs",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_trial_that_cannot_use_its_gpu_falls_back_to_cpus_and_the_fallback_is_counted(
    tmp_path, capsys, policy, slot, trainable
):
    wait_until(lambda: not any(node.in_use.ticks for node in probe_cluster().nodes))  # until an earlier run has ended
    options = {"scheduler": PolicyScheduler(policy, falls_back=True), "callbacks": [PolicyCallback()]}

    (trial,) = run(trainable, policy, tmp_path, **options)

    assert (trial.status, trial.num_failures, trial.last_result["slot"]) == ("TERMINATED", 0, slot)
    assert (trial.last_result["use_gpu"], trial.last_result["device"]) == (False, "cpu")
    usage = ResourceUsage.from_json(next(tmp_path.rglob("resource_usage.json")).read_text())
    assert (usage.trials.num_finished, usage.trials.num_retries, usage.trials.num_fallbacks) == (1, 1, 1)
    assert "1 resumed without a device" in capsys.readouterr().out


@pytest.mark.parametrize("policy", [GpuPolicy(), GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=1, gpus=1)))])
def test_falls_back_requires_a_policy_with_an_alternative(policy):
    with pytest.raises(
        InvalidResourcesError, match=r"requires a policy with a second choice, .*GpuPolicy\(\) \| CpuPolicy"
    ):
        PolicyScheduler(policy, falls_back=True)


@pytest.mark.ci
@pytest.mark.skipif(not are_gpus_simulated(), reason="requires a machine without a GPU")
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_trials_with_a_fraction_of_a_simulated_gpu_run_and_the_plan_states_it_once(tmp_path, framework, capsys):
    def train(config):
        __import__(framework)
        tune.report({"reached": True})

    (trial,) = run(train, GpuPolicy(gpus=0.5) | CpuPolicy(), tmp_path)

    assert trial.last_result["reached"]
    assert trial.last_result["slot"] == "1 CPU, 0.5 GPU"
    assert trial.last_result["gpu_memory"]["warnings"] == "the GPU is simulated, so its memory limit is not enforced"
    assert capsys.readouterr().out.count("simulated GPUs: memory limits are not enforced") == 1


@pytest.mark.ray_border
def test_a_scaling_config_accepts_only_options_that_the_plan_does_not_set(capacity):
    plan = GpuPolicy(num_workers=2).plan(capacity)

    config = plan.scaling_config(placement_strategy="SPREAD")

    assert (config.num_workers, config.use_gpu, config.placement_strategy) == (2, True, "SPREAD")
    assert config.resources_per_worker == {"CPU": 2, "GPU": 1}
    with pytest.raises(InvalidResourcesError, match="the plan sets num_workers"):
        plan.scaling_config(num_workers=4)


@pytest.mark.ray_border
def test_a_scaling_config_contains_the_accelerator_type():
    node = ClusterCapacity.of(Resources(cpus=4, gpus=1)).nodes[0].model_copy(update={"accelerator_type": "A100"})
    plan = GpuPolicy(accelerator_type="A100", num_workers=1).plan(ClusterCapacity.of(node))

    assert plan.scaling_config().accelerator_type == "A100"


class NothingReturned(tune.Trainable):
    def step(self):
        return None


@pytest.mark.rest
def test_a_step_that_does_not_return_a_dict_fails_with_rays_error(tmp_path):
    [trial] = run(NothingReturned, CpuPolicy(cpus=1), tmp_path)

    assert "AssertionError: step() needs to return a dict." in Path(trial.error_file).read_text()


@ray.remote
class Child:
    def cpus(self):
        return ray.get_runtime_context().get_assigned_resources()["CPU"]


class WithChildren(tune.Trainable):
    """Reserves one bundle for itself and two bundles for child actors that it places by bundle index."""

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 0.5}, {"CPU": 0.75}, {"CPU": 0.75}])

    def step(self):
        group = ray.util.get_current_placement_group()
        children = [
            Child.options(
                num_cpus=0.75,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for index in (1, 2)
        ]
        cpus = ray.get([child.cpus.remote() for child in children])
        bundles = [dict(each) for each in group.bundle_specs]
        return {"cpus": cpus, "bundles": bundles, "done": True}


class RunsOutOnce(WithChildren):
    def step(self):
        marker = Path(self.config["folder"], self.trial_id)
        if not marker.exists():
            marker.touch()
            raise MemoryError
        return super().step()


@pytest.mark.rest
@pytest.mark.ray_border
def test_a_requeued_trial_keeps_its_placement_group_bundles_and_reserves_more_memory(tmp_path):
    folder = tmp_path / "markers"
    folder.mkdir()
    scheduler = PolicyScheduler(CpuPolicy(cpus=1), OomRetryScheduler())

    (trial,) = tune.run(
        RunsOutOnce, config={"folder": str(folder)}, scheduler=scheduler, storage_path=str(tmp_path), verbose=0
    ).trials

    bundles = trial.last_result["bundles"]
    assert trial.last_result["cpus"] == [0.75, 0.75]
    assert trial.last_result["slot"].startswith("2 CPUs, ")
    assert [bundle["CPU"] for bundle in bundles] == [0.5, 0.75, 0.75]
    assert [bundle.get("memory", 0) > 0 for bundle in bundles] == [True, False, False]


@pytest.mark.rest
def test_the_policy_replaces_a_single_bundle_of_a_trainable_and_prints_a_message_once(tmp_path, capsys):
    trainable = tune.with_resources(report, {"cpu": 3})

    trials = run(trainable, CpuPolicy(cpus=1), tmp_path, num_samples=2)

    assert {trial.last_result["assigned"]["CPU"] for trial in trials} == {1}
    message = "the trainable requests {'CPU': 3.0}, but the policy replaces this request with {'CPU': 1.0}"
    assert capsys.readouterr().out.count(message) == 1


def report_often(config):
    for number in range(50):
        tune.report({"score": number})


class SteppingOften(tune.Trainable):
    def step(self):
        time.sleep(0.05)
        return {"score": self.iteration, "done": self.iteration == 9}


def results_in(trial):
    return [json.loads(line) for line in Path(trial.path, "result.json").read_text().splitlines()]


@pytest.mark.ci
def test_the_metrics_of_a_trial_contain_its_usage_although_only_some_results_contain_it(tmp_path):
    """Every result contains the slot. Results of a trial that reports often contain the usage every two seconds."""
    (trial,) = run(report_often, CpuPolicy(cpus=2), tmp_path)

    results = results_in(trial)
    (restored,) = tune.ExperimentAnalysis(str(Path(trial.path).parent)).trials
    with_usage = [result["usage"] for result in results if "usage" in result]
    assert "usage" in results[0]
    assert len(with_usage) <= 2 + results[-1]["time_total_s"] / 2  # the peak may grow while the trial starts
    assert {result["slot"] for result in results} == {"2 CPUs"}
    assert trial.last_result["score"] == restored.last_result["score"] == 49
    assert trial.last_result["usage"] == restored.last_result["usage"] == with_usage[-1]
    assert [name for name in trial.metric_analysis if name.startswith("usage")] == []


@pytest.mark.ci
def test_a_result_that_ends_a_trial_contains_the_usage(tmp_path):
    (trial,) = run(SteppingOften, CpuPolicy(cpus=2), tmp_path)

    first, *_, last = (result["usage"] for result in results_in(trial) if "usage" in result)

    assert trial.last_result["usage"] == last
    assert last["elapsed_s"] >= first["elapsed_s"] + 9 * 0.05


def report_own_usage(config):
    for usage in (1, 2):
        tune.report({"usage": usage})


@pytest.mark.rest
def test_a_users_metric_named_usage_keeps_its_statistics(tmp_path):
    (trial,) = run(report_own_usage, CpuPolicy(cpus=2), tmp_path)

    assert (trial.last_result["usage"], trial.metric_analysis["usage"]["max"]) == (2, 2)
