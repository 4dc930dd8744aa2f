"""Tests of the simulator of sweeps, and of the sizing rules."""

import random

import pytest

from tests.evidence.sizing.programs import Program, draw
from tests.evidence.sizing.real_runs import CHECKS, Check, makespan, predict, start_times
from tests.evidence.sizing.rules import all_rules
from tests.evidence.sizing.rules.clusters import max_throughput, vpa_after_oom, vpa_target
from tests.evidence.sizing.rules.fixed import Fixed, LateOracle, Oracle
from tests.evidence.sizing.rules.learning import Learning
from tests.evidence.sizing.rules.tuners import (
    AutoGluon,
    Flaml,
    Nni,
    cpus_per_job,
    cpus_per_trial,
    folds_in_parallel,
    folds_on_gpus,
    lgbm_size,
)
from tests.evidence.sizing.simulated_programs import slowdowns
from tests.evidence.sizing.simulation import GIB, START_S, Machine, SimTrial, Simulation
from tests.evidence.sizing.sweeps import SWEEPS
from tune_policies import CpuPolicy

pytestmark = pytest.mark.ci

ONE_GPU = Machine((80.0,), 8, 64)


def outcome(trials, rule, machine=ONE_GPU):
    return Simulation(machine, trials, rule).run()


def test_trials_on_a_whole_gpu_run_one_after_the_other():
    trials = [SimTrial({}, 100, gpu_gib=10, utilization=0.5)] * 3

    assert outcome(trials, Fixed("")).makespan_s == pytest.approx(3 * (100 + START_S))


@pytest.mark.parametrize(("utilization", "seconds"), [(0.25, 100), (0.5, 200), (1.0, 400)])
def test_four_trials_share_the_time_of_a_gpu(utilization, seconds):
    trials = [SimTrial({}, 100, gpu_gib=10, utilization=utilization)] * 4

    assert outcome(trials, Fixed("", 0.25)).makespan_s == pytest.approx(seconds + START_S)


def test_a_trial_that_exceeds_its_fraction_continues_from_its_checkpoint_with_twice_as_much():
    trial = SimTrial({}, 100, gpu_gib=30, utilization=0.5, early=0.1, peak_at=0.5)

    found = outcome([trial], Fixed("", 0.25))

    assert (found.num_ooms, found.makespan_s) == (1, pytest.approx(100 + 2 * START_S))


def test_a_simulation_ends_at_its_limit_and_counts_the_trials_that_are_left():
    trials = [SimTrial({}, 100, gpu_gib=10, utilization=0.5)] * 3

    assert Simulation(ONE_GPU, trials, Fixed(""), limit_s=150).run().num_lost == 2


def test_the_late_oracle_begins_with_whole_gpus_and_then_gives_each_trial_what_it_needs():
    trials = [SimTrial({}, 1_000, gpu_gib=20, utilization=0.1)] * 4

    late, known = outcome(trials, LateOracle("")), outcome(trials, Oracle(""))

    # The first trial reports twice after a tenth of its work, and restarts in a smaller slot beside the others.
    assert late.makespan_s == pytest.approx(known.makespan_s + START_S + 100)


def test_a_trial_without_checkpoints_starts_again():
    trial = SimTrial({}, 100, gpu_gib=30, utilization=0.5, early=0.1, peak_at=0.5, saves=False)

    assert outcome([trial], Fixed("", 0.25)).makespan_s == pytest.approx(150 + 2 * START_S)


def test_a_trial_with_too_few_cpus_is_slower():
    trial = SimTrial({}, 100, gpu_gib=1, utilization=0.1, cpus=4)

    assert outcome([trial], Fixed("", 1, cpus=2)).makespan_s == pytest.approx(200 + START_S)


def test_if_the_host_memory_is_full_a_trial_is_killed_until_it_reserves_enough_to_wait():
    trials = [SimTrial({}, 100, host_gib=20, cpus=1)] * 2

    found = outcome(trials, Fixed("", 0, 1, host_gib=8), Machine((), 4, 30))

    assert (found.num_ooms, found.num_lost) == (2, 0)


@pytest.mark.parametrize(("num_trials", "seconds"), [(2, 100), (4, 200 * 1.2)])
def test_a_disk_delivers_less_in_total_if_more_is_requested(num_trials, seconds):
    trials = [SimTrial({}, 100, cpus=0.1, disk=0.5)] * num_trials

    found = outcome(trials, Fixed("", 0, 0.1), Machine((), 4, 30))

    assert found.makespan_s == pytest.approx(seconds + START_S)


