"""Tests of the file with the resource use of a run, and of the tables printed at the end of the run."""

import threading
from types import SimpleNamespace

import pyarrow.fs
import pytest
from rich.console import Console

from tune_policies import InvalidResourcesError
from tune_policies.ray_compat.background import BackgroundTask
from tune_policies.trainers.usage.policy_callback import PolicyCallback, usage_writer
from tune_policies.trainers.usage.resource_usage import (
    USAGE_FILE,
    IdleHours,
    OutOfMemoryCounts,
    PlanInUse,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
    resource_usage_view,
)


@pytest.mark.parametrize(
    "filesystem",
    [
        pyarrow.fs.LocalFileSystem(),
        pyarrow.fs.SubTreeFileSystem("/", pyarrow.fs.LocalFileSystem()),
    ],
    ids=["a local disk", "another file system"],
)
def test_the_latest_record_replaces_the_previous_one(filesystem, tmp_path):
    storage = SimpleNamespace(storage_filesystem=filesystem, experiment_fs_path=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()

    for text in ("a record that is longer", "the last"):
        usage_writer(storage, text)()

    assert [(file.name, file.read_text()) for file in (tmp_path / "run").iterdir()] == [(USAGE_FILE, "the last")]


def test_a_background_task_runs_one_function_at_a_time():
    background, may_end = BackgroundTask(), threading.Event()
    begun = [background.start(may_end.wait), background.start(may_end.wait)]
    in_time = background.wait(0.01)
    may_end.set()

    assert (begun, in_time, background.wait(10), background.take(), background.take()) == (
        [True, False],
        False,
        True,
        True,
        None,
    )


def test_take_returns_the_error_that_the_function_raised():
    background = BackgroundTask()
    background.start(lambda: 1 // 0)
    background.wait(10)

    assert isinstance(background.take(), ZeroDivisionError)


USAGE = ResourceUsage(
    elapsed_s=7200,
    resources=(
        ResourceHours(
            resource="GPU", total_hours=2, used_hours=1.5, idle=(IdleHours(reason="trials [bold] wait", hours=0.5),)
        ),
    ),
    slots=(SlotHours(slot="0.5 GPU", accelerator_type="L4", num_starts=3, trial_hours=3, hours={"GPU": 1.5}),),
    trials=TrialCounts(num_finished=2, num_failed=1, num_retries=1),
    out_of_memory=OutOfMemoryCounts(num_gpu_errors=2, num_neighbours=1, num_raised=1, num_refused_allocations=4),
    raised_trials={"a": ("GPU",)},
    max_trials_at_once=2,
    num_rounds_planned=2,
    num_rounds=2,
    plans=(PlanInUse(at_s=0, why="", text="a"), PlanInUse(at_s=9, why="1 node removed", text="b")),
    warnings=("the nodes of the cluster could not be read: no answer",),
)

SHOWN = """\
Resources used in 2.0 h
Resource   Total   Reserved   Idle
──────────────────────────────────
GPU        2.0 h   1.5 h      25%

Slot types
Slot      Type   Starts   Trial time     GPU
────────────────────────────────────────────
0.5 GPU   L4     3        3.0 h        1.5 h

Idle resources
Resource   Time       Fraction   Reason
───────────────────────────────────────────────────
GPU        30.0 min   25.0%      trials [bold] wait

- trials: 2 finished, 1 failed; 1 failure retried
- out of memory: 2 failures because of GPU memory, 1 of them because other processes filled the GPU; 1 trial retried
with more memory; 4 failed allocations reported in results
- rounds: 2 planned, 2 run; concurrent trials: at most 2, on average 1.5
- the plan changed 1 time
- the nodes of the cluster could not be read: no answer
"""


def shown(usage):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(resource_usage_view(usage))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def test_the_resource_use_is_shown_in_tables_and_sentences():
    assert shown(USAGE) == SHOWN


def test_a_run_without_trials_has_no_tables_of_slots():
    assert shown(ResourceUsage()).endswith(
        "- trials: none\n- out of memory: never\n- rounds: 0 run; concurrent trials: at most 0\n"
    )


def test_the_state_of_a_callback_saved_by_version_0_1_0_can_be_loaded_and_saved():
    restored = PolicyCallback()

    restored.__setstate__({"_plan": None, "_scheduler": None, "_before": None})

    assert restored.__getstate__() == {"_plan": None, "_deadline_s": None, "_price_per_hour": None, "_before": None}


@pytest.mark.parametrize("name", ["deadline_s", "price_per_hour"])
def test_a_deadline_or_price_that_is_not_positive_is_rejected(name):
    with pytest.raises(InvalidResourcesError, match=f"{name} must be a number above 0, got 0"):
        PolicyCallback(**{name: 0})
