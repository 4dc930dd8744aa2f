"""Verdicts on runs: which pairs there are, what is said against them, and how the machines of two runs differ."""

import pytest

from tests.unit.timed_runs import ROUNDS, processes, run_set
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.judge import Outcome
from tune_policies.benchmarks.compare.verdicts import (
    differences_of_hardware,
    differences_of_software,
    verdicts,
    verdicts_across,
)
from tune_policies.benchmarks.record.run_set import Arm, Environment, Failure, GpuFacts, NoiseReading, Phase


def words(runs, same_within=0.05, **options):
    found = verdicts(runs, Phase.COMPUTE, same_within, **options)
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


def test_the_faster_device_is_called_by_its_name():
    assert words(run_set(processes("cpu", 3), processes("gpu@0.25", 1))) == {("cpu", "gpu@0.25", 1): "gpu@0.25"}


def test_without_a_cpu_the_first_device_is_what_others_are_compared_with():
    assert words(run_set(processes("gpu", 1), processes("TPU", 3))) == {("gpu", "TPU", 1): "GPU"}


def test_two_devices_may_be_named():
    runs = run_set(processes("cpu", 9), processes("gpu", 1), processes("gpu@0.25", 3))

    assert words(runs, between=("gpu@0.25", "gpu")) == {("gpu@0.25", "gpu", 1): "GPU"}


@pytest.mark.parametrize("control", ["cpu (control)", "CPU (control)"])
def test_an_arm_may_be_compared_with_its_control_by_the_name_that_the_table_has(control):
    runs = run_set(processes("cpu", 9), processes("cpu", 9, is_control=True), processes("gpu", 1))

    assert words(runs, between=("CPU", control)) == {("cpu", "cpu (control)", 1): "same"}


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (("cpu", "gpo"), "nothing was measured on 'gpo'; did you mean 'gpu'?"),
        (("cpu", "cpu"), "cannot be compared with itself"),
    ],
)
def test_a_device_without_times_is_named(between, message):
    with pytest.raises(InvalidResourcesError, match=message.replace("?", r"\?")):
        words(run_set(processes("cpu", 9), processes("gpu", 1)), between=between)


def test_a_phase_of_which_nothing_was_measured_has_no_verdict():
    runs = run_set(processes("cpu", 9), processes("gpu", 1))

    assert verdicts(runs, Phase.TRANSFERS) == ()


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        ({"load": 1.0}, "other processes used 1.00 CPUs"),
        ({"load": 0.0, "throttled_s": 0.3}, "quota stopped the processes for 1.5 s"),
        ({"load": 0.0, "gpu_throttled": ("power",)}, "clock was held down (power)"),
    ],
)
def test_a_disturbed_run_hides_a_tenth_and_not_a_factor_of_ten(noise, reason):
    readings = tuple(NoiseReading(round=number, **noise) for number in range(ROUNDS))
    runs = run_set(processes("cpu", 1.1), processes("gpu", 1), processes("TPU", 0.1), noise=readings)

    near, far = verdicts(runs, Phase.COMPUTE)

    assert (near.word, far.word) == ("ambiguous", "TPU")
    assert reason in near.comparison.reasons[0]


@pytest.mark.parametrize(("control_s", "expected"), [(1.001, "GPU"), (1.06, "ambiguous"), (1.04, "ambiguous")])
def test_where_equal_arms_differ_by_half_of_what_counts_a_tenth_is_ambiguous(control_s, expected):
    runs = run_set(processes("cpu", 1), processes("cpu", control_s, is_control=True), processes("gpu", 0.9))

    assert words(runs) == {("cpu", "gpu", 1): expected}


def test_the_control_of_another_size_says_nothing():
    runs = run_set(
        processes("cpu", 1, size=2),
        processes("cpu", 1.2, size=2, is_control=True),
        processes("cpu", 1),
        processes("gpu", 0.9),
    )

    assert words(runs) == {("cpu", "gpu", 1): "GPU"}


def test_results_that_disagree_are_not_called_the_same():
    failure = Failure(arm=Arm(workload="mlp", size=1, device="gpu"), round=0, kind="disagreed", message="2.3 and nan")
    runs = run_set(processes("cpu", 1), processes("gpu", 1), failures=(failure,))

    (found,) = verdicts(runs, Phase.COMPUTE)

    assert found.word == "ambiguous"
    assert found.comparison.reasons == ("the arms did not do the same work: 2.3 and nan",)


def test_devices_that_work_in_other_dtypes_are_not_compared_closely():
    cpu, gpu = (
        [run.model_copy(update={"dtype": dtype}) for run in processes(device, step_s)]
        for device, dtype, step_s in (("cpu", "float32", 1.5), ("gpu", "float16", 1))
    )

    (found,) = verdicts(run_set(cpu, gpu), Phase.COMPUTE)

    assert found.word == "ambiguous"
    assert found.comparison.reasons == ("the arms did not do the same work: dtype float32 against float16",)


def test_two_runs_are_compared_arm_by_arm():
    before = run_set(processes("cpu", 1), processes("gpu", 1), processes("cpu", 1, is_control=True))
    after = run_set(processes("cpu", 1.2), processes("TPU", 1), processes("cpu", 1.2, is_control=True))

    (found,) = verdicts_across(after, before, Phase.COMPUTE, names=("new", "old"))

    assert (found.word, found.first) == ("old on cpu", "new on cpu")
    assert found.comparison.ratio == pytest.approx(1.2)


def test_what_is_said_against_one_of_two_runs_names_it():
    noisy = tuple(NoiseReading(round=number, load=2) for number in range(ROUNDS))
    before, after = run_set(processes("cpu", 1)), run_set(processes("cpu", 1.2), noise=noisy)

    (found,) = verdicts_across(after, before, Phase.COMPUTE, names=("new", "old"))

    assert found.comparison.outcome is Outcome.AMBIGUOUS
    assert found.comparison.reasons[0].startswith("new: other processes used 2.00 CPUs")


def machine(**others):
    return Environment(**{"cpu_model": "EPYC", "num_cpus": 2, "versions": {"torch": "2.9"}, "python": "3.11", **others})


def test_another_gpu_is_another_machine():
    assert differences_of_hardware(machine(), machine(gpus=(GpuFacts(name="L4"),))) == ("GPUs: [] against ['L4']",)


def test_another_version_is_the_same_machine():
    one, other = machine(), machine(versions={"torch": "2.13", "jax": "0.10"})

    assert differences_of_hardware(one, other) == ()
    assert differences_of_software(one, other) == ("jax none against 0.10", "torch 2.9 against 2.13")
