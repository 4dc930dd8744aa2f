"""The command that measures what only a GPU can show, with steps that end at once."""

import sys
import tarfile

import psutil
import pytest

from tests.on_gpu.campaign import POLICIES, STEPS, Step, run_steps

WRITES = (sys.executable, "-c", "import pathlib; pathlib.Path(r'{record}').open('a').write('done')")
FAILS = (sys.executable, "-c", "raise SystemExit('no device')")
HANGS = (sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '77.125'])")
PRINTS = (sys.executable, "-c", "print('found')")

QUICK = Step(1, "quick.json", 60, WRITES)
FAILING = Step(2, "failing.json", 60, (*FAILS, "{record}"))


def test_a_step_with_a_record_does_not_run_again(tmp_path):
    for _ in range(2):
        run_steps([QUICK], tmp_path, seconds=100)

    assert (tmp_path / "quick.json").read_text() == "done"


def test_a_record_of_a_rehearsal_is_replaced(tmp_path):
    rehearsed = Step(1, "quick.json", 60, WRITES, PRINTS)
    assert run_steps([rehearsed], tmp_path, seconds=100, rehearse=True) == [rehearsed]

    assert run_steps([rehearsed], tmp_path, seconds=100) == []


def test_a_step_without_a_record_is_left_and_the_next_one_runs(tmp_path):
    assert run_steps([FAILING, QUICK], tmp_path, seconds=100) == [FAILING]


def test_the_output_is_the_record_of_a_command_that_writes_none(tmp_path):
    assert run_steps([Step(5, "probe.txt", 60, PRINTS)], tmp_path, seconds=100) == []

    assert (tmp_path / "probe.txt").read_text() == "found\n"


def test_a_step_that_exceeds_its_limit_is_ended_with_its_processes(tmp_path):
    hanging = Step(4, "hanging.txt", 2, HANGS)

    assert run_steps([hanging], tmp_path, seconds=100) == [hanging]

    assert not [process for process in psutil.process_iter() if "77.125" in " ".join(_command(process))]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_step_whose_limit_does_not_fit_into_the_time_is_left(tmp_path):
    assert run_steps([QUICK], tmp_path, seconds=59) == [QUICK]

    assert not (tmp_path / "quick.json").exists()


def test_the_archive_contains_all_records(tmp_path):
    archive = tmp_path / "all.tar.gz"

    run_steps([QUICK], tmp_path / "records", seconds=100, archive=archive)

    with tarfile.open(archive) as packed:
        assert {"records/quick.json", "records/steps.json"} <= set(packed.getnames())


def test_each_step_fits_into_ten_minutes():
    assert all(step.limit_s <= 500 for step in STEPS)


def test_the_policies_of_the_sweep_are_those_of_its_program():
    pytest.importorskip("torch")
    from tests.on_gpu import learning_sweep

    assert tuple(learning_sweep.POLICIES) == POLICIES
