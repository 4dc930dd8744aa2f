"""What comes out for the clusters that people have. The same shapes are asked of a real Ray in on_ray."""

import pytest

from tests.clusters import GIB, gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    AutoPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    ReservingPolicy,
    Resources,
)
from tune_policies.placement.packing import device_slots
from tune_policies.policies.equal_shares import nodes_with_cpus
from tune_policies.policies.gpu_selection import describe_gpus
from tune_policies.values.resources import TICKS, to_ticks

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
    ("capacity", "policy", "message"),
    [
        pytest.param(
            nodes((6, 1), (6, 1)),
            GpuPolicy(gpus=2),
            "one trial needs 2 GPUs, but the largest node offers 6 CPUs, 1 GPU: short of GPU. "
            "Ask for at most 1 GPU per worker, or for num_workers=2 with 1 GPU each, or add a larger node.",
            id="2 GPUs on two nodes of 1",
        ),
        pytest.param(
            nodes((8, 0)),
            GpuPolicy(),
            "one trial needs 1 GPU, but the largest node offers 8 CPUs, 0 GPUs: short of GPU. "
            "Add a GPU node. Or take CpuPolicy() instead, or as a fallback (policy | CpuPolicy()).",
            id="no GPU",
        ),
        pytest.param(
            nodes((4, 0), (2, 0)),
            CpuPolicy(cpus=8),
            "one trial needs 8 CPUs, but the largest node offers 4 CPUs, 0 GPUs: short of CPU. "
            "Ask for at most 4 CPUs per worker, or add a larger node.",
            id="too many CPUs",
        ),
        pytest.param(
            nodes((4, 0)),
            CpuPolicy(num_workers=6),
            "one trial needs 6 workers, each with 1 CPU, but the cluster holds 4 such workers at once: short of CPU. "
            "Ask for num_workers=4, or add nodes.",
            id="too many workers",
        ),
        pytest.param(
            nodes((4, 0)),
            CpuPolicy(cpus=8, num_workers=1),
            "one trial needs 1 worker with 8 CPUs, but the largest node offers 4 CPUs, 0 GPUs: short of CPU. "
            "Ask for at most 4 CPUs per worker, or add a larger node.",
            id="one worker that is too large",
        ),
        pytest.param(
            ClusterCapacity.of(),
            CpuPolicy(),
            "one trial needs 1 CPU, but the cluster has no alive node: short of nodes. "
            "Start Ray nodes, then probe again.",
            id="empty cluster",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuPolicy(accelerator_type="H100"),
            "one trial needs 1 GPU on H100, but the cluster's GPUs are T4: short of H100. "
            "Leave accelerator_type out, or name one that is there, or add such a node.",
            id="no such device type",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuMemoryPolicy(gpu_memory="24GiB"),
            "one trial needs a GPU share of 24 GiB, but the largest GPUs have 16 GiB: short of GPU memory. "
            "Ask for at most 16GiB, or add a larger GPU.",
            id="too much GPU memory",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuMemoryPolicy(gpu_memory="4GiB", cpus=128),
            "one trial needs 128 CPUs, a GPU share of 4 GiB, but the largest node offers 64 CPUs, 1 GPU (T4): "
            "short of CPU. Ask for at most 64 CPUs per worker, or add a larger node.",
            id="too many CPUs beside a share",
        ),
        pytest.param(
            nodes((8, 1)),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read: "
            "short of GPU memory. Install nvidia-ml-py on the GPU nodes and probe again, give them an accelerator "
            "type, or take GpuPolicy with a share of a GPU.",
            id="GPU memory not read",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", accelerator_type="RTX-4090")),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read, and is not known "
            "of the type RTX-4090: short of GPU memory. Install nvidia-ml-py on the GPU nodes and probe again, give "
            "each device its memory_bytes, or take GpuPolicy with a share of a GPU.",
            id="a type that nobody knows",
        ),
        pytest.param(
            nodes((8, 2), (64, 0)),
            GpuPolicy(cpus=32),
            "one trial needs 32 CPUs, 1 GPU, but the largest node offers 8 CPUs, 2 GPUs: short of CPU. "
            "Ask for at most 8 CPUs per worker, or add a larger node.",
            id="each is there, but not on one node",
        ),
        pytest.param(
            nodes((8, 0)),
            ReservingPolicy(CpuPolicy(), cpus=8),
            "one trial needs 1 CPU, but with 8 CPUs left free, the largest node offers 0 CPUs, 0 GPUs: short of CPU. "
            "Add a node with more CPU, or ask for less in every respect. Or leave less free.",
            id="all is to be left free",
        ),
        pytest.param(
            nodes((8, 0)),
            ReservingPolicy(CpuPolicy(), gpus=1),
            "one trial needs 1 GPU left free beside it, but the whole cluster has less: short of GPU. "
            "Leave less free, or add nodes.",
            id="more to be left free than there is",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", gpu_memory_gib=24)),
            ReservingPolicy(GpuPolicy(gpus=0.5), gpu_memory="24GiB"),
            "one trial needs 24 GiB of each GPU left free beside it, but node a has GPUs of 24 GiB: short of GPU "
            "memory. Leave less free, or leave such nodes out: SelectingPolicy(policy, exclude_nodes=…).",
            id="more GPU memory to be left free than there is",
        ),
        pytest.param(
            nodes((2, 0)),
            FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=4)),
            "one trial needs 1 GPU or else 4 CPUs, but the largest node offers 2 CPUs, 0 GPUs: short of GPU and CPU. "
            "Ask for at most 2 CPUs per worker, or add a larger node.",
            id="no choice fits",
        ),
    ],
)
def test_an_infeasible_wish_is_answered_with_what_there_is_and_what_would_work(capacity, policy, message):
    with pytest.raises(InfeasibleRequestError) as caught:
        policy.plan(capacity)

    assert str(caught.value) == message