def test_the_progress_of_trials_limits_how_many_of_them_share_a_disk():
    sweep = SWEEPS["shared disk"](random.Random(3))
    limited, unlimited = Learning(""), Learning("")
    begin = unlimited.begin

    def begin_without_limits(machine, trials):
        begin(machine, trials)
        unlimited.progress.limit = lambda capacity: None

    unlimited.begin = begin_without_limits

    assert Simulation(*sweep, limited).run().makespan_s < 0.8 * Simulation(*sweep, unlimited).run().makespan_s


@pytest.mark.parametrize(("starts_s", "seconds"), [((3.0,), 103), ((3.0, 5.0), 105), ((3.0, 5.0, 7.0), 105)])
def test_processes_start_in_the_given_times(starts_s, seconds):
    simulation = Simulation(Machine((), 2, 30), [SimTrial({}, 100)] * 2, Fixed("", 0), starts_s=starts_s)

    assert simulation.run().makespan_s == pytest.approx(seconds)


def test_processes_that_start_slow_down_busy_trials():
    trials = [SimTrial({}, 10), SimTrial({}, 100)]
    simulation = Simulation(Machine((), 1, 30), trials, Fixed("", 0, 0.5), starts_s=(1.0, 21.0), start_cpus=1.0)

    # The first trial gets half of the CPU until the second process has started, and ends at 21 s.
    assert simulation.run().makespan_s == pytest.approx(21 + 100)


def test_trials_share_the_cpus_that_the_driver_and_ray_leave():
    trials = [SimTrial({}, 90)] * 2
    simulation = Simulation(Machine((), 2, 30), trials, Fixed("", 0), starts_s=(1.0,), overhead_cpus=0.2)

    assert simulation.run().makespan_s == pytest.approx(1 + 90 / 0.9)


def test_there_are_at_least_twelve_sweeps():
    assert len(SWEEPS) >= 12


@pytest.mark.parametrize("name", SWEEPS)
def test_no_trial_is_lost_and_the_start_policy_is_not_faster(name):
    sweep = SWEEPS[name](random.Random(3))

    learned, default = Simulation(*sweep, Learning("")).run(), Simulation(*sweep, Fixed("")).run()

    assert learned.num_lost == 0
    assert learned.makespan_s <= 1.05 * default.makespan_s


def test_rules_are_found_in_all_modules_of_the_package():
    assert {"LearningPolicy", "oracle", "VPA's histogram", "TaskVine's max throughput"} <= all_rules().keys()


def test_the_vertical_pod_autoscaler_recommends_the_95th_percentile_plus_15_percent():
    peaks = [GIB] * 95 + [8 * GIB] * 5

    assert vpa_target(peaks) == pytest.approx(1.15 * GIB, rel=0.06)


@pytest.mark.parametrize(("used", "bumped"), [(200 * 2**20, 300 * 2**20), (GIB, 1.2 * GIB)])
def test_after_an_error_the_vertical_pod_autoscaler_adds_100_mib_or_20_percent(used, bumped):
    assert vpa_after_oom(used) == pytest.approx(bumped)


def test_the_first_allocation_of_taskvine_has_the_highest_throughput():
    # 90 tasks of 1 GiB and 10 tasks of 10 GiB: 1 + 0.1 * 10 is less than 10.
    assert max_throughput([1.0] * 90 + [10.0] * 10, 10.0) == 1.0


@pytest.mark.parametrize(
    ("num_cpus", "num_jobs", "minimum", "in_memory", "expected"),
    [
        pytest.param(32, 20, 4, None, (4, 8), id="the CPUs limit the jobs"),
        pytest.param(32, 20, 4, 2, (16, 2), id="the memory limits the jobs"),
    ],
)
def test_the_cpus_of_a_job_are_those_of_the_tests_of_autogluon(num_cpus, num_jobs, minimum, in_memory, expected):
    assert cpus_per_job(num_cpus, num_jobs, minimum, in_memory) == expected


@pytest.mark.parametrize(("ratio", "folds"), [(1.0, 8), (0.8, 6)])
def test_the_folds_on_a_gpu_are_those_of_the_tests_of_autogluon(ratio, folds):
    assert folds_on_gpus([96e9], 12e9, ratio) == folds


