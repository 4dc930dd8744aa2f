"""Tests of the detection of Train runs that wait indefinitely for resources that other runs reserve."""

from itertools import compress, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import InfeasibleRequestError, NodeTypeCapacity, Resources
from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.gang_deadlock import (
    ClusterOccupancy,
    NodeTotals,
    Reservation,
    WaitingRun,
    deadlock_error,
    stuck_runs,
)

CPU = 10_000
GPU = 10_000


def node(name="a", cpus=2, gpus=0, *, may_go=False, **labels):
    amounts = {"CPU": cpus * CPU, "GPU": gpus * GPU}
    return NodeTotals(node_id=name, amounts=amounts, labels=labels, may_go=may_go)


def driver(cpus=1, on="a"):
    return (Reservation(node_id=on, amounts={"CPU": cpus * CPU}, holder="waiting driver"),)


def gang(num_workers=1, cpus=1, gpus=0.0, strategy="PACK", label_selector=None):
    worker = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    return BundleGroup([worker] * num_workers, strategy, [label_selector or {}] * num_workers)


def run(name, started_at=0.0, needs=None, share=(), **kwargs):
    return WaitingRun(run_id=name, started_at=started_at, driver=share, gang=needs, **kwargs)


def stuck(view):
    return [each.run_id for each in stuck_runs(view)]


def test_two_drivers_that_reserve_all_cpus_wait_for_each_other():
    runs = (run("old", 1, gang(), driver()), run("young", 2, gang(), driver()))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=2),), waiting=runs)) == ["old", "young"]


def test_drivers_that_leave_room_for_one_gang_run_one_after_the_other():
    runs = tuple(run(str(i), i, gang(), driver()) for i in range(3))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=4),), waiting=runs)) == []


def test_a_small_run_that_can_start_releases_the_resources_of_its_driver_for_a_large_run():
    small, large = run("small", 2, gang(1), driver()), run("large", 1, gang(3), driver())

    assert stuck(ClusterOccupancy(nodes=(node(cpus=4),), waiting=(small, large))) == []


def test_a_run_with_unknown_workers_is_assumed_to_start():
    waiting = (run("new", 2, None, driver()), run("old", 1, gang(), driver()))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=2),), waiting=waiting)) == []


def test_a_permanent_reservation_blocks_a_run():
    view = ClusterOccupancy(
        nodes=(node(cpus=2),),
        permanent=(Reservation(node_id="a", amounts={"CPU": CPU}, holder="actor Server"),),
        waiting=(run("one", needs=gang(2)),),
    )

    assert stuck(view) == ["one"]


@pytest.mark.parametrize(
    ("needs", "is_stuck"),
    [
        pytest.param(gang(2, cpus=2), False, id="one worker on each node"),
        pytest.param(gang(1, cpus=4), True, id="the worker fits only the sum of the nodes"),
        pytest.param(gang(2, cpus=2, strategy="STRICT_PACK"), True, id="not both on one node"),
        pytest.param(gang(2, cpus=1, strategy="STRICT_PACK"), False, id="both on one node"),
        pytest.param(gang(3, cpus=1, strategy="STRICT_SPREAD"), True, id="fewer than three nodes"),
        pytest.param(gang(4, cpus=1, gpus=0.6), True, id="one fraction of 0.6 per device"),
        pytest.param(gang(2, cpus=1, gpus=0.6), False, id="a fraction for each device"),
        pytest.param(gang(2, cpus=2, label_selector={"zone": "x"}), True, id="one node has the label"),
    ],
)
def test_each_bundle_of_a_gang_must_fit_one_node_and_its_devices(needs, is_stuck):
    nodes = (node("a", gpus=1, zone="x"), node("b", gpus=1, zone="y"))

    assert bool(stuck(ClusterOccupancy(nodes=nodes, waiting=(run("one", needs=needs),)))) == is_stuck


def test_the_error_contains_the_amounts_and_the_number_of_trials_that_would_run():
    runs = tuple(run(str(i), i, gang(2), driver()) for i in range(4))
    view = ClusterOccupancy(nodes=(node(cpus=4),), waiting=runs)

    error = deadlock_error(view, runs[0])

    assert isinstance(error, InfeasibleRequestError)
    assert str(error) == (
        "one trial needs 2 workers, each with 1 CPU, but other reservations leave room for 0 workers (node a: 4 CPUs - "
        "4 CPUs reserved by 4 waiting drivers = 0 CPUs): short of CPU. Pass max_concurrent_trials=2 to Tune (with a "
        "policy, use plan.max_concurrent_trials), reserve no CPU or GPU for drivers, or add nodes."
    )


