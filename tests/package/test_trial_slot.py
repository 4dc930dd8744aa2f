"""A trial finds the slot that it has, in its own process."""

import pytest
from ray.tune import PlacementGroupFactory

from tune_policies import Resources, TrialPlan, TrialSlot
from tune_policies.plan.slots_by_config import SlotsByDecision
from tune_policies.ray_compat.tune_controller import with_bundles
from tune_policies.trainers.tune_trainable import RetryPlan, plan_in_slot, plan_of_trial, slot_of_trial

GPU = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4, gpu_memory_bytes=6 * 2**30)
CPU = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=3)
PLAN = TrialPlan(slots=(GPU, CPU), limited_by="CPU")
OF_A_LATER_PLAN = TrialSlot(trial=Resources(cpus=4), max_concurrent_trials=1)


@pytest.mark.parametrize(
    ("reserved", "slot"),
    [
        pytest.param(CPU.placement_group_factory(), CPU, id="what the scheduler gave it"),
        pytest.param(CPU.placement_group_factory(node_id="a" * 56), CPU, id="without the node it is on"),
        pytest.param(OF_A_LATER_PLAN.placement_group_factory(), OF_A_LATER_PLAN, id="a slot of a later plan"),
        pytest.param(PlacementGroupFactory([{"CPU": 2}]), CPU, id="what was asked for by hand, if a slot has as much"),
        pytest.param(PlacementGroupFactory([{"CPU": 7}]), GPU, id="else the first"),
        pytest.param(None, GPU, id="outside of Tune the first"),
    ],
)
def test_a_trial_has_the_slot_for_which_its_resources_were_reserved(reserved, slot):
    assert slot_of_trial(PLAN, {}, reserved) == slot


def test_a_trial_that_was_given_more_has_its_slot_still():
    more = with_bundles(GPU.placement_group_factory(), [{"CPU": 1, "GPU": 0.5}])

    assert slot_of_trial(PLAN, {}, more) == GPU


@pytest.mark.parametrize(
    ("bundle", "has"),
    [
        pytest.param({"CPU": 1, "GPU": 0.25}, "1 CPU, 0.25 GPU, 6 GiB of GPU memory", id="as planned"),
        pytest.param({"CPU": 1, "GPU": 0.5}, "1 CPU, 0.5 GPU, 12 GiB of GPU memory", id="a larger share"),
        pytest.param({"CPU": 1, "GPU": 2}, "1 CPU, 2 GPUs, 24 GiB of GPU memory on each", id="two GPUs of that size"),
        pytest.param(
            {"CPU": 1, "GPU": 0.25, "memory": 2**31},
            "1 CPU, 0.25 GPU, 2 GiB of host memory, 6 GiB of GPU memory",
            id="more host memory",
        ),
    ],
)
def test_the_slot_of_a_trial_that_reserves_more_says_so(bundle, has):
    assert str(GPU.with_more(bundle)) == has


@pytest.mark.parametrize(
    ("reserved", "slot"),
    [
        pytest.param(CPU.placement_group_factory(), CPU, id="what was reserved by the config that it began with"),
        pytest.param(GPU.placement_group_factory(), GPU, id="what its config asks for"),
        pytest.param(PlacementGroupFactory([{"CPU": 7}]), GPU, id="what its config asks for, where made by hand"),
        pytest.param(None, GPU, id="the same outside of Tune"),
    ],
)
def test_a_trial_whose_config_was_changed_keeps_to_what_was_reserved(reserved, slot):
    by_config = SlotsByDecision(slots=(CPU, GPU), size="batch_size", devices=((16, "CPU"), (64, "GPU")))
    plan = PLAN.model_copy(update={"by_config": by_config})

    assert slot_of_trial(plan, {"batch_size": 128}, reserved) == slot


def test_outside_of_a_trial_a_plan_is_as_it_was():
    assert plan_of_trial(PLAN) is PLAN


def test_in_a_trial_a_plan_is_that_of_the_slot_that_the_trial_was_given():
    assert plan_in_slot(PLAN, OF_A_LATER_PLAN).slots == (OF_A_LATER_PLAN,)


def test_in_a_trial_a_train_run_that_is_tried_again_has_more_than_the_slot():
    plan = RetryPlan(slots=(GPU.model_copy(update={"trial": Resources(cpus=1, gpus=0.5)}),), limited_by="GPU")

    assert plan_in_slot(plan, GPU) is plan
