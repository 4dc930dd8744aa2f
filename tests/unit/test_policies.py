"""What comes out for the clusters that people have. The same shapes are asked of a real Ray in on_ray."""

import pytest

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    ReservingPolicy,
    Resources,
)
from tune_policies.placement.packing import device_slots
from tune_policies.plan.build_plan import describe_gpus
from tune_policies.policies.equal_shares import nodes_with_cpus
from tune_policies.values.resources import to_ticks

T4 = {"gpu_memory_gib": 16, "accelerator_type": "T4"}
A100 = {"gpu_memory_gib": 80, "accelerator_type": "A100"}


@pytest.mark.parametrize(
    ("devices", "share", "slots"),
    [
        pytest.param(3, 0.4, 6, id="shares: two on each"),
        pytest.param(5, 2, 2, id="whole ones: one stays"),
        pytest.param(0.5, 0.25, 2, id="of a part of a device"),
        pytest.param(0.5, 0.3, 1, id="of a part of a device, which leaves some"),
        pytest.param(0.5, 1, 0, id="a part is no whole one"),
    ],
)
def test_so_many_shares_fit_so_many_devices(devices, share, slots):
    assert device_slots(to_ticks(devices), to_ticks(share)) == slots


@pytest.mark.parametrize(
    ("shapes", "kept"),
    [
        pytest.param([(0, 2), (1, 1)], [1], id="one CPU is enough"),
        pytest.param([(0, 2), (0.5, 1)], [0.5], id="and so is half a CPU"),
        pytest.param([(0, 2), (8, 0)], [0, 8], id="all are there where those with CPUs have no device"),
        pytest.param([(0, 2), (8, 0), (8, 1)], [8, 8], id="one of them with a device is enough"),
    ],
)
def test_nodes_without_cpus_are_left_out_if_others_have_devices(shapes, kept):
    assert sorted(node.resources.cpus for node, _ in nodes_with_cpus(nodes(*shapes).groups, "GPU")) == kept