SERVER = Reservation(node_id="a", amounts={"CPU": CPU}, holder="actor Server")


def test_the_error_counts_actors_of_one_class():
    one = run("one", needs=gang(2))
    view = ClusterOccupancy(nodes=(node(cpus=3),), permanent=(SERVER, SERVER), waiting=(one,))

    assert "3 CPUs - 2 CPUs reserved by 2 actors Server = 1 CPU" in str(deadlock_error(view, one))


@pytest.mark.parametrize(
    ("needs", "share", "permanent", "hint"),
    [
        (gang(2), driver(), (), "Reserve less for the driver (run and tuner do this)"),
        (gang(3), (), (), "Request num_workers=2, or add nodes, because the workers would not start"),
        (gang(1, cpus=3), (), (), "Request less for each worker, or add nodes, because the workers would not start"),
        (gang(2), (), (SERVER,), "Stop other programs"),
    ],
)
def test_the_error_suggests_a_fix_for_a_single_run(needs, share, permanent, hint):
    one = run("one", needs=needs, share=share)
    view = ClusterOccupancy(nodes=(node(),), permanent=permanent, waiting=(one,))

    assert deadlock_error(view, one).suggestion.startswith(hint)


@pytest.mark.parametrize(
    ("needs", "asked"),
    [
        (gang(1, cpus=3), "1 worker with 3 CPUs, but"),
        (gang(3, cpus=0.5, gpus=2), "3 workers, each with 0.5 CPU, 2 GPUs, but"),
        (BundleGroup([{"memory": 2**30}]), "1 worker with 1 GiB of host memory, but"),
        (BundleGroup([{}] * 2), "2 workers, each with nothing, but"),
        (gang(1, strategy="STRICT_PACK"), "1 worker with 1 CPU, STRICT_PACK, but"),
        (gang(1, label_selector={"zone": "x"}), "1 worker with 1 CPU on nodes with zone=x, but"),
    ],
)
def test_the_error_contains_the_request_of_the_workers(needs, asked):
    one = run("one", needs=needs)

    assert str(deadlock_error(ClusterOccupancy(nodes=(), waiting=(one,)), one)).startswith(f"one trial needs {asked}")


def addable(name, most, cpus=2, gpus=0, **labels):
    resources = Resources(cpus=cpus, gpus=gpus)
    return NodeTypeCapacity(name=name, resources=resources, max_nodes_to_add=most, labels=labels)


def test_nodes_of_any_type_can_be_added_within_the_common_limit():
    """If nodes were added in the order of the types, the first type would use up the limit."""
    types = (addable("cpu", 2, cpus=4), addable("gpu", 2, cpus=4, gpus=1))
    gpu_run = run("one", needs=gang(2, gpus=1))

    assert stuck(ClusterOccupancy(nodes=(node(),), waiting=(gpu_run,), node_types=types, max_nodes_to_add=2)) == []
    assert stuck(ClusterOccupancy(nodes=(node(),), waiting=(gpu_run,), node_types=types, max_nodes_to_add=1)) == ["one"]


def test_an_idle_node_can_be_replaced_by_a_node_that_a_run_needs():
    """An autoscaler at its limit can remove an idle node and then add a node of another type."""
    nodes = (node("head"), node("a", may_go=True), node("b", may_go=True))
    gpu_run = run("one", needs=gang(2, gpus=1), share=driver(on="head"))
    of_gpus = {"node_types": (addable("gpu", 2, gpus=1),), "max_nodes_to_add": 0}
    server = Reservation(node_id="b", amounts={"CPU": CPU}, holder="actor Server")

    assert stuck(ClusterOccupancy(nodes=nodes, waiting=(gpu_run,), **of_gpus)) == []
    assert stuck(ClusterOccupancy(nodes=nodes, waiting=(gpu_run,), permanent=(server,), **of_gpus)) == ["one"]
    assert stuck(ClusterOccupancy(nodes=nodes[:2], waiting=(gpu_run,), **of_gpus)) == ["one"]