def test_what_a_message_suggests_works():
    capacity = nodes((6, 1), (6, 1))

    assert GpuPolicy(gpus=1).plan(capacity).max_concurrent_trials == 2
    assert GpuPolicy(gpus=1, num_workers=2).plan(capacity).max_concurrent_trials == 1


def test_where_all_get_the_same_the_share_fits_the_smallest_if_that_runs_more_trials():
    plan = GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True).plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=8, **T4))
    )

    assert (plan.max_concurrent_trials, plan.accelerator_type, plan.gpu_memory_bytes) == (18, None, 8 * GIB)


def test_where_all_get_the_same_the_smaller_ones_are_left_out_if_that_runs_more_trials():
    plan = GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True).plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=2, **T4))
    )

    assert (plan.max_concurrent_trials, plan.accelerator_type) == (13, "A100")
    assert "left out as only A100 is used: 2 T4 (16 GiB)" in plan.reasons


def test_where_all_get_the_same_as_many_trials_get_the_larger_share():
    """Eight trials at once have a whole GPU each, or share the larger one."""
    cluster = ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=7, **T4))

    plan = GpuMemoryPolicy(gpu_memory="10GiB", same_for_all=True).plan(cluster)

    assert (plan.max_concurrent_trials, plan.worker.gpus, plan.accelerator_type) == (8, 1, None)


def test_where_all_get_the_same_the_cpus_that_are_asked_for_count_too():
    few_cpus, many = gpu_node("a", gpus=8, cpus=8, **T4), gpu_node("b", gpus=2, cpus=64, **A100)

    plan = GpuMemoryPolicy(gpu_memory="8GiB", cpus=4, same_for_all=True).plan(ClusterCapacity.of(few_cpus, many))

    # On all GPUs 6 would run, 4 of them on the larger ones.
    assert plan.max_concurrent_trials == 16


def test_devices_of_unknown_memory_are_left_out_by_the_type_of_the_others():
    plan = GpuMemoryPolicy(gpu_memory="6GiB").plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", accelerator_type="B300"))
    )

    assert plan.accelerator_type == "A100"
    assert "left out as only A100 is used: 1 B300 (memory not read)" in plan.reasons


@pytest.mark.parametrize(
    ("total_gib", "asked", "at_most"), [(141, "1GiB", 141), (24, "200MiB", 122), (80, "744MiB", 110)]
)
def test_the_many_small_workers_of_a_device_fit_its_memory(total_gib, asked, at_most):
    """A share of 0.0070, for 141 workers, has room for 142 in Ray's count."""
    plan = GpuMemoryPolicy(gpu_memory=asked).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=total_gib)))

    assert plan.max_concurrent_trials <= at_most
    assert plan.max_concurrent_trials * plan.gpu_memory_bytes <= total_gib * GIB