@pytest.mark.parametrize(
    ("capacity", "policy", "at_once", "worker", "limited_by"),
    [
        pytest.param(nodes((64, 3)), GpuPolicy(gpus=0.4), 6, (10, 0.5), "GPU", id="0.4 on 3 GPUs: 2 a GPU, not 7"),
        pytest.param(nodes((64, 1)), GpuPolicy(gpus=0.1), 10, (6, 0.1), "GPU", id="ten tenths on a GPU"),
        pytest.param(nodes((64, 1)), GpuPolicy(gpus=1 / 3), 3, (21, 0.3333), "GPU", id="thirds"),
        pytest.param(nodes((64, 1)), GpuPolicy(gpus=0.6), 1, (64, 1), "GPU", id="0.6 is a whole GPU"),
        pytest.param(nodes((2, 4)), GpuPolicy(), 4, (0.5, 1), "GPU", id="few CPUs strand no GPU"),
        pytest.param(nodes((0, 4)), GpuPolicy(), 4, (0, 1), "GPU", id="no CPUs at all"),
        pytest.param(nodes((0, 1), (32, 4)), GpuPolicy(), 4, (8, 1), "GPU", id="a head kept free of CPUs is left out"),
        pytest.param(nodes((0, 1), (32, 4)), GpuPolicy(cpus=0), 5, (0, 1), "GPU", id="unless no CPUs are asked for"),
        pytest.param(nodes((0, 2), (8, 1)), GpuPolicy(gpus=2), 1, (0, 2), "GPU", id="no CPUs where the GPUs are"),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", cpus=0, gpu_memory_gib=8), gpu_node("b", cpus=16, gpu_memory_gib=16)),
            GpuMemoryPolicy(gpu_memory="4GiB"),
            4,
            (4, 0.25),
            "GPU",
            id="the memory of a GPU without CPUs does not count",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", gpus=8, cpus=0, **A100), gpu_node("b", gpus=2, cpus=8, **T4)),
            GpuPolicy(min_gpu_memory="10GiB"),
            2,
            (4, 1),
            "GPU",
            id="nor do many GPUs without CPUs",
        ),
        pytest.param(nodes((8, 4)), GpuPolicy(cpus=4), 2, (4, 1), "CPU", id="CPUs asked for strand GPUs"),
        pytest.param(nodes((8, 1), (32, 4)), GpuPolicy(), 5, (8, 1), "GPU", id="fewest CPUs per GPU decide"),
        pytest.param(nodes((10, 4)), GpuPolicy(), 4, (2, 1), "GPU", id="CPUs above 1 are whole"),
        pytest.param(nodes((64, 4)), GpuPolicy(gpus=2), 2, (32, 2), "GPU", id="2 GPUs of a node"),
        pytest.param(nodes((64, 3), (64, 3)), GpuPolicy(gpus=2), 2, (64, 2), "GPU", id="a GPU of each node stays"),
        pytest.param(
            nodes((30, 4)), EvenSplitPolicy(num_trials=20, min_gpus=0.5), 7, (4, 0.5), "GPU", id="3 waves of 7, not 8"
        ),
        pytest.param(
            nodes((32, 4)),
            EvenSplitPolicy(num_trials=20, min_gpus=0.5),
            8,
            (4, 0.5),
            "GPU",
            id="8 where they get as much",
        ),
        pytest.param(
            nodes((64, 0), (32, 0)), EvenSplitPolicy(num_trials=100), 96, (1, 0), "CPU", id="96 of 100, not twice 50"
        ),
        pytest.param(
            nodes((64, 8)),
            EvenSplitPolicy(num_trials=20, min_gpus=0.3),
            20,
            (3, 0.3333),
            "num_trials",
            id="all at once with a third",
        ),
        pytest.param(
            nodes((64, 8)), EvenSplitPolicy(num_trials=3, min_gpus=1), 3, (21, 2), "num_trials", id="2 GPUs each"
        ),
        pytest.param(
            nodes((64, 8), (64, 1)),
            EvenSplitPolicy(num_trials=2, min_gpus=1),
            2,
            (32, 4),
            "num_trials",
            id="4 GPUs each, beside a node with one",
        ),
        pytest.param(nodes((16, 0)), EvenSplitPolicy(num_trials=5), 5, (3, 0), "num_trials", id="3 CPUs each"),
        pytest.param(nodes((8, 0)), EvenSplitPolicy(num_trials=9), 8, (1, 0), "CPU", id="no slot is left idle"),
        pytest.param(
            nodes((24, 0)),
            EvenSplitPolicy(num_trials=10, min_cpus=3),
            6,
            (4, 0),
            "CPU",
            id="what a wave leaves is used",
        ),
        pytest.param(
            nodes((2, 0)), EvenSplitPolicy(num_trials=3, min_cpus=0.5), 3, (0.6666, 0), "num_trials", id="part of a CPU"
        ),
        pytest.param(nodes((4, 0)), CpuPolicy(num_workers=2), 2, (1, 0), "CPU", id="drivers hold no CPU"),
        pytest.param(
            nodes((3, 0), (3, 0)), CpuPolicy(cpus=2, num_workers=2), 1, (2, 0), "CPU", id="a gang over 2 nodes"
        ),
        pytest.param(
            ClusterCapacity.of(Resources(cpus=64, memory_bytes="16GiB")),
            CpuPolicy(memory="6GiB"),
            2,
            (1, 0),
            "memory",
            id="host memory limits",
        ),
        pytest.param(
            ClusterCapacity.of(Resources(cpus=64, memory_bytes="16GiB")),
            CpuPolicy(memory="8GiB", num_workers=1),
            1,
            (1, 0),
            "memory",
            id="drivers take host memory from workers",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            2,
            (32, 0.5),
            "GPU",
            id="16 GiB",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **A100)),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            13,
            (4, 0.0769),
            "GPU",
            id="80 GiB",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **A100)),
            GpuMemoryPolicy(gpu_memory="6GiB", max_trials_per_gpu=4),
            4,
            (16, 0.25),
            "max_trials_per_gpu",
            id="no more than asked for on a GPU",
        ),
        pytest.param(
            nodes((64, 4)), CappedPolicy(GpuPolicy(), 3), 3, (16, 1), "max_concurrent_trials", id="capped below"
        ),
        pytest.param(nodes((64, 4)), CappedPolicy(GpuPolicy(), 9), 4, (16, 1), "GPU", id="a cap that does not bind"),
        pytest.param(nodes((8, 0)), ReservingPolicy(CpuPolicy(), cpus=3), 5, (1, 0), "CPU", id="CPUs left free"),
        pytest.param(nodes((64, 4)), ReservingPolicy(GpuPolicy(), gpus=1), 3, (21, 1), "GPU", id="a GPU left free"),
        pytest.param(
            nodes((8, 4), (8, 0)),
            ReservingPolicy(GpuPolicy(), cpus=4),
            4,
            (2, 1),
            "GPU",
            id="CPUs beside GPUs are kept",
        ),
    ],
)
def test_the_plan_for_a_cluster(capacity, policy, at_once, worker, limited_by):
    plan = policy.plan(capacity)

    assert (plan.max_concurrent_trials, plan.worker.cpus, plan.worker.gpus, plan.limited_by) == (
        at_once,
        *worker,
        limited_by,
    )


