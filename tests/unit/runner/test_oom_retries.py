"""Tests of the out-of-memory retries of a run: which trials are retried, and which trials get the same memory."""

import pytest

from tests.clusters import GIB, gpu_node
from tests.unit.runner.small_runs import SmallCluster, new_trial
from tune_policies import InfeasibleRequestError, InvalidResourcesError, OomRetryScheduler
from tune_policies.oom import OutOfMemory
from tune_policies.trainers.retries import oom_failure, oom_retry_scheduler
from tune_policies.trainers.retries.memory_floor import MemoryFloor, floor_of, next_share
from tune_policies.trainers.retries.oom_failure import classify_failure
from tune_policies.trainers.retries.oom_history import OomRecord, TrialOomHistory
from tune_policies.trainers.retries.oom_retry_scheduler import OomRetries, check_growth, check_max_gpus
from tune_policies.trainers.scheduling.run_failures import FailureDecision
from tune_policies.trainers.scheduling.trial_record import record_of
from tune_policies.values.resources import TICKS

ACCELERATOR = OutOfMemory(kind="accelerator")
NODES = (gpu_node("a", gpus=4, cpus=8, memory_gib=64),)
QUARTER = {"CPU": 1, "GPU": 0.25}


def retries(growth=2.0, max_gpus=1.0, memory_keys=None):
    return OomRetries(growth, max_gpus, memory_keys)


def recorded(number=0, config=None, bundle=QUARTER):
    return record_of(new_trial(number, config or {"width": 8}, [bundle]))