@pytest.mark.parametrize(
    ("policy", "resource"),
    [
        pytest.param(GpuPolicy(gpus=1 / 60), "GPU", id="by share"),
        pytest.param(GpuMemoryPolicy(gpu_memory="1GiB", same_for_all=True), "GPU", id="by GPU memory"),
        pytest.param(AcceleratorPolicy(resource="NPU", amount=1 / 60, same_for_all=True), "NPU", id="of an NPU"),
    ],
)
def test_on_no_node_does_the_sum_of_its_devices_admit_more_shares_than_fit_one_by_one(policy, resource):
    cluster = ClusterCapacity.of(*(gpu_node(f"{n}", gpus=n, gpu_memory_gib=60, custom={"NPU": n}) for n in (1, 8)))

    share = policy.plan(cluster).worker.ticks[resource]

    assert [8 * TICKS // share, TICKS // share] == [device_slots(8 * TICKS, share), device_slots(TICKS, share)]


@pytest.mark.parametrize(
    ("device_gib", "told"), [(21.234, "4 workers on a GPU of 21.2 GiB"), (19.999, "3 workers on a GPU of 19.999 GiB")]
)
def test_the_size_of_a_gpu_has_the_digits_that_show_why_no_more_workers_fit(device_gib, told):
    plan = GpuMemoryPolicy(gpu_memory="5GiB").plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=device_gib)))

    assert plan.reasons[0] == f"5 GiB a worker: {told}"


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


def test_a_gpu_on_which_no_worker_fits_makes_no_share_smaller():
    """The second node has too few CPUs, so its 8 GiB mean nothing, and nor would memory that was not read."""
    small = gpu_node("b", cpus=2, gpu_memory_gib=8), gpu_node("c", cpus=2)

    plan = GpuMemoryPolicy(gpu_memory="6GiB", cpus=8).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80), *small))
    shared = GpuPolicy(gpus=0.5, cpus=8).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80), *small))

    assert plan.max_concurrent_trials == 8
    assert [reason for reason in plan.reasons if reason.startswith("left out")] == [
        "left out for want of CPUs: 1 unknown type (8 GiB), 1 unknown type (memory not read)"
    ]
    assert shared.gpu_memory_bytes == 40 * GIB


def test_an_even_split_says_how_many_waves_it_takes():
    one_wave, four = (EvenSplitPolicy(num_trials=n).plan(nodes((8, 0))).reasons for n in (8, 27))

    told = "at most 8 fit at once, with 1 CPU per worker: that takes 4 waves, and so do 7 at once, which get more"
    assert told in four
    assert not any("waves" in reason for reason in one_wave)


@pytest.mark.parametrize(
    ("poor", "cpus"),
    [
        pytest.param([4], 8, id="one of twenty-one with half the CPUs is left out"),
        pytest.param([5], 5, id="with more than half it decides"),
        pytest.param([4, 4], 4, id="and so do two of twenty-two"),
    ],
)
def test_a_few_poor_nodes_do_not_decide_on_the_cpus_of_all(poor, cpus):
    cluster = nodes(*[(8, 1)] * 20, *((each, 1) for each in poor))

    assert GpuPolicy(same_for_all=True).plan(cluster).worker.cpus == cpus


def test_gpus_are_described_by_type_and_memory_and_a_part_of_one_is_one():
    groups = ClusterCapacity.of(
        gpu_node("a", gpus=4, **A100),
        gpu_node("b", gpus=4, **A100),
        gpu_node("c", gpus=2, accelerator_type="T4"),
        gpu_node("d", gpus=0.5),
    ).groups

    assert describe_gpus(groups) == "8 A100 (80 GiB), 2 T4 (14.2 GiB), 1 unknown type (memory not read)"


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


def test_the_plan_says_that_the_node_with_the_fewest_cpus_decided():
    plan = GpuPolicy(same_for_all=True).plan(nodes((8, 4), (4, 4)))

    assert plan.reasons[0] == (
        "1 CPU per worker: 4 CPUs ÷ 4 GPU slots, on the node with the fewest for each; set cpus= to change"
    )


