"""Tests of the report that a trial's process adds to an out-of-memory error, and of reading it in the program."""

import copy
import pickle
import traceback

import pytest

from tests.unit.oom_errors import KILLED_BY_RAY, SEVERAL_KILLED, TORCH_OOM, build, torch_text
from tune_policies.oom import OutOfMemory
from tune_policies.trainers.process.oom_note import add_report
from tune_policies.trainers.retries.oom_failure import classify_failure
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.oom_report import OomReport

GIB = 2**30

REPORT = OomReport(
    out_of_memory=OutOfMemory(kind="accelerator", framework="torch", requested_bytes=GIB, cause="neighbour"),
    gpu_memory=GpuMemoryUsage(pid=7, gpus=0.25, peak_reserved_bytes=3 * GIB, num_ooms=1),
)


class OwnReduceError(MemoryError):
    """An error that is pickled and copied by its arguments, as CuPy's is."""

    def __init__(self, size, total):
        super().__init__(f"out of memory: {size} of {total}")
        self.sizes = size, total

    def __reduce__(self):
        return type(self), self.sizes


class OwnStateError(MemoryError):
    """An error that is pickled and copied with a state of its own."""

    def __reduce__(self):
        return type(self), self.args, {"step": 3}


def raised(error):
    try:
        raise error
    except Exception as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    "error", [MemoryError("no"), RuntimeError("no"), OwnReduceError(1, 2), OwnStateError("no")], ids=type
)
def test_the_report_is_in_the_traceback_of_the_error_and_of_its_copy(error):
    """Tune copies the error of a function before Ray formats its traceback."""
    error = raised(error)
    add_report(error, REPORT)

    texts = ["".join(traceback.format_exception(each)) for each in (error, copy.copy(error))]

    assert [OomReport.from_text(text) for text in texts] == [REPORT, REPORT]


def test_a_pickled_error_has_no_report_because_its_traceback_contains_it():
    error = raised(OwnReduceError(1, 2))
    add_report(error, REPORT)
    error.add_note("the user's note")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["the user's note"]


def in_message(text):
    return RuntimeError(f"ray::train()\nTraceback (most recent call last):\n{text}")


def as_cause(text):
    error = ValueError("wrapped")
    error.__cause__ = in_message(text)
    return error


@pytest.mark.parametrize("wrap", [in_message, as_cause])
def test_the_program_uses_the_report_instead_of_classifying_the_error_again(wrap):
    """The text of the error itself would be classified as an error about host memory."""
    error = wrap(f"MemoryError\n{REPORT.to_note()}\n")

    assert classify_failure(error) == REPORT.out_of_memory


@pytest.mark.parametrize("line", ["out_of_memory: yes", "out_of_memory: {", 'out_of_memory: {"kind": 1}', ""])
def test_a_line_of_the_user_that_is_not_a_report_is_ignored(line):
    error = in_message(f"MemoryError\n{line}\n")

    assert classify_failure(error).kind == "host"


def test_the_last_report_is_used_if_an_error_contains_the_report_of_another_process():
    other = OomReport(out_of_memory=OutOfMemory(kind="host"))

    assert OomReport.from_text(f"a\n{other.to_note()}\nb\n{REPORT.to_note()}\n") == REPORT


@pytest.mark.parametrize("form", [pytest.param(row[0], id=name) for name, row in KILLED_BY_RAY.items()])
def test_a_kill_by_rays_memory_monitor_is_classified_in_the_program(form):
    assert classify_failure(build(*form)).framework == "ray"


def test_a_killed_trial_is_found_by_its_actor():
    error = build("ray.exceptions.RayActorError", SEVERAL_KILLED)

    assert [classify_failure(error, actor_id).used_bytes for actor_id in ("af6d", "be11")] == [GIB // 4, 5 * GIB // 2]


def test_an_error_without_a_report_is_classified_by_its_type_and_text():
    assert classify_failure(build(TORCH_OOM, torch_text())).requested_bytes == 2 * GIB
