"""Tests of what a run tells about what it has learned, and of the policy that it saves."""

from types import SimpleNamespace

import pytest
from pyarrow.fs import LocalFileSystem

from tests.clusters import GIB
from tests.unit.runner.learning_runs import (
    NODE,
    START,
    end_pilots,
    policy_of,
    report,
    report_all,
)
from tests.unit.runner.small_runs import SmallRun
from tune_policies import (
    CappedPolicy,
    LearningPolicy,
    load_policy,
)
from tune_policies.values.units import MIB


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on one node."""
    return lambda policy: SmallRun(monkeypatch, policy, NODE)


def test_a_line_that_says_the_same_is_printed_once(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(20)
    pilots = run.run_all()
    for trial in pilots:
        report(run, trial, number=3)
    run.step()
    for trial in pilots:
        run.complete(trial)
    run.step()

    lines = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("after ")]

    assert lines
    assert len(lines) == len(set(lines))


def test_a_run_tells_how_many_trials_fit_and_how_many_run_until_their_effect_is_known(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(20)
    run.run_all()
    end_pilots(run)
    run.run_all()

    assert "; 28 would fit, up to 6 run at once until it is known whether more slow down each other" in lines_of(capsys)


def test_a_run_tells_each_time_when_many_more_trials_may_run(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(60)
    pilots = run.run_all()
    report_all(run, (1, 2), step_s=10)
    for trial in pilots[:2]:
        run.complete(trial)
    run.run_all()
    report_all(run, (3, 4, 5), step_s=10)
    run.run_all()
    report_all(run, (6, 7, 8), step_s=10)

    told = lines_of(capsys)
    assert told.count("do not slow down each other, so up to 28 run at once") == 1


def test_a_number_of_trials_that_changes_little_is_not_told_again(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(60)
    run.run_all()
    end_pilots(run)
    run.run_all()
    lines_of(capsys)
    before = policy_of(run).needs
    report_all(run, (1, 2, 3), step_s=10, memory_bytes=540 * MIB)
    run.step()

    assert policy_of(run).needs != before
    assert "would fit" not in lines_of(capsys)


def lines_of(capsys):
    return capsys.readouterr().out


def test_a_run_tells_when_more_trials_at_once_are_slower(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(60)
    pilots = run.run_all()
    report_all(run, (1, 2), step_s=10)
    for trial in pilots[:2]:
        run.complete(trial)
    run.run_all()
    report_all(run, (3, 4, 5), step_s=100)

    assert "times as fast together as 4, so at most 4 run at once" in lines_of(capsys)


def test_at_its_end_a_run_tells_what_was_learned_and_how_to_use_it(run_of, capsys, tmp_path):
    run = run_of(CappedPolicy(LearningPolicy(START), 3))
    run.add(20)
    run.run_all()
    end_pilots(run)
    store_in(run, tmp_path)
    run.core.end()

    file = tmp_path / "learned_policy.json"
    assert lines_of(capsys).splitlines()[-2:] == [
        f"learned from 3 trials: {load_policy(file).with_fixed_amounts()!r}",
        f'next time: load_policy("{file}"), again inside CappedPolicy',
    ]


def test_a_run_tells_the_call_and_the_command_that_use_what_was_learned(run_of, capsys, tmp_path):
    run = learned_run(run_of)
    end_pilots(run)
    folder = tmp_path / "my run"
    folder.mkdir()
    store_in(run, folder)
    run.core.end()

    file = folder / "learned_policy.json"
    assert lines_of(capsys).splitlines()[-1] == (
        f"next time: load_policy(\"{file}\"), or tune-policies exec '{file}' program.py"
    )


def store_in(run, folder):
    """Let a run store its files in a folder."""
    run.core.learning._storage = SimpleNamespace(experiment_fs_path=str(folder), storage_filesystem=LocalFileSystem())


def learned_run(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    run.run_all()
    return run


def test_without_storage_a_run_tells_only_what_was_learned(run_of, capsys):
    run = learned_run(run_of)
    end_pilots(run)
    lines_of(capsys)
    run.core.end()

    (line,) = lines_of(capsys).splitlines()
    assert line.startswith("learned from 4 trials: CpuPolicy(")


def test_at_the_end_a_file_that_cannot_be_written_is_only_a_warning(run_of, capsys, caplog, tmp_path):
    run = learned_run(run_of)
    end_pilots(run)
    (tmp_path / "file").touch()
    store_in(run, tmp_path / "file" / "folder")
    lines_of(capsys)
    run.core.end()

    assert "learned_policy.json could not be written" in caplog.text
    assert "next time" not in lines_of(capsys)


def test_the_policy_is_written_in_the_background_as_soon_as_it_has_learned(run_of, tmp_path):
    run = learned_run(run_of)
    store_in(run, tmp_path)
    end_pilots(run)
    run.core.learning._writing.wait(10)

    assert load_policy(tmp_path / "learned_policy.json") == policy_of(run)


def test_a_failure_in_the_background_is_a_warning_at_the_next_write(run_of, caplog, tmp_path):
    run = learned_run(run_of)
    (tmp_path / "file").touch()
    store_in(run, tmp_path / "file" / "folder")
    end_pilots(run)
    run.core.learning._writing.wait(10)
    for trial in run.run_all():
        report(run, trial, memory_bytes=2 * GIB)
    run.step()

    assert "learned_policy.json could not be written" in caplog.text


def test_the_last_trials_teach_the_next_run_although_this_run_does_not_plan_again(run_of, tmp_path):
    run = learned_run(run_of)
    end_pilots(run)
    store_in(run, tmp_path)
    for trial in run.run_all():
        report(run, trial, memory_bytes=3 * GIB)
    run.core.end()

    assert load_policy(tmp_path / "learned_policy.json").needs.observed.host_memory_bytes > 3 * GIB


def test_a_run_that_has_learned_nothing_tells_nothing_at_its_end(run_of, capsys):
    run = run_of(LearningPolicy(START))
    run.add(20)
    run.run_all()
    lines_of(capsys)
    run.core.end()

    assert lines_of(capsys) == ""