ROOMY, TIGHT, UNREAD = (
    gpu_node(name, gpus=4, cpus=16, memory_gib=gib, gpu_memory_gib=16, custom={"NPU": 4})
    for name, gib in (("roomy", 64), ("tight", 3), ("unread", None))
)


@pytest.mark.parametrize(
    ("policy", "at_once"),
    [
        pytest.param(GpuPolicy(memory="24GiB"), 2, id="whole GPUs"),
        pytest.param(GpuPolicy(gpus=0.5, memory="12GiB"), 5, id="shares of a GPU"),
        pytest.param(GpuPolicy(memory="24GiB", num_workers=2), 1, id="Train workers"),
        pytest.param(GpuMemoryPolicy(gpu_memory="4GiB", memory="6GiB"), 10, id="GPU memory"),
        pytest.param(AcceleratorPolicy(resource="GPU", memory="24GiB"), 2, id="GPUs as accelerators"),
        pytest.param(AcceleratorPolicy(resource="NPU", memory="24GiB"), 2, id="other devices"),
        pytest.param(AutoPolicy(memory="24GiB"), 2, id="a GPU if there is one"),
        pytest.param(EvenSplitPolicy(num_trials=9, min_gpus=0.5, memory="20GiB"), 3, id="an even split"),
        pytest.param(CpuPolicy(memory="20GiB"), 3, id="CPUs"),
    ],
)
def test_host_memory_is_reserved_for_each_worker_and_nodes_hold_as_many_as_it_allows(policy, at_once):
    plan = policy.plan(ClusterCapacity.of(ROOMY, TIGHT))

    assert (plan.max_concurrent_trials, plan.limited_by) == (at_once, "memory")
    assert plan.worker.memory_bytes == policy.memory
    assert any("left out" in reason and "host memory" in reason for reason in plan.reasons)


@pytest.mark.parametrize("policy", [GpuPolicy(memory="1GiB"), GpuMemoryPolicy(gpu_memory="4GiB", memory="1GiB")])
def test_host_memory_that_was_not_read_limits_nothing_and_the_plan_says_so(policy):
    plan = policy.plan(ClusterCapacity.of(UNREAD))

    assert plan.limited_by == "GPU"
    assert "host memory of some nodes is not known, so it limits nothing there" in plan.reasons


@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(memory="65GiB"),
        GpuMemoryPolicy(gpu_memory="4GiB", memory="65GiB"),
        AcceleratorPolicy(resource="NPU", memory="65GiB"),
        EvenSplitPolicy(num_trials=2, min_gpus=1, memory="65GiB"),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_more_host_memory_than_any_node_has_is_an_error_that_says_how_much_there_is(policy):
    with pytest.raises(
        InfeasibleRequestError, match=r"65 GiB .* short of memory. Ask for at most 64GiB of host memory"
    ):
        policy.plan(ClusterCapacity.of(ROOMY, TIGHT))


def test_a_gpu_beside_which_there_is_no_host_memory_makes_no_share_smaller():
    small = gpu_node("small", gpu_memory_gib=8, memory_gib=1)

    plan = GpuPolicy(gpus=0.5, memory="2GiB").plan(ClusterCapacity.of(ROOMY, small))

    assert plan.gpu_memory_bytes == 8 * GIB


def test_host_memory_as_a_custom_resource_is_refused_with_the_name_of_its_field():
    with pytest.raises(InvalidResourcesError, match="'memory' has a field of its own: use memory="):
        GpuPolicy(custom={"memory": 2**30})


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


def test_a_worker_gets_at_least_the_gpu_memory_that_it_asked_for():
    """A third is 0.3333 to Ray, but three workers of 6 GiB fill an 18 GiB card."""
    plan = GpuMemoryPolicy(gpu_memory="6GiB").plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=18)))

    assert plan.gpu_memory_bytes == 6 * GIB


def test_a_node_with_less_than_a_cpu_is_used_by_workers_with_a_part_of_it():
    plan = GpuMemoryPolicy(gpu_memory="8GiB").plan(ClusterCapacity.of(gpu_node("a", cpus=0.5, gpu_memory_gib=16)))

    assert (plan.max_concurrent_trials, plan.resources_per_trial) == (2, {"cpu": 0.25, "gpu": 0.5})