@pytest.mark.parametrize(
    "policy", [GpuPolicy(), GpuPolicy(min_gpu_memory="10GiB"), AcceleratorPolicy(resource="GPU")], ids=str
)
def test_a_gpu_node_that_is_left_out_for_want_of_cpus_is_named_with_the_way_out(policy):
    cluster = ClusterCapacity.of(gpu_node("a", cpus=0, **T4), gpu_node("b", cpus=8, **T4))

    assert (
        "left out 1 node with GPU but no CPUs for trials: with cpus=0, trials run there too, but no worker gets a CPU"
    ) in policy.plan(cluster).reasons


def test_more_trials_than_a_plan_counts_fit_as_many_as_it_counts():
    plan = CpuPolicy(cpus=0.0001).plan(nodes((10**11, 0)))

    assert plan.max_concurrent_trials == 10**11
    assert "1e+15 would fit, but no plan counts more than 1e+11" in plan.reasons


def test_an_even_split_says_how_many_waves_it_takes():
    one_wave, four = (EvenSplitPolicy(num_trials=n).plan(nodes((8, 0))).reasons for n in (8, 27))

    told = "at most 8 fit at once, with 1 CPU per worker: that takes 4 waves, and so do 7 at once, which get more"
    assert told in four
    assert one_wave[0] == "the cluster divided among 8 trials: 1 CPU per worker"
    assert not any("waves" in reason for reason in one_wave)


def test_gpus_are_described_by_type_and_memory_and_a_part_of_one_is_one():
    groups = ClusterCapacity.of(
        gpu_node("a", gpus=4, **A100),
        gpu_node("b", gpus=4, **A100),
        gpu_node("c", gpus=2, accelerator_type="T4"),
        gpu_node("d", gpus=0.5),
    ).groups

    assert describe_gpus(groups) == "8 A100 (80 GiB), 2 T4 (14.7 GiB), 1 unknown type (memory not read)"


@pytest.mark.parametrize(
    ("cpus", "told"),
    [
        (8, "2 CPUs per worker: 8 CPUs ÷ 4 GPU slots; set cpus= to change"),
        (9, "2 CPUs per worker: 9 CPUs ÷ 4 GPU slots, rounded down; set cpus= to change"),
        (2, "0.5 CPU per worker: 2 CPUs ÷ 4 GPU slots; set cpus= to change"),
    ],
)
def test_the_plan_says_how_it_came_to_the_cpus_of_a_worker(cpus, told):
    assert told in GpuPolicy().plan(nodes((cpus, 4))).reasons


@pytest.mark.parametrize(
    ("capacity", "policy", "limited_by"),
    [
        pytest.param(
            nodes((16, 8), (8, 0), (8, 0), (8, 0)), GpuPolicy(cpus=4), "CPU", id="nodes without GPUs do not count"
        ),
        pytest.param(nodes((4, 8), (64, 16)), GpuPolicy(cpus=2), "GPU", id="what stops the most trials does"),
        pytest.param(
            nodes((30, 4)), EvenSplitPolicy(num_trials=20, min_gpus=0.5), "GPU", id="CPUs that are handed out do not"
        ),
        pytest.param(
            ClusterCapacity.of(Resources(cpus=64, memory_bytes="2MiB")),
            CpuPolicy(num_workers=1),
            "memory",
            id="what the drivers hold does",
        ),
    ],
)
def test_the_plan_is_limited_by_what_stops_one_more_trial(capacity, policy, limited_by):
    assert policy.plan(capacity).limited_by == limited_by


def test_the_reasons_say_why_earlier_choices_were_not_taken_and_advise_no_fallback():
    plan = FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=2)).plan(nodes((4, 0)))

    assert not plan.use_gpu
    assert plan.reasons[0] == (
        "not GpuPolicy: one trial needs 1 GPU, but the largest node offers 4 CPUs, 0 GPUs: short of GPU. "
        "Add a GPU node."
    )
