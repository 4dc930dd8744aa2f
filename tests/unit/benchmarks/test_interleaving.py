"""Tests of the order of measurements, and of the missing measurements of a stopped run."""

from pathlib import Path

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.decide.device_decision import UndecidedError, measured_gpu
from tune_policies.benchmarks.measuring.interleaving import (
    check_same,
    interleave,
    order_of_groups,
    order_of_processes,
)
from tune_policies.benchmarks.record.missing_measurements import (
    given_up,
    groups_of,
    interruption,
    is_done,
    num_complete_rounds,
    num_missing,
)
from tune_policies.benchmarks.record.run_set import (
    Configuration,
    DeviceFound,
    Environment,
    Failure,
    GpuFacts,
    Phase,
    ProcessRun,
    RunSet,
    Settings,
)

SETTINGS = Settings(sizes={"mlp": (16, 64), "cnn": (8,)}, devices=("cpu", "gpu"), num_rounds=2)
GROUP = groups_of(SETTINGS, ["cpu", "gpu"])[0]
PHASES = dict.fromkeys(GROUP.configurations, (Phase.COMPUTE, Phase.TRANSFERS))


def process_of(configuration, number=0, **fields):
    began = "2026-01-02T03:04:05Z"
    return ProcessRun(
        configuration=configuration, round=number, order=0, pid=1, node="host", started_at=began, **fields
    )


def a_run(*runs, failures=(), settings=SETTINGS, versions=(("torch", "2.13"),), accelerator_type=None, **machine):
    gpu = DeviceFound(device="gpu", slot="1 CPU, 1 GPU", accelerator_type=accelerator_type)
    return RunSet(
        command="run",
        seed=0,
        created_at="2026-01-02T03:04:05Z",
        environment=Environment(cpu_model="CPU", num_cpus=2, versions=dict(versions), **machine),
        devices=(DeviceFound(device="cpu", slot="1 CPU"), gpu),
        num_rounds=settings.num_rounds,
        settings=settings,
        runs=runs,
        failures=failures,
    )


def failure_of(configuration, kind, number=0):
    return Failure(configuration=configuration, round=number, kind=kind, message="why")


def test_a_group_has_a_configuration_on_each_device_and_a_control_on_the_first_device():
    assert [str(configuration) for configuration in GROUP.configurations] == [
        "mlp[16] on cpu",
        "mlp[16] on gpu",
        "mlp[16] on cpu (control)",
    ]


def test_each_sweep_has_each_phase_of_each_configuration_once():
    for sweep in interleave(PHASES, 5, "seed"):
        assert len(sweep) == 6
        assert set(sweep) == {
            (configuration, phase) for configuration in GROUP.configurations for phase in PHASES[configuration]
        }


def test_the_seed_determines_the_order():
    def orders(seed):
        groups = groups_of(SETTINGS, ["cpu", "gpu"])
        return (
            [order_of_groups(groups, seed, number) for number in range(4)],
            [order_of_processes(GROUP, seed, number) for number in range(4)],
            [list(interleave(PHASES, 2, f"{seed}/{number}")) for number in range(4)],
        )

    assert orders(1) == orders(1)
    assert all(first != second for first, second in zip(orders(1), orders(2), strict=True))


def test_a_group_with_all_measurements_is_not_measured_again():
    run_set = a_run(*map(process_of, GROUP.configurations))

    assert is_done(run_set, GROUP, 0)
    assert not is_done(run_set, GROUP, 1)


@pytest.mark.parametrize(("kind", "is_given_up"), [("raised", True), ("timed_out", True), ("died", False)])
def test_only_a_configuration_whose_process_died_is_retried_in_the_next_round(kind, is_given_up):
    broken = GROUP.configurations[1]

    run_set = a_run(failures=(failure_of(broken, kind),))

    assert given_up(run_set) == ({broken} if is_given_up else set())
    assert is_done(run_set, GROUP._replace(configurations=(broken,)), 1) is is_given_up


def test_all_groups_except_completed_groups_count_as_missing():
    assert num_missing(a_run(*map(process_of, GROUP.configurations))) == 3 * 2 - 1


def test_an_interrupted_run_says_what_it_lacks_and_how_to_continue():
    run_set = a_run(*map(process_of, GROUP.configurations))

    (text,) = interruption(run_set, Path("my run.json"))

    assert num_complete_rounds(run_set) == 0
    assert text == (
        "the run was interrupted before it was complete, so it lacks mlp[16] in 1 of 2 rounds, mlp[64] in 2 of 2 "
        "rounds, cnn[8] in 2 of 2 rounds. To continue, run: tune-policies bench run --resume 'my run.json'"
    )


def test_a_decision_without_times_of_a_gpu_mentions_the_interruption():
    run_set = a_run(process_of(GROUP.configurations[0]))

    with pytest.raises(UndecidedError, match=r"The run was interrupted .* bench run --resume a\.json"):
        measured_gpu(run_set, None, Path("a.json"))


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (a_run(versions=(("torch", "2.14"),)), "version of torch was 2.13, but is now 2.14"),
        (a_run().model_copy(update={"devices": ()}), "device cpu was 1 CPU, but is now None"),
        (a_run(accelerator_type="L4"), "type of gpu was None, but is now L4"),
        (a_run(gpus=(GpuFacts(name="L4"),)), "list of GPUs was none, but is now L4"),
        (a_run(usable_cpus=1), "usable_cpus was None, but is now 1"),
    ],
    ids=["a version", "the devices", "a device's type", "the GPUs", "the quota of CPUs"],
)
def test_a_run_cannot_be_resumed_if_the_machine_has_changed(now, message):
    with pytest.raises(InvalidResourcesError, match=message):
        check_same(a_run(), now)


def test_a_run_can_be_resumed_if_nothing_has_changed():
    check_same(a_run(process_of(Configuration(workload="mlp", size=16, device="cpu"))), a_run())