@pytest.mark.parametrize(("available", "folds"), [(100, 8), (9, 4), (2, 1), (0.5, 1)])
def test_autogluon_fits_all_folds_or_a_power_of_two_in_80_percent_of_the_memory(available, folds):
    assert folds_in_parallel(8, available, 1) == folds


def test_nni_runs_two_trials_on_each_of_two_gpus_as_in_its_test_with_six_trials():
    rule = Nni()
    rule.max_trial_number_per_gpu = 2
    trials = [SimTrial({}, 100, gpu_gib=1, utilization=0.1)] * 6

    assert outcome(trials, rule, Machine((80.0, 80.0), 8, 64)).makespan_s == pytest.approx(2 * (100 + START_S))


def test_flaml_estimates_a_model_from_its_leaves_and_trees():
    # A tree has 3 numbers for each leaf and 4 for each split, with 8 bytes each.
    assert lgbm_size({"n_estimators": 100, "num_leaves": 31}) == (31 * 3 + 30 * 4 + 1) * 100 * 8


@pytest.mark.parametrize(("num_cpus", "at_once", "cpus"), [(32, 4, 3), (4, 4, 1), (32, 1, 15)])
def test_flaml_divides_half_of_the_cpus(num_cpus, at_once, cpus):
    assert cpus_per_trial(num_cpus, at_once) == cpus


def test_flaml_does_not_try_a_model_above_its_limit():
    small, large = ({"n_estimators": trees, "max_depth": 16} for trees in (100, 2_000))

    assert outcome([SimTrial(small, 100), SimTrial(large, 100)], Flaml(), Machine((), 4, 30)).num_lost == 1


def test_a_trial_that_runs_out_of_memory_is_lost_with_a_rule_without_retries():
    trials = [SimTrial({}, 100, gpu_gib=gib, utilization=0.1) for gib in (1, 1, 40)]

    assert [outcome(trials, rule).num_lost for rule in (AutoGluon(), Nni())] == [1, 1]


@pytest.mark.parametrize("reports_once", [False, True], ids=["2 to 25 results", "one result"])
def test_a_random_program_is_hardly_slower_than_under_its_start_policy(reports_once):
    """In a program that is slower, trials share a disk that becomes slower together, and few trials are left."""
    found = slowdowns(range(150), reports_once=reports_once)

    assert sum(slowdown.num_lost for slowdown in found) == 0
    assert max(slowdown.ratio for slowdown in found) < 1.15
    assert sum(slowdown.ratio > 1.05 for slowdown in found) <= 0.06 * len(found)


def real_outcome(*trials, begin_s=1_000.0):
    """Return the outcome of a run from the times of the decision, the training and the end of each trial."""
    decisions, events = [], []
    for i, (decided, began, ended) in enumerate(trials):
        decisions.append((f"t{i}", begin_s + decided))
        events.append({"trial": f"t{i}", "began_s": begin_s + began})
        ended_s = begin_s + ended
        events.append({"x": i / len(trials), "ended_s": ended_s, "cpu_s": 0.1, "rss": GIB // 4})
    times = {"begin_s": begin_s, "decisions": decisions, "events": events}
    return {"seconds": max(ended for _, _, ended in trials), "overhead_cpu_s": 0.0, **times}


def test_a_process_starts_in_the_time_since_the_end_that_allowed_its_start():
    outcome = real_outcome((0.5, 3, 13), (0.5, 4, 14), (13.2, 18, 28))

    # The first two wait since the begin of the run, and the third since the end of the first.
    assert start_times(outcome) == pytest.approx([3, 4, 5])


def test_the_simulator_predicts_the_makespan_from_measured_starts():
    program = Program(kind="sleeping", num_trials=4, num_steps=5, step_s=2.0)
    outcome = real_outcome((0.5, 3, 13), (0.5, 4, 14), (13.2, 18, 28), (14.2, 18, 28))

    assert predict(Check("", program, CpuPolicy()), outcome) == pytest.approx(makespan(outcome))


def test_there_are_twelve_runs_that_the_simulator_predicts():
    assert len({check.name for check in CHECKS}) == 12


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_have_8_to_24_trials_of_2_to_10_s(seed):
    program = draw(seed)

    assert program == draw(seed)
    assert 8 <= program.num_trials <= 24
    assert 1.9 <= program.num_steps * program.step_s <= 10