def test_a_trial_that_ran_out_of_memory_is_requeued_with_more_memory():
    record = recorded()

    decision = retries().decide(record, ACCELERATOR, NODES)

    assert decision == FailureDecision(
        "requeue", "ran out of GPU memory and is retried with 0.5 GPU instead of 0.25 GPU"
    )
    assert record.oom.records == (OomRecord(settings={"width": 8}, floor=MemoryFloor(gpu_ticks=TICKS // 2)),)


def test_a_trial_with_a_raised_request_grows_from_this_request():
    record = recorded()
    record.floor = MemoryFloor(gpu_ticks=TICKS // 2)

    retries().decide(record, ACCELERATOR, NODES)

    assert record.oom.records[0].floor.gpu_ticks == TICKS


def test_the_growth_and_the_maximum_are_those_of_the_scheduler():
    record = recorded()
    retries(growth=1.1).decide(record, ACCELERATOR, NODES)
    assert record.oom.records[0].floor.gpu_ticks == 3333

    with pytest.raises(InfeasibleRequestError, match=r"max_gpus is 0\.25"):
        retries(max_gpus=0.25).decide(recorded(), ACCELERATOR, NODES)


def test_other_errors_count_as_failures():
    record = recorded()

    assert retries().decide(record, OutOfMemory(kind="none"), NODES) == FailureDecision("count")
    assert record.oom == TrialOomHistory()


def test_an_error_of_another_process_counts_as_a_failure_with_a_warning(caplog):
    decision = retries().decide(recorded(bundle={"CPU": 1}), ACCELERATOR, NODES)

    reason = "the trial does not reserve a GPU, so the error comes from another process"
    assert decision == FailureDecision("count", reason)
    assert caplog.messages == [f"train_00000000 ran out of memory, and the error counts as a failure: {reason}"]


def test_a_retry_with_the_same_memory_has_a_pause_and_does_not_apply_to_other_trials():
    run, record = retries(), recorded(bundle={"memory": 4 * GIB})
    used = OutOfMemory(kind="host", used_bytes=GIB, requested_bytes=GIB)

    first, second = [run.decide(record, used, NODES) for _ in range(2)]

    assert (first.action, first.pause_s, second.pause_s) == ("requeue", 10.0, 20.0)
    assert run.num_records == 0
    assert run.decide(record, used, NODES).action == "count"


def test_nodes_that_the_run_has_not_read_are_read(monkeypatch):
    monkeypatch.setattr(oom_retry_scheduler, "read_cluster_state", lambda _: SmallCluster(monkeypatch, *NODES))

    assert retries().decide(recorded(), ACCELERATOR, None).action == "requeue"


def test_a_trial_whose_nodes_cannot_be_read_gets_no_more_memory(monkeypatch, caplog):
    cluster = SmallCluster(monkeypatch)
    cluster.nodes = None
    monkeypatch.setattr(oom_retry_scheduler, "read_cluster_state", lambda _: cluster.capacity())

    decision = retries().decide(recorded(), ACCELERATOR, None)

    assert decision == FailureDecision("count", "the trial needs more memory, but the nodes could not be read")
    assert caplog.messages[0] == ("a trial needs more memory, but the nodes could not be read: Ray does not respond")


# Similar trials


def after_a_retry(**options):
    run = retries(**options)
    run.decide(recorded(), ACCELERATOR, NODES)
    return run


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"width": 8}, TICKS // 2), ({"width": 9}, TICKS // 2), ({"width": 7}, 0), ({"depth": 8}, 0)],
)
def test_a_trial_with_a_similar_config_needs_the_memory_of_the_retry(config, expected):
    run = after_a_retry()

    assert run.num_records == 1
    assert run.floor_of(recorded(1, config), NODES).gpu_ticks == expected


def test_only_memory_keys_are_compared():
    run = after_a_retry(memory_keys=["width"])

    assert run.floor_of(recorded(1, {"width": 8, "seed": 3}), NODES).gpu_ticks == TICKS // 2


def test_a_trial_gets_only_as_much_as_its_limits_allow_with_one_warning(caplog):
    run = after_a_retry()
    small = (gpu_node("a", gpus=1, cpus=8, labels={}),)
    run.decide(recorded(1, {"width": 8}, {"CPU": 1, "GPU": 0.5}), ACCELERATOR, NODES)
    record = recorded(2, {"width": 8}, {"CPU": 9, "GPU": 0.25})
    limited = retries(max_gpus=0.5)
    limited._records = run._records
    caplog.clear()

    record.floor = limited.floor_of(record, small)
    limited.warn_if_limited(record)
    limited.warn_if_limited(record)

    assert record.floor.gpu_ticks == TICKS // 2
    assert caplog.messages == [
        "train_00000002 needs 1 GPU according to earlier out-of-memory errors, but gets 0.5 GPU, because max_gpus or "
        "the nodes do not allow more"
    ]


def test_a_trial_that_gets_what_it_needs_causes_no_warning(caplog):
    run = after_a_retry()
    caplog.clear()

    record = recorded(1)
    record.floor = run.floor_of(record, NODES)
    run.warn_if_limited(record)

    assert caplog.messages == []


class Odd(dict):
    """An object in a config that raises an error."""

    def items(self):
        raise ZeroDivisionError


def test_an_error_in_an_object_of_a_config_leaves_the_trial_its_planned_memory_with_one_message(caplog):
    run = after_a_retry()
    caplog.clear()
    record = recorded(1, {"width": 8})
    record.trial.config = Odd(width=8)

    assert run.floor_of(record, NODES) == MemoryFloor()
    assert "train_00000001 gets the planned memory" in caplog.messages[0]
    assert run.floor_of(record, NODES) == MemoryFloor()
    assert len(caplog.messages) == 1


def test_the_retries_of_a_restored_trial_are_remembered_once():
    run, record = retries(), recorded()
    oom = OomRecord(settings={"width": 8}, floor=MemoryFloor(gpu_ticks=TICKS))
    record.oom = TrialOomHistory(records=(oom,))

    run.remember(record)
    run.remember(record)

    assert run.num_records == 1


def test_unknown_memory_keys_are_reported_once_when_the_first_trials_exist(caplog):
    run = retries(memory_keys=["widht", "width"])

    run.check_keys([])
    run.check_keys([recorded()])
    run.check_keys([recorded(1, {"other": 1})])

    assert caplog.messages == [
        "no config of the first trials contains the key 'widht' of memory_keys; did you mean 'width'?"
    ]


# Arguments


@pytest.mark.parametrize("growth", [1, 0.5, float("inf"), float("nan"), "2", True, None])
def test_the_growth_must_be_a_number_above_1(growth):
    with pytest.raises(InvalidResourcesError, match="growth must be a number above 1, got "):
        check_growth(growth)


@pytest.mark.parametrize(
    ("max_gpus", "message"),
    [(0, "max_gpus must be above 0, got 0"), (-1, "max_gpus"), (1.5, "max_gpus"), ("1", "max_gpus")],
)
def test_the_maximum_number_of_gpus_must_be_valid(max_gpus, message):
    with pytest.raises(InvalidResourcesError, match=message):
        check_max_gpus(max_gpus)


def test_valid_arguments_are_returned():
    assert (check_growth(2), check_max_gpus(0.5), check_max_gpus(4)) == (2.0, 0.5, 4)
    assert OomRetryScheduler(growth=1.5, max_gpus=2, memory_keys=["width"])


# Classification


def test_an_error_without_a_report_is_classified(monkeypatch):
    monkeypatch.setattr(oom_failure, "was_killed_by_kernel", lambda _: False)

    assert classify_failure(RuntimeError("CUDA error: out of memory")).kind == "accelerator"
    assert classify_failure(ValueError("a mistake")).kind == "none"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(ValueError("the process died"), "host", id="an unknown error"),
        pytest.param(RuntimeError("CUDA error: out of memory"), "accelerator", id="a known error"),
    ],
)
def test_only_an_unknown_error_is_due_to_host_memory_if_the_kernel_killed_the_process(monkeypatch, error, kind):
    monkeypatch.setattr(oom_failure, "was_killed_by_kernel", lambda _: True)

    assert classify_failure(error).kind == kind


