"""Tests of what a run knows about a trial, of what it saves and restores, and of the request that follows from it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune import PlacementGroupFactory

from tests.clusters import GIB
from tests.unit.runner.small_runs import ONE_CPU, new_trial
from tune_policies import Resources, TrialSlot
from tune_policies.placement.count_trials import num_slots_for
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.retries.oom_history import OomRecord, TrialOomHistory
from tune_policies.trainers.scheduling.trial_record import (
    is_raised,
    record_of,
    request_of,
    slots_taken,
    with_legal_amounts,
)
from tune_policies.values.resources import TICKS, to_ticks

SLOT = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4)
HISTORY = TrialOomHistory(records=(OomRecord(settings={"width": 1}, floor=MemoryFloor(gpu_ticks=5000)),))


def request(*bundles, **options):
    return PlacementGroupFactory([dict(bundle) for bundle in bundles], **options)


def recorded(*bundles):
    record = record_of(new_trial(0, bundles=bundles or (ONE_CPU,)))
    record.planned = request(*bundles or (ONE_CPU,))
    return record


def restored(record, *bundles):
    """Return the record of a restored trial whose trainable requests ``bundles`` now."""
    trial = new_trial(1, bundles=bundles or (ONE_CPU,))
    trial.policy_record = record.trial.policy_record
    return record_of(trial)


def test_a_new_trial_has_the_request_of_its_trainable_and_no_history():
    record = record_of(new_trial(0, bundles=[{"CPU": 2}]))

    assert record.own.bundles == record.planned.bundles == [{"CPU": 2}]
    assert (record.slot, record.has_run, record.oom, record.has_fallen_back) == (None, False, TrialOomHistory(), False)


@pytest.mark.parametrize(
    ("bundles", "expected"),
    [
        pytest.param([ONE_CPU], False, id="one bundle"),
        pytest.param([ONE_CPU, ONE_CPU], True, id="two bundles"),
        pytest.param([{}, ONE_CPU], True, id="an empty bundle for the trainable, and one for an actor"),
    ],
)
def test_a_trial_keeps_its_request_if_it_has_several_bundles(bundles, expected):
    assert record_of(new_trial(0, bundles=bundles)).keeps_own_bundles is expected


def test_a_restored_trial_has_its_slot_and_its_retries():
    record = recorded()
    record.slot, record.has_run = SLOT, True
    record.oom, record.has_fallen_back = HISTORY, True
    record.save()

    again = restored(record)

    assert (again.slot, again.has_run, again.oom, again.has_fallen_back) == (SLOT, True, HISTORY, True)


def test_a_restored_trial_has_the_request_of_its_present_trainable():
    record = recorded({"CPU": 2}, {"GPU": 1})
    record.save()

    again = restored(record, {"CPU": 3}, {"GPU": 2})

    assert again.own.bundles == again.planned.bundles == [{"CPU": 3}, {"GPU": 2}]


def test_a_slot_in_which_the_trial_has_not_run_is_not_restored():
    record = recorded()
    record.slot = SLOT
    record.save()

    again = restored(record)

    assert (again.slot, again.has_run) == (None, False)


def test_only_values_that_are_not_defaults_are_saved():
    record = recorded()

    record.save()

    assert json.loads(record.trial.policy_record) == {}


def test_a_saved_slot_contains_only_values_that_are_not_defaults():
    record = recorded()
    record.slot, record.has_run = SLOT, True

    record.save()

    saved = {"trial": {"cpus": 1, "gpus": 0.25}, "max_concurrent_trials": 4}
    assert json.loads(record.trial.policy_record)["slot"] == saved


def test_a_changed_record_is_saved_with_the_trial():
    """Tune caches the saved state of a trial."""
    record = recorded()
    record.save()
    record.trial.get_json_state()

    record.has_fallen_back = True
    record.save()

    assert "has_fallen_back" in record.trial.get_json_state()[0]


def test_an_unchanged_record_does_not_make_tune_save_the_trial_again():
    record = recorded()
    record.save()
    record.trial.get_json_state()

    record.save()

    assert record.trial._state_json is not None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("not JSON", id="no JSON"),
        pytest.param("[]", id="another type"),
        pytest.param('{"oom": {"records": 7}}', id="an invalid history"),
        pytest.param('{"slot": {"trial": 7}}', id="an invalid slot"),
    ],
)
def test_a_record_that_cannot_be_read_is_ignored_with_a_warning(text, caplog):
    trial = new_trial(0)
    trial.policy_record = text

    record = record_of(trial)

    assert (record.slot, record.has_run) == (None, False)
    assert "the saved resources of train_00000000 cannot be read and are ignored" in caplog.text


# The request


def test_the_request_is_the_planned_request_unless_something_changed_it():
    """Trials reuse each other's processes only if their requests are the same."""
    record = recorded({"CPU": 1, "GPU": 0.5})

    assert request_of(record) is record.planned
    assert not is_raised(record)
    assert slots_taken(record, record.planned, record.floor) == 1