def test_a_gpu_share_states_its_gpu_memory_where_it_was_read():
    plan = GpuPolicy(gpus=0.25).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80)))

    assert plan.gpu_memory_bytes == 20 * GIB


def test_the_reasons_say_why_earlier_choices_were_not_taken_and_advise_no_fallback():
    plan = FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=2)).plan(nodes((4, 0)))

    assert not plan.use_gpu
    assert plan.reasons[0] == (
        "not GpuPolicy: one trial needs 1 GPU, but the largest node offers 4 CPUs, 0 GPUs: short of GPU. "
        "Add a GPU node."
    )


def test_each_choice_that_failed_is_kept_in_the_error():
    with pytest.raises(InfeasibleRequestError) as caught:
        FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=4)).plan(nodes((2, 0)))

    assert [error.short_of for error in caught.value.tried] == ["GPU", "CPU"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GpuPolicy(gpus=1.5), "gpus above 1 must be whole, got 1.5: ask for 1 or 2"),
        (lambda: GpuPolicy(gpus=0), "gpus must be above 0, got 0: for trials without GPUs take CpuPolicy"),
        (lambda: GpuPolicy(gpus=0.00005), "gpus must be 0.0001 or more, as Ray counts in such steps"),
        (lambda: GpuPolicy(gpus=float("nan")), "gpus must be a finite number from 0 to 1e+11, got nan"),
        (lambda: CpuPolicy(cpus=-1), "cpus must be a finite number from 0 to 1e+11, got -1"),
        (lambda: CpuPolicy(cpus=float("inf")), "cpus must be a finite number from 0 to 1e+11, got inf"),
        (lambda: CpuPolicy(cpus=0), "cpus must be above 0 for a worker without GPUs"),
        (lambda: CpuPolicy(num_workers=1.5), "num_workers must be a whole number, 0 or above, got 1.5"),
        (lambda: GpuMemoryPolicy(gpu_memory="6 gigs"), "gpu_memory must be above 0: a number of bytes, or a number"),
        (lambda: GpuMemoryPolicy(), "GpuMemoryPolicy needs either gpu_memory, an amount such as '6GiB', or profile"),
        (lambda: GpuPolicy(accelerator_type="A10O"), "unknown accelerator type 'A10O'; did you mean 'A10G'?"),
        (lambda: GpuPolicy(accelerator_type="a100"), "unknown accelerator type 'a100'; did you mean 'A100'?"),
        (lambda: EvenSplitPolicy(num_trials=0), "num_trials must be a whole number, 1 or above, got 0"),
        (lambda: EvenSplitPolicy(num_trials=2, min_cpus=0), "min_cpus and min_gpus are both 0"),
        (lambda: CappedPolicy(CpuPolicy(), 0), "max_concurrent_trials must be a whole number, 1 or above, got 0"),
        (lambda: CappedPolicy(CpuPolicy(), 1, 2), "takes inner, max_concurrent_trials by position, got 3 arguments"),
        (lambda: CappedPolicy(CpuPolicy(), inner=CpuPolicy()), "inner given twice"),
        (lambda: CpuPolicy(num_workers=10**12), "num_workers must be at most 100,000,000,000, got 1000000000000"),
        (lambda: ReservingPolicy(CpuPolicy(), gpus=0.5), "gpus must be a whole number, 0 or above, got 0.5"),
        (lambda: FirstFeasiblePolicy(policies=()), "needs at least one policy to try"),
        (lambda: FirstFeasiblePolicy(CpuPolicy(), policies=()), "give the policies as arguments or as policies="),
        (lambda: FirstFeasiblePolicy("CpuPolicy"), "a policy must be a mapping with a 'kind', got a text"),
        (lambda: GpuPolicy(accelerator_type=iter(())), "must be the name of a device type, or a list of such names"),
        (lambda: GpuPolicy(accelerator_type={"A100"}), "must be the name of a device type, or a list of such names"),
        (lambda: GpuPolicy(accelerator_type=["A100", ["T4"]]), "must be the name of a device type, or a list of such"),
        (lambda: GpuMemoryPolicy(profile={1: 2}), "profile must be a mapping of field names to values, got {1: 2}"),
    ],
    ids=range(26),
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(build, message):
    with pytest.raises(InvalidResourcesError) as caught:
        build()

    assert message in str(caught.value)
