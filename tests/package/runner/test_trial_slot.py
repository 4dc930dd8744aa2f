"""Tests of what the process of a trial is told about its slot."""

import pytest

from tune_policies import CpuPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.trainers.gpu_memory.fraction_limits import LimitOptions
from tune_policies.trainers.process.current_process import CURRENT
from tune_policies.trainers.process.process_setup import TrialSetup
from tune_policies.trainers.process.trial_process import plan_of_trial

GPU = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4, gpu_memory_bytes=6 * 2**30)
CPU = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=3)
WORKERS = TrialSlot(
    trial=Resources(memory_bytes=2**20),
    max_concurrent_trials=2,
    num_workers=2,
    per_worker=Resources(cpus=1),
    worker_nodes=(("a" * 56, 2),),
)
ONE_TYPE = TrialPlan(slots=(GPU,), limited_by="GPU")
PLAN = TrialPlan(slots=(GPU, CPU), limited_by="CPU")
OF_A_LATER_PLAN = TrialSlot(trial=Resources(cpus=4), max_concurrent_trials=1)
LIMITS = LimitOptions(on_unenforced_limit="warn")


@pytest.mark.parametrize(
    ("slot", "bundle"),
    [
        pytest.param(CPU, {"CPU": 2}, id="without a device"),
        pytest.param(GPU, {"CPU": 1, "GPU": 0.25}, id="with a fraction of a GPU"),
        pytest.param(WORKERS, {"memory": 2**20}, id="with the nodes of its workers"),
    ],
)
def test_a_process_gets_the_slot_of_its_trial_as_text(slot, bundle):
    setup = TrialSetup.of(slot, [bundle], LIMITS)

    assert TrialSetup.from_text(setup.to_text()) == TrialSetup(slot=slot, label=str(slot), limits=LIMITS)


@pytest.mark.parametrize(
    ("bundle", "label"),
    [
        pytest.param({"CPU": 1, "GPU": 0.25}, "1 CPU, 0.25 GPU, 6 GiB of GPU memory", id="as planned"),
        pytest.param({"CPU": 1, "GPU": 0.5}, "1 CPU, 0.5 GPU, 12 GiB of GPU memory", id="a larger fraction"),
        pytest.param({"CPU": 1, "GPU": 2}, "1 CPU, 2 GPUs, 24 GiB of GPU memory on each", id="two GPUs of that size"),
        pytest.param(
            {"CPU": 1, "GPU": 0.25, "memory": 2**31},
            "1 CPU, 0.25 GPU, 2 GiB of host memory, 6 GiB of GPU memory",
            id="more host memory",
        ),
    ],
)
def test_a_process_gets_the_final_resources_and_memory_of_a_trial_that_reserves_more_than_planned(bundle, label):
    setup = TrialSetup.of(GPU, [bundle], LIMITS)

    assert (str(setup.slot), setup.label) == (label, label)


def test_the_label_of_a_trial_with_several_bundles_states_their_sum():
    setup = TrialSetup.of(CPU, [{"CPU": 2}, {"CPU": 1, "GPU": 1}], LIMITS)

    assert setup.label == "3 CPUs, 1 GPU"


def test_the_label_of_a_trial_that_reserves_less_than_its_slot_states_what_it_reserves():
    assert TrialSetup.of(CPU, [{"CPU": 1}], LIMITS).label == "1 CPU"


@pytest.mark.parametrize("given", [PLAN, CpuPolicy(cpus=1)], ids=["plan with several slot types", "policy"])
def test_plan_of_trial_keeps_only_the_slot_of_the_trial_and_outside_a_trial_returns_the_plan_unchanged(
    given, monkeypatch
):
    assert plan_of_trial(given) is given

    monkeypatch.setattr(CURRENT.trial, "slot", OF_A_LATER_PLAN)

    assert plan_of_trial(given).slots == (OF_A_LATER_PLAN,)


def test_a_plan_with_one_slot_type_is_unchanged_in_a_trial(monkeypatch):
    """A Train run that is retried may have more resources than the trial's slot."""
    monkeypatch.setattr(CURRENT.trial, "slot", CPU)

    assert plan_of_trial(ONE_TYPE) is ONE_TYPE
