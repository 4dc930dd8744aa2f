"""Tests of verdicts on runs: the compared pairs of devices, and the doubts about the comparisons."""

import pytest

from tests.unit.benchmarks.timed_runs import ROUNDS, processes, run_set
from tune_policies.benchmarks.compare.compare_devices import verdicts
from tune_policies.benchmarks.record.run_set import Configuration, Failure, NoiseReading, Phase
from tune_policies.benchmarks.report.tables import print_verdicts


def words(runs):
    found = verdicts(runs, Phase.COMPUTE)
    return {(each.first, each.second, each.size): each.word for each in found}


def test_each_device_is_compared_with_the_cpu_at_each_size():
    runs = run_set(
        processes("gpu", 0.02, size=1),
        processes("cpu", 0.01, size=1),
        processes("cpu", 0.1, size=8),
        processes("gpu", 0.02, size=8),
        processes("gpu@0.25", 0.1, size=8),
    )

    assert words(runs) == {("cpu", "gpu", 1): "CPU", ("cpu", "gpu", 8): "GPU", ("cpu", "gpu@0.25", 8): "same"}


def test_the_verdict_is_the_name_of_the_faster_device():
    assert words(run_set(processes("cpu", 3), processes("gpu@0.25", 1))) == {("cpu", "gpu@0.25", 1): "gpu@0.25"}


def test_without_a_cpu_devices_are_compared_with_the_first_device():
    assert words(run_set(processes("gpu", 1), processes("TPU", 3))) == {("gpu", "TPU", 1): "GPU"}


def test_a_phase_without_measurements_has_no_verdict():
    runs = run_set(processes("cpu", 9), processes("gpu", 1))

    assert verdicts(runs, Phase.TRANSFERS) == ()


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        ({"load": 1.0}, "other processes used 1.00 CPUs"),
        ({"load": 0.0, "throttled_s": 0.3}, "quota stopped the processes for 1.5 s"),
        ({"load": 0.0, "gpu_throttled": ("power",)}, "clock was throttled (power)"),
    ],
)
def test_in_a_disturbed_run_a_difference_of_a_tenth_is_ambiguous_and_a_factor_of_ten_is_not(noise, reason):
    readings = tuple(NoiseReading(round=number, **noise) for number in range(ROUNDS))
    runs = run_set(processes("cpu", 1.1), processes("gpu", 1), processes("TPU", 0.1), noise=readings)

    near, far = verdicts(runs, Phase.COMPUTE)

    assert (near.word, far.word) == ("ambiguous", "TPU")
    assert reason in near.comparison.reasons[0]


@pytest.mark.parametrize(("control_s", "expected"), [(1.001, "GPU"), (1.06, "ambiguous"), (1.04, "ambiguous")])
def test_if_equal_configurations_differ_a_difference_of_a_tenth_is_ambiguous(control_s, expected):
    runs = run_set(processes("cpu", 1), processes("cpu", control_s, is_control=True), processes("gpu", 0.9))

    assert words(runs) == {("cpu", "gpu", 1): expected}


def test_the_control_of_another_size_has_no_effect():
    runs = run_set(
        processes("cpu", 1, size=2),
        processes("cpu", 1.2, size=2, is_control=True),
        processes("cpu", 1),
        processes("gpu", 0.9),
    )

    assert words(runs) == {("cpu", "gpu", 1): "GPU"}


@pytest.mark.parametrize(
    ("failures", "dtypes", "reason"),
    [
        (
            [
                Failure(
                    configuration=Configuration(workload="mlp", size=1, device="gpu"),
                    round=0,
                    kind="disagreed",
                    message="2.3 and nan",
                )
            ],
            (None, None),
            "2.3 and nan",
        ),
        ([], ("float32", "float16"), "dtype float32 against float16"),
    ],
    ids=["results that disagree", "other dtypes"],
)
def test_different_work_makes_a_comparison_doubtful(failures, dtypes, reason):
    cpu, gpu = (
        [run.model_copy(update={"dtype": dtype}) for run in processes(device, 1)]
        for device, dtype in zip(("cpu", "gpu"), dtypes, strict=True)
    )

    (found,) = verdicts(run_set(cpu, gpu, failures=tuple(failures)), Phase.COMPUTE)

    assert found.word == "ambiguous"
    assert found.comparison.reasons == (f"the configurations did not do the same work: {reason}",)


def test_the_table_lists_reasons_with_their_configurations(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # the table is wide enough, so no cell is wrapped
    runs = run_set(processes("cpu", 1), processes("gpu", 1.05, wobble=0.03), processes("[red]gpu[/blue]", 3))

    print_verdicts(verdicts(runs, Phase.COMPUTE))

    printed = capsys.readouterr().out
    assert "ambiguous" in printed
    assert "[red]gpu[/blue]" in printed
    assert "* mlp[1] compute: the interval from" in printed