# Floors


def test_a_floor_is_shown_with_its_amounts():
    assert str(MemoryFloor(gpu_ticks=TICKS // 2, memory_bytes=GIB)) == "0.5 GPU, 1 GiB of host memory"
    assert str(MemoryFloor(gpu_ticks=2 * TICKS)) == "2 GPUs"
    assert str(MemoryFloor()) == "no reserved memory"


def test_the_union_of_floors_is_the_maximum_of_each_amount():
    one, other = MemoryFloor(gpu_ticks=1, memory_bytes=4), MemoryFloor(gpu_ticks=3, memory_bytes=2)

    assert one | other == other | one == MemoryFloor(gpu_ticks=3, memory_bytes=4)


def test_a_floor_raises_fractions_in_all_bundles_and_host_memory_in_the_first():
    floor = MemoryFloor(gpu_ticks=TICKS // 2, memory_bytes=4)
    bundles = [{"memory": 3}, {"GPU": 0.25}, {"GPU": 0}, {"NPU": 0.1}, {"TPU": 4}, {"GPU": 1, "memory": 2}]

    raised = floor.apply_to(bundles)

    assert raised == [{"memory": 4}, {"GPU": 0.5}, {"GPU": 0}, {"NPU": 0.5}, {"TPU": 4}, {"GPU": 1, "memory": 2}]
    assert bundles[0] == {"memory": 3}


def test_the_floor_of_bundles_is_their_smallest_fraction_and_the_memory_of_the_first():
    assert floor_of([{"memory": 3}, {"GPU": 0.5}, {"GPU": 0.25, "memory": 9}, {"GPU": 0}]) == MemoryFloor(
        gpu_ticks=TICKS // 4, memory_bytes=3
    )
    assert floor_of([{"CPU": 1}]) == MemoryFloor()


def test_the_next_share_of_a_fraction_does_not_grow_because_of_rounding():
    """100 * 1.1 is slightly more than 110 in floats."""
    assert next_share(5000, growth=1.1, max_gpus=1.0, num_devices=1) == TICKS
    assert next_share(TICKS, growth=3.0, max_gpus=8.0, num_devices=8) == 3 * TICKS
    assert next_share(TICKS, growth=2.0, max_gpus=1.0, num_devices=8) is None
