"""What ``compare`` finds in files, what it refuses, and what fails above a limit."""

import re

import pytest

from tests.unit.timed_runs import processes, run_set
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.verdicts import Question, compare_files, surely_slower
from tune_policies.benchmarks.record.run_set import DeviceFound, Environment, Failure, Phase
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.benchmarks.report.tables import print_verdicts


@pytest.fixture
def file(tmp_path):
    def write(name, *arms, **others):
        path = tmp_path / f"{name}.json"
        write_run_set(run_set(*arms, **others), path)
        return path

    return write


def words(answer):
    return [(each.workload, each.size, each.word) for each in answer.verdicts]


def test_the_devices_of_one_file_are_compared(file):
    run = file("run", processes("cpu", 3), processes("gpu", 1))

    assert words(compare_files([run], Question())) == [("mlp", 1, "GPU")]


def test_two_files_are_compared_by_their_names_with_a_warning(file):
    before, after = file("before", processes("cpu", 1)), file("after", processes("cpu", 1.2))

    answer = compare_files([before, after], Question())

    assert words(answer) == [("mlp", 1, "before on cpu")]
    assert "no rounds in common" in answer.notes[0]


def test_other_versions_are_told(file):
    versions = [{"cpu_model": "EPYC", "num_cpus": 2, "versions": {"torch": each}} for each in ("2.9", "2.13")]
    runs = [
        file(name, processes("cpu", 1), environment=Environment(**each))
        for name, each in zip("ab", versions, strict=True)
    ]

    assert compare_files(runs, Question()).notes[1] == "The runs differ: torch 2.9 against 2.13."


def test_runs_of_two_machines_are_refused_unless_asked_for(file):
    before = file("before", processes("cpu", 1))
    after = file("after", processes("cpu", 1.2), environment=Environment(cpu_model="Xeon", num_cpus=2))

    with pytest.raises(InvalidResourcesError, match=r"different machines \(CPU: 'EPYC' against 'Xeon'\)"):
        compare_files([before, after], Question())
    assert words(compare_files([before, after], Question(any_machine=True))) == [("mlp", 1, "ambiguous")]


def test_one_device_alone_cannot_be_compared_and_the_missing_one_is_named(file):
    missing = (DeviceFound(device="gpu", why_missing="no node has a GPU"),)
    run = file("run", processes("cpu", 1), devices=missing, is_complete=True)

    with pytest.raises(InvalidResourcesError, match=r"cpu was measured, and two are needed. gpu is not there: no node"):
        compare_files([run], Question())


def test_runs_without_a_common_arm_say_what_each_has(file):
    before, after = file("before", processes("cpu", 1)), file("after", processes("gpu", 1))

    with pytest.raises(InvalidResourcesError, match=re.escape("before has mlp[1] on cpu; after has mlp[1] on gpu")):
        compare_files([before, after], Question())


@pytest.mark.parametrize(
    ("number", "question", "message"),
    [
        (3, Question(), "one run or two, got 3 files"),
        (2, Question(between=("cpu", "gpu")), "two devices of one run, got two runs"),
    ],
)
def test_what_cannot_be_asked_is_refused(number, question, message, file):
    run = file("run", processes("cpu", 1), processes("gpu", 1))

    with pytest.raises(InvalidResourcesError, match=message):
        compare_files([run] * number, question)


@pytest.mark.parametrize(("after_s", "expected"), [(1.0, 0), (1.04, 0), (1.12, 1), (0.5, 0)])
def test_only_what_is_surely_slower_than_the_limit_fails(after_s, expected, file):
    before, after = file("before", processes("cpu", 1)), file("after", processes("cpu", after_s))

    found = compare_files([before, after], Question(same_within=0.05)).verdicts

    assert len(surely_slower(found, 1.1)) == expected


def test_the_table_names_reasons_with_their_arms(file, capsys):
    run = file("run", processes("cpu", 1), processes("gpu", 1.05, wobble=0.03), processes("gpu@0.5", 3))

    print_verdicts(compare_files([run], Question()).verdicts)

    told = capsys.readouterr().out
    assert "ambiguous" in told
    assert "* mlp[1] compute: the interval from" in told


def test_text_of_a_file_is_no_markup(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no cell is folded
    run = file("run", processes("cpu", 1), processes("[red]gpu[/blue]", 3))

    print_verdicts(compare_files([run], Question()).verdicts)

    assert "[red]gpu[/blue]" in capsys.readouterr().out


def test_an_arm_that_one_of_two_runs_lacks_is_told_with_the_reason(file):
    both = [*processes("cpu", 1), *processes("gpu", 1)]
    arm = both[-1].arm
    failed = (Failure(arm=arm, round=0, kind="raised", message="it raised"),)
    before, after = file("before", both), file("after", processes("cpu", 1), failures=failed, is_complete=True)

    assert compare_files([before, after], Question()).notes[-2:] == (
        "after: mlp[1] on gpu, round 0: it raised",
        "mlp[1] on gpu: not compared, as before has times, but after has none.",
    )


def test_arms_with_other_threads_are_not_the_same_arms(file):
    more = [run.model_copy(update={"num_threads": 4}) for run in processes("cpu", 0.6)]

    answer = compare_files([file("before", processes("cpu", 1)), file("after", more)], Question())

    assert words(answer) == [("mlp", 1, "ambiguous")]
    assert answer.verdicts[0].comparison.reasons[0] == ("the arms did not do the same work: CPU threads 1 against 4")


@pytest.mark.parametrize("number", [1, 2])
def test_a_phase_that_was_not_measured_is_named(number, file):
    run = file("run", processes("cpu", 1), processes("gpu", 1))

    with pytest.raises(InvalidResourcesError, match="has times of with-transfers"):
        compare_files([run] * number, Question(phases=(Phase.TRANSFERS,)))