def test_a_memory_floor_that_the_plan_already_meets_does_not_change_the_request():
    record = recorded({"CPU": 1, "GPU": 0.5})
    record.floor = MemoryFloor(gpu_ticks=5000)

    assert request_of(record) is record.planned


def test_a_memory_floor_raises_the_request():
    record = recorded({"CPU": 1, "GPU": 0.25})
    record.floor = MemoryFloor(gpu_ticks=5000, memory_bytes=GIB)

    assert request_of(record).bundles == [{"CPU": 1, "GPU": 0.5, "memory": GIB}]
    assert is_raised(record)
    assert slots_taken(record, record.planned, record.floor) == 2


def test_the_request_of_another_scheduler_replaces_the_planned_amounts_and_is_raised_too():
    record = recorded({"CPU": 1, "GPU": 0.25})
    record.changed = request({"CPU": 3, "GPU": 1.5})
    record.floor = MemoryFloor(memory_bytes=GIB)

    assert request_of(record).bundles == [{"CPU": 3, "GPU": 1, "memory": GIB}]


def test_a_raised_request_keeps_the_nodes_of_the_planned_request():
    record = recorded({"CPU": 1, "GPU": 0.25})
    record.planned = request({"GPU": 0.25}, bundle_label_selector=[{"ray.io/node-id": "a"}])
    record.floor = MemoryFloor(gpu_ticks=5000)

    assert request_of(record)._kwargs == {"bundle_label_selector": [{"ray.io/node-id": "a"}]}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(0, 0), (0.25, 0.25), (0.3, 0.25), (0.75, 0.5), (1, 1), (1.5, 1), (2.9, 2), (4, 4)],
)
def test_gpus_of_another_scheduler_are_rounded_down_to_equal_parts_or_whole_devices(gpus, expected):
    assert with_legal_amounts({"CPU": 0.7, "GPU": gpus}) == {"CPU": 0.7, "GPU": expected}


@given(st.floats(0.0001, 16))
def test_rounded_gpus_are_never_more_and_divide_devices_equally(gpus):
    ticks = to_ticks(with_legal_amounts({"GPU": gpus})["GPU"])

    assert 0 < ticks <= to_ticks(gpus)
    if ticks < TICKS:
        assert ticks == TICKS // (TICKS // ticks)
        assert to_ticks(gpus) < 2 * ticks
    else:
        assert ticks % TICKS == 0
        assert to_ticks(gpus) < ticks + TICKS


def test_a_trial_takes_as_many_slots_as_its_largest_bundle_needs():
    record = recorded({"CPU": 1, "memory": GIB}, {"GPU": 0.25})
    record.changed = request({"CPU": 1, "memory": 2 * GIB}, {"GPU": 1})

    bundles = bundles_of(record.planned)
    assert [num_slots_for(*pair) for pair in zip(bundles_of(record.changed), bundles, strict=True)] == [2, 4]
    assert slots_taken(record, record.planned, record.floor) == 4


def test_the_number_of_slots_that_a_trial_would_take_does_not_change_its_record():
    record = recorded({"CPU": 1, "GPU": 0.5})
    record.floor = MemoryFloor(gpu_ticks=5000)
    planned = record.planned

    assert slots_taken(record, request({"CPU": 1, "GPU": 0.25}), record.floor) == 2
    assert record.planned is planned
    assert slots_taken(record, planned, record.floor) == 1
