"""Tests that a trial reads its slot in its own process."""

import json

import pytest
from ray.tune import PlacementGroupFactory

from tune_policies import CpuPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.placement.trial_slot import SLOT_ATTRIBUTE
from tune_policies.ray_compat.tune_request import with_bundles
from tune_policies.trainers.process import trial_process
from tune_policies.trainers.process.trial_process import described_slot, plan_of_trial, slot_of_reservation

GPU = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4, gpu_memory_bytes=6 * 2**30)
CPU = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=3)
WORKERS = TrialSlot(
    trial=Resources(memory_bytes=2**20), max_concurrent_trials=2, num_workers=2, per_worker=Resources(cpus=1)
)
ONE_TYPE = TrialPlan(slots=(GPU,), limited_by="GPU")
PLAN = TrialPlan(slots=(GPU, CPU), limited_by="CPU")
OF_A_LATER_PLAN = TrialSlot(trial=Resources(cpus=4), max_concurrent_trials=1)


@pytest.mark.parametrize(
    ("reserved", "slot"),
    [
        pytest.param(CPU.placement_group_factory(), CPU, id="from the scheduler"),
        pytest.param(CPU.placement_group_factory(node_id="a" * 56), CPU, id="without its node"),
        pytest.param(
            WORKERS.placement_group_factory(worker_nodes=(("a" * 56, 2),)),
            WORKERS.model_copy(update={"worker_nodes": (("a" * 56, 2),)}),
            id="with the nodes of its workers",
        ),
        pytest.param(PlacementGroupFactory([{"CPU": 2}]), None, id="without a policy"),
        pytest.param(None, None, id="outside Tune"),
    ],
)
def test_a_trial_reads_its_slot_from_its_reservation(reserved, slot):
    assert slot_of_reservation(reserved) == slot


def test_the_slot_is_stored_as_json_text():
    text = getattr(GPU.placement_group_factory(), SLOT_ATTRIBUTE)

    assert isinstance(text, str)
    assert json.loads(text)["max_concurrent_trials"] == 4


def test_a_trial_with_additional_resources_keeps_its_slot():
    more = with_bundles(GPU.placement_group_factory(), [{"CPU": 1, "GPU": 0.5}])

    assert slot_of_reservation(more) == GPU


@pytest.mark.parametrize(
    ("bundle", "has"),
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
def test_the_description_of_a_slot_includes_additional_resources(bundle, has):
    assert str(GPU.with_more(bundle)) == has
    assert described_slot(with_bundles(GPU.placement_group_factory(), [bundle])) == has


@pytest.mark.parametrize("given", [PLAN, CpuPolicy(cpus=1)], ids=["plan with several slot types", "policy"])
def test_plan_of_trial_keeps_only_the_slot_of_the_trial_and_outside_a_trial_returns_the_plan_unchanged(
    given, monkeypatch
):
    assert plan_of_trial(given) is given

    monkeypatch.setattr(trial_process, "reserved_for_trial", OF_A_LATER_PLAN.placement_group_factory)

    assert plan_of_trial(given).slots == (OF_A_LATER_PLAN,)


def test_a_plan_with_one_slot_type_is_unchanged_in_a_trial(monkeypatch):
    """A Train run that is retried may have more resources than the trial's slot."""
    monkeypatch.setattr(trial_process, "reserved_for_trial", CPU.placement_group_factory)

    assert plan_of_trial(ONE_TYPE) is ONE_TYPE
