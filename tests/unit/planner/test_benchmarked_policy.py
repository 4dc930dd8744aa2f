"""Tests of plans that follow a decision: small trials run on CPUs, and large trials on GPUs."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.clusters import gpu_node, nodes
from tests.decisions import MEASURED_AT, a_decision, a_size, device_times
from tune_policies import (
    AutoscalingPolicy,
    BenchmarkedPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    SelectingPolicy,
)
from tune_policies.plan.benchmark_decision import SizeDecision
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement

NODE = gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=40, accelerator_type="A100").model_copy(
    update={"cpu_model": "a CPU"}
)
CLUSTER = ClusterCapacity(nodes=(NODE,), read_at=MEASURED_AT + timedelta(days=10))
GPU, CPU = GpuPolicy(cpus=2), CpuPolicy(cpus=2)


def policy(decision=None, **fields):
    return BenchmarkedPolicy(decision or a_decision("A100"), **{"gpu": GPU, "cpu": CPU, **fields})


def device(plan, **config):
    return "GPU" if plan.slot_for(config).trial.gpus else "CPU"


@pytest.mark.parametrize(
    ("answers", "sizes", "where"),
    [
        (None, (16, 32, 63, 1), "CPU"),
        (None, (64, 100.5, 4096), "GPU"),
        ({64: "GPU", 128: "GPU"}, (1,), "GPU"),
        ({16: "ambiguous", 64: "GPU"}, (16,), "CPU"),
        ({16: "GPU", 32: "CPU", 64: "GPU"}, (16, 64), "GPU"),
        ({16: "GPU", 32: "CPU", 64: "GPU"}, (40,), "CPU"),
    ],
    ids=[
        "small trials",
        "at and above a size",
        "below all sizes",
        "ambiguous",
        "after a change back",
        "between two sizes",
    ],
)
def test_a_trial_runs_on_the_device_for_the_largest_measured_size_up_to_its_own_size(answers, sizes, where):
    plan = policy(a_decision("A100", answers)).plan(CLUSTER)

    assert {device(plan, batch_size=size) for size in sizes} == {where}


@pytest.mark.parametrize("config", [{}, {"batch_size": "large"}, {"batch_size": 0}, {"batch_size": True}])
def test_a_trial_whose_config_has_no_valid_size_runs_on_the_gpu_and_is_reported(config):
    plan = policy().plan(CLUSTER)

    assert device(plan, **config) == "GPU"
    assert plan.by_config.why_unknown(config) == (
        f"the decision requires a number above 0 for 'batch_size', but the config is {config}"
    )


def test_the_size_may_be_in_a_nested_mapping():
    plan = policy(size="model/width").plan(CLUSTER)

    assert device(plan, model={"width": 16}) == "CPU"
    assert plan.by_config.why_unknown({"model": {"width": 16}}) is None


def test_gpus_and_the_remaining_cpus_both_have_slots():
    plan = policy(gpu=GpuPolicy(gpus=0.5, cpus=1)).plan(CLUSTER)

    # If all configs need GPUs, 4 trials run concurrently. At most 10 run, 4 on GPUs and 6 on the remaining 12 CPUs.
    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == (4, 10)
    assert plan.explain().splitlines()[:3] == [
        "4 to 10 trials at once, depending on their configs, limited by GPU",
        "  at most 8 with 2 CPUs",
        "  at most 4 with 1 CPU, 0.5 GPU, 20 GiB of GPU memory",
    ]


def test_the_slot_type_with_fewer_slots_determines_the_guaranteed_number_of_trials():
    plan = policy(cpu=CpuPolicy(cpus=16)).plan(CLUSTER)

    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == (1, 2)


@pytest.mark.parametrize(("num_on_cpu", "has_room"), [(0, True), (1, False), (7, False)])
def test_a_trial_on_the_gpu_starts_only_beside_trials_on_the_cpu_that_leave_its_cpus(num_on_cpu, has_room):
    capacity = ClusterCapacity.of(gpu_node("a", cpus=8)).model_copy(update={"read_at": CLUSTER.read_at})
    by_config = policy(gpu=GpuPolicy(cpus=8), cpu=CpuPolicy()).plan(capacity).by_config
    on_cpu, on_gpu = by_config.slots

    assert by_config.has_room(on_gpu, [on_cpu] * num_on_cpu) is has_room


def test_a_cap_and_labels_apply_to_both_devices():
    inner = policy(gpu=GpuPolicy(gpus=0.5, cpus=1))

    plan = CappedPolicy(SelectingPolicy(inner, label_selector={"zone": "!eu"}), 3).plan(CLUSTER)

    assert plan.max_concurrent_trials == 3
    assert [device(plan, batch_size=size) for size in (16, 64)] == ["CPU", "GPU"]
    assert {str(plan.slot_for({"batch_size": size}).label_selector) for size in (16, 64)} == {"{'zone': '!eu'}"}


def test_train_runs_get_the_slots_for_their_configs():
    plan = policy(gpu=GpuPolicy(cpus=1, num_workers=2), cpu=CpuPolicy(cpus=2, num_workers=4)).plan(CLUSTER)

    small, large = (plan.for_config({"batch_size": size}) for size in (16, 64))

    assert (small.by_config, small.num_workers, small.resources_per_worker) == (None, 4, {"CPU": 2})
    assert (large.by_config, large.num_workers, large.resources_per_worker) == (None, 2, {"CPU": 1, "GPU": 1})


def test_the_plan_explains_devices_by_size_and_the_measured_range():
    reasons = policy().plan(CLUSTER).reasons

    assert reasons[:4] == (
        "trials of mlp below batch_size 64 run on the CPU, because a trial is not measurably faster on a GPU",
        "trials of mlp from batch_size 64 on run on the GPU, because a trial is measurably faster on a GPU",
        "batch_size was measured from 16 to 256; smaller and larger values use the nearest measured value",
        "the decision was measured on 2026-06-01",
    )
    assert "on the GPU: each trial reserves 2 CPUs, 1 GPU, as requested" not in reasons
    assert "on the CPU: each trial reserves 2 CPUs and no GPU" in reasons


@pytest.mark.parametrize(
    ("answers", "objective", "why"),
    [
        (["CPU", "CPU"], "time", "a trial is measurably faster on a CPU"),
        (["CPU", "same"], "time", "a trial is not measurably faster on a GPU"),
        (["CPU", "ambiguous"], "cost", "a trial does not measurably cost less on a GPU"),
        (["GPU", "GPU"], "cost", "a trial measurably costs less on a GPU"),
    ],
)
def test_the_reason_for_a_device_is_as_strong_as_the_measurement(answers, objective, why):
    sizes = {size: a_size(size, answer, cheapest=answer) for size, answer in zip((16, 64), answers, strict=True)}

    first, *_ = policy(a_decision("A100", sizes), objective=objective).plan(CLUSTER).reasons

    assert first.endswith(f"because {why}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"cpu": CpuPolicy(cpus=4)},
            "the CPU was measured with 2 threads, but a trial reserves 4 CPUs, so trials may be slower",
        ),
        (
            {"gpu": GpuPolicy(gpus=0.5, cpus=2)},
            "the decision was measured with a whole GPU per trial, but trials now get GPU fractions",
        ),
        ({}, ""),
    ],
    ids=["other CPUs", "a fraction of a GPU", "as measured"],
)
def test_differences_from_the_measurement_are_reported(fields, message):
    reasons = [each for each in policy(**fields).plan(CLUSTER).reasons if "measured with" in each]

    assert len(reasons) == bool(message)
    assert all(each.startswith(message) for each in reasons)


@pytest.mark.parametrize(
    ("fields", "cluster", "where"),
    [
        ({}, nodes((16, 0)).model_copy(update={"read_at": datetime(2030, 1, 1, tzinfo=UTC)}), "CPU"),
        ({"cpu": CpuPolicy(cpus=64)}, CLUSTER, "GPU"),
    ],
    ids=["no GPU, whatever the age", "no CPU slot"],
)
def test_all_trials_run_on_the_only_device_that_they_fit(fields, cluster, where):
    plan = policy(**fields).plan(cluster)

    assert (plan.by_config, device(plan)) == (None, where)
    assert plan.reasons[0].startswith(
        f"all trials run on the {where}, regardless of the decision, because there is no "
    )


def test_if_a_trial_fits_neither_device_the_error_contains_both_requests():
    with pytest.raises(InfeasibleRequestError, match="one trial needs 2 CPUs, 1 GPU or else 64 CPUs, but"):
        policy(cpu=CpuPolicy(cpus=64)).plan(nodes((16, 0)))


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (
            a_decision("H100", cpu_model="a CPU"),
            "measured on A100, but the policy's decision was measured on H100: short of",
        ),
        (
            a_decision("A100", cpu_model="another"),
            "measured on a CPU, but the policy's decision was measured on another: short of",
        ),
    ],
    ids=["GPU", "CPU"],
)
def test_a_decision_from_other_hardware_is_rejected_unless_other_hardware_is_accepted(decision, message):
    with pytest.raises(InfeasibleRequestError, match=message):
        policy(decision).plan(CLUSTER)

    plan = policy(decision, accept_other_hardware=True).plan(CLUSTER)
    assert any(", and is used on a" in reason.lower() for reason in plan.reasons)


def test_the_hardware_of_unused_nodes_may_differ_from_the_measured_hardware():
    other = gpu_node("b", gpus=8, cpus=0, accelerator_type="T4").model_copy(update={"cpu_model": "a CPU"})
    both = CLUSTER.model_copy(update={"nodes": (NODE, other)})

    plan = policy(gpu=GpuPolicy(cpus=2, accelerator_type="A100")).plan(both)

    assert device(plan, batch_size=64) == "GPU"
    with pytest.raises(InfeasibleRequestError, match="measured on T4"):
        policy().plan(both)


def test_unknown_hardware_is_reported_as_unknown():
    reasons = policy().plan(nodes((16, 2))).reasons

    assert "it is unknown whether the GPUs are the same as in the measurement" in reasons
    assert "it is unknown whether the CPUs are the same as in the measurement" in reasons


@pytest.mark.parametrize("is_naive", [True, False], ids=["without a time zone", "with a time zone"])
def test_a_decision_is_rejected_if_it_is_too_old_at_the_date_of_the_capacity(is_naive):
    read_at = (MEASURED_AT + timedelta(days=91)).replace(tzinfo=None if is_naive else UTC)
    later = CLUSTER.model_copy(update={"read_at": read_at})

    with pytest.raises(
        InfeasibleRequestError, match="at most 90 days old, but the policy's decision was measured on 2026-06-01, 91"
    ):
        policy().plan(later)
    assert policy(max_age_days=91).plan(later) == policy(max_age_days=None).plan(later)


def test_the_idle_resources_are_those_of_a_run_whose_configs_use_all_slots():
    explanation = policy().plan(CLUSTER).explain(CLUSTER)

    assert explanation.splitlines()[-1] == "nothing stays idle if the configs use all slots"


def test_the_plan_contains_the_measured_versions_unless_other_versions_are_accepted():
    decision = a_decision("A100", versions={"torch": "2.9.0"})

    assert policy(decision).plan(CLUSTER).by_config.holds_for == {"torch": "2.9.0"}
    assert policy(decision, accept_other_versions=True).plan(CLUSTER).by_config.holds_for == {}


def test_the_objective_cost_selects_the_cheapest_device():
    cheap = a_decision(
        "A100", {16: a_size(16, "GPU", cheapest="CPU", flips_at=4), 64: a_size(64, "CPU", cheapest="GPU", flips_at=1)}
    )

    plan = policy(cheap, objective="cost").plan(CLUSTER)

    assert [device(plan, batch_size=size) for size in (16, 64)] == ["CPU", "GPU"]


PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"b": 1}, total_bytes=2**30),))


def test_one_of_several_workloads_must_be_chosen():
    decision = a_decision("A100")
    (first,) = decision.workloads
    two = decision.model_copy(update={"workloads": (first, first.model_copy(update={"workload": "cnn"}))})

    with pytest.raises(InvalidResourcesError, match=r"several workloads \(available: mlp, cnn\)"):
        policy(two)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": "mpl"}, r"the decision has no workload 'mpl'; did you mean 'mlp'\? \(available: mlp\)"),
        ({"objective": "cost"}, "objective='cost' requires a decision with prices"),
        ({"max_age_days": 0}, "max_age_days: .* greater than 0"),
        ({"gpu": MixedPolicy(GPU, CPU)}, "but a MixedPolicy does not"),
        ({"gpu": GpuMemoryPolicy(profile=PROFILE)}, "but a GpuMemoryPolicy with a profile does not"),
        ({"cpu": AutoscalingPolicy(CPU)}, "Wrap the BenchmarkedPolicy in the AutoscalingPolicy"),
    ],
)
def test_an_invalid_field_raises_an_error_that_explains_it(fields, message):
    with pytest.raises(InvalidResourcesError, match=message):
        policy(**fields)


def test_a_decision_provides_the_speeds_of_a_mixed_policy():
    decision = a_decision("A100")

    slots = MixedPolicy(GPU, CPU, speeds=decision.speeds("mlp", 300)).plan(CLUSTER).slots

    assert [slot.speed for slot in slots] == [4, 1]


def test_sizes_out_of_order_are_rejected():
    with pytest.raises(InvalidResourcesError, match=r"sizes must be in strictly ascending order, got \[32, 16\]"):
        a_decision(answers={32: "CPU", 16: "GPU"})


def test_for_a_size_without_prices_the_objective_cost_selects_the_cpu():
    times = device_times("cpu", 1.0)

    bare = SizeDecision(size=1, answer="GPU", speedup=1, low=1, high=1, cpu=times, gpu=times)

    assert (bare.device("cost"), bare.device("time")) == ("CPU", "GPU")