def test_a_node_that_can_be_added_has_one_unit_of_the_resource_of_its_device_type():
    worker = {"CPU": 0.0001, "accelerator_type:T4": 0.001}  # Ray reserves 0.001 of this resource for each worker
    type_of = NodeTypeCapacity(name="t4", resources=Resources(cpus=1), accelerator_type="T4", max_nodes_to_add=1)
    runs = tuple(run(str(n), needs=BundleGroup([worker] * n)) for n in (1000, 1001))

    assert stuck(ClusterOccupancy(nodes=(), waiting=runs, node_types=(type_of,))) == ["1001"]


def test_the_error_lists_the_nodes_that_can_be_added():
    one = run("one", needs=gang(3, gpus=1))
    view = ClusterOccupancy(
        nodes=(node(),), waiting=(one,), node_types=(addable("gpu", 2, cpus=4, gpus=1),), max_nodes_to_add=5
    )

    error = deadlock_error(view, one)

    assert "nodes that can be added: 2 gpu with 4 CPUs, 1 GPU, at most 5 together" in error.offered
    assert error.suggestion.startswith("Request num_workers=2, or add nodes")

    with_none_left = view.model_copy(update={"node_types": (*view.node_types, addable("used up", 0))})
    assert deadlock_error(with_none_left, one).offered == error.offered

    full = view.model_copy(update={"nodes": (node(may_go=True),), "max_nodes_to_add": 0})
    error = deadlock_error(full, one)

    assert "2 gpu with 4 CPUs, 1 GPU, at most 1 together" in error.offered
    assert error.suggestion.startswith("Request num_workers=1, or add nodes")


gangs = st.builds(
    gang,
    st.integers(1, 6),
    cpus=st.sampled_from([0.5, 1, 2, 3]),
    gpus=st.sampled_from([0, 0.4, 1]),
    strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    label_selector=st.sampled_from([{}, {}, {"zone": "x"}]),
)
sizes = st.fixed_dictionaries({"cpus": st.integers(0, 4), "gpus": st.integers(0, 2)})
zones = st.sampled_from([{}, {"zone": "x"}])


@st.composite
def views(draw):
    types = tuple(
        addable(f"type-{i}", draw(st.integers(0, 3)), **draw(sizes), **draw(zones))
        for i in range(draw(st.integers(1, 3)))
    )
    nodes = tuple(
        node(name, **draw(sizes), **draw(zones), may_go=draw(st.booleans()))
        for name in ("a", "b")[: draw(st.integers(0, 2))]
    )
    runs = tuple(
        run(str(i), i, draw(gangs), draw(st.sampled_from([(), driver(), driver(on="b")])))
        for i in range(draw(st.integers(1, 3)))
    )
    return ClusterOccupancy(
        nodes=nodes, waiting=runs, node_types=types, max_nodes_to_add=draw(st.none() | st.integers(0, 4))
    )


def mixes(view):
    """Yield the view for each combination of removed idle nodes and added nodes that the limits allow."""
    with_driver = {share.node_id for run in view.waiting for share in run.driver}
    is_kept = [(True, False) if each.may_go and each.node_id not in with_driver else (True,) for each in view.nodes]
    for kept in product(*is_kept):
        most = None if view.max_nodes_to_add is None else view.max_nodes_to_add + kept.count(False)
        for counts in product(*(range(each.max_nodes_to_add + 1) for each in view.node_types)):
            if most is None or sum(counts) <= most:
                added = tuple(
                    NodeTotals(node_id=f"{each.name}+{i}", amounts=each.amounts, labels=each.labels)
                    for each, count in zip(view.node_types, counts, strict=True)
                    for i in range(count)
                )
                yield ClusterOccupancy(nodes=(*compress(view.nodes, kept), *added), waiting=view.waiting)


@given(views())
def test_a_run_is_stuck_only_if_no_mix_of_added_nodes_would_start_it(view):
    found = set(stuck(view))
    with_mixes = [set(stuck(each)) for each in mixes(view)]

    assert found <= set.intersection(*with_mixes)
    if len(view.waiting) == 1:
        assert found == set.intersection(*with_mixes)
