"""The advice for a run is the plan that a LearningPolicy makes from the use of its trials, with an estimated speed."""

from dataclasses import replace

import pytest

from tests.clusters import gpu_node, nodes
from tune_policies import ClusterCapacity, CpuPolicy, LearningPolicy
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.trainers.usage.advice import advise
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.process_usage import ProcessUsage
from tune_policies.trainers.usage.run_facts import Machines, RunFacts, TrialFacts
from tune_policies.trainers.usage.run_simulation import RunSimulation

GIB = 2**30


def trials(number, *, cpus=0.1, ran_s=60.0, told_s=2.0, gpus=0.0, **used):
    process = ProcessUsage(elapsed_s=100, cpus=2, cpu_s=100 * cpus, host_memory_bytes=GIB // 8, **used)
    memory = GpuMemoryUsage(gpus=gpus, device_bytes=16 * GIB, process_bytes=2 * GIB) if gpus else None
    return [TrialFacts(str(i), {}, ran_s, told_s, process, memory, gpus) for i in range(number)]


def facts(elapsed_s, at_once, most_open=1_000, num_trials=1_000, **machines):
    return RunFacts(elapsed_s, at_once, num_trials, most_open, machines=Machines(**{"start_cpu_s": 0.0, **machines}))


def test_the_advised_number_of_trials_is_that_of_a_learning_policy_that_observed_the_trials():
    cluster = nodes((8, 0))
    used = TrialNeed(cpus=0.1, host_memory_bytes=GIB // 8)
    seen = [TrialObservation(trial_id=str(i), used=used, ended=True) for i in range(100)]
    plan = LearningPolicy().learn(seen).plan(cluster)

    advice = advise(trials(100), cluster, facts(0.0, 4))

    assert (repr(advice.policy), advice.at_once, advice.instead_of) == (
        "LearningPolicy()",
        plan.max_concurrent_trials,
        4,
    )


def test_the_speedup_is_that_of_the_run_with_the_suggested_policy():
    """The pilots of a LearningPolicy would keep their slots, so the amounts that were learned are suggested."""
    advice = advise(trials(16), nodes((8, 0)), facts(240.0, 4))

    assert (repr(advice.policy), advice.policy.to_yaml(one_line=True), advice.at_once) == (
        'CpuPolicy(cpus=0.1, memory="144MiB")',
        "{kind: CpuPolicy, cpus: 0.1, memory: 144MiB}",
        80,
    )
    assert advice.speedup == pytest.approx(4.0, rel=0.01)


def test_a_learned_amount_that_no_node_has_is_not_suggested():
    """The plan of the LearningPolicy limits the amount to the node, but a policy with fixed amounts does not fit."""
    used = trials(1)[0].process.model_copy(update={"host_memory_bytes": 31 * GIB // 4})
    cluster = ClusterCapacity(nodes=tuple(gpu_node(name, gpus=0, cpus=8, memory_gib=8) for name in "abcd"))

    advice = advise([replace(trial, process=used) for trial in trials(16)], cluster, facts(960.0, 1))

    assert (repr(advice.policy), advice.at_once) == ("LearningPolicy()", 4)


def test_learning_is_suggested_if_its_pilots_cost_little():
    advice = advise(trials(1440), nodes((8, 0)), facts(60.0 * 360, 4))

    assert repr(advice.policy) == "LearningPolicy()"
    assert advice.speedup == pytest.approx(360 / 19, rel=0.01)


def test_the_estimate_contains_the_time_until_the_run_knows_that_more_trials_are_not_slower():
    """The pilots end after 60 s. 19 trials may run after 50 s and 76 after 100 s, so the last ones start at 120 s."""
    simulation = RunSimulation(trials(88, told_s=50.0), nodes((8, 0)), facts(0.0, 8))

    assert simulation.duration_s(8, [1 / 80] * 88, num_pilots=4) == pytest.approx(180, rel=0.01)


def test_no_policy_is_suggested_for_trials_that_use_the_cpus_of_the_machine():
    """Ray counts more CPUs than the machine has."""
    found = advise(trials(32, cpus=0.5), nodes((16, 0)), facts(240.0, 8, usable_cpus=2))

    assert found == (
        "32 trials would fit at once instead of 8, but this run would not end earlier, because trials share the CPUs, "
        "and their processes take time to start"
    )


def test_time_outside_of_trials_is_not_shorter_under_a_policy():
    advice = advise(trials(16), nodes((8, 0)), facts(240.0 + 60, 4))

    assert advice.speedup == pytest.approx(300 / 120, rel=0.01)


@pytest.mark.parametrize(
    ("load", "speedup"),
    [
        # All 16 processes start on 2 CPUs in 8 s, and 4 processes did in 2 s.
        pytest.param(0, 242 / 69, id="idle machine"),
        # With 18 busy processes of other programs, each of the 16 processes gets 2/34 of a CPU instead of 2/22.
        # Under a policy, Ray starts one more process, which reads the nodes.
        pytest.param(18, 251 / 86.5, id="busy machine"),
    ],
)
def test_more_processes_take_longer_to_start(load, speedup):
    observed_s = {0: 242, 18: 251}[load]

    found = advise(
        trials(16, cpus=0.001), nodes((8, 0)), facts(observed_s, 4, usable_cpus=2, load=load, start_cpu_s=1.0)
    )

    assert found.speedup == pytest.approx(speedup, rel=0.02)
    assert ("rough estimate" in str(found)) is (load > 0)


def test_imports_of_the_first_trial_in_a_process_count_for_each_process():
    """The first trial in a process runs for 3 s more, and uses 2 s more CPU time."""
    first = trials(4, cpus=0.021, ran_s=63.0, told_s=5.0)
    later = [replace(trial, reuses_process=True) for trial in trials(12, cpus=0.001, ran_s=60.0, told_s=2.0)]

    simulation = RunSimulation([*first, *later], nodes((8, 0)), facts(0.0, 4, usable_cpus=2, start_cpu_s=1.0))

    assert simulation.duration_s(4) == pytest.approx(4 * 3 / 2 + 4 * 60, rel=0.01)
    assert simulation.duration_s(16) == pytest.approx(16 * 3 / 2 + 60, rel=0.01)


def test_a_trial_that_failed_before_its_imports_ended_takes_no_time_in_a_reused_process():
    first = trials(4, cpus=0.021, ran_s=63.0, told_s=5.0)
    later = [replace(trial, reuses_process=True) for trial in trials(12, cpus=0.001, ran_s=60.0, told_s=2.0)]
    failed = trials(1, ran_s=1.0, told_s=None)
    some = facts(0.0, 4, usable_cpus=2, start_cpu_s=1.0)

    without_s = RunSimulation([*first, *later], nodes((8, 0)), some).duration_s(16)

    assert RunSimulation([*first, *later, *failed], nodes((8, 0)), some).duration_s(16) == pytest.approx(without_s)


def test_trials_on_gpus_share_the_time_of_the_gpu():
    cluster = ClusterCapacity(nodes=(gpu_node("a", gpu_memory_gib=16),))

    advice = advise(trials(24, gpus=1.0, gpu_utilization=0.2), cluster, facts(24 * 60.0, 1))

    assert repr(advice.policy) == 'GpuMemoryPolicy(gpu_memory="2256MiB", max_trials_per_gpu=10, memory="144MiB")'
    assert advice.at_once == advice.policy.plan(cluster).max_concurrent_trials == 7
    assert 4 < advice.speedup < 6


def test_trials_without_gpus_stay_on_cpus_if_the_cluster_has_gpus():
    cluster = ClusterCapacity(nodes=(gpu_node("a", gpu_memory_gib=16),))

    assert advise(trials(16), cluster, facts(0.0, 2)).policy == LearningPolicy(CpuPolicy())


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(
            advise([TrialFacts("a")], nodes((8, 0)), facts(60.0, 4)),
            "what the trials used is not known, because none of them was measured for 2 s",
            id="nothing measured",
        ),
        pytest.param(
            advise(trials(16, cpus=0.9), nodes((8, 0)), facts(60.0, 8)),
            "more trials at once would need more than the cluster has",
            id="busy",
        ),
        pytest.param(
            advise(trials(4), nodes((8, 0)), facts(60.0, 4, num_trials=4)),
            "all 4 trials could run at once",
            id="few trials",
        ),
        pytest.param(
            advise(trials(16), nodes((8, 0)), facts(60.0, 4, most_open=4)),
            "80 trials would fit at once, but the run never had more than 4 unfinished trials. "
            "Omit max_concurrent_trials, or raise the limit of the search algorithm",
            id="a searcher that suggests few trials",
        ),
    ],
)
def test_without_advice_the_reason_is_known(found, why):
    assert found == why
