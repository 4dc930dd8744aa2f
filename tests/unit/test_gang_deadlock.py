"""Which Train runs wait for ever, from what a cluster has and what holds on."""

from itertools import compress, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import InfeasibleRequestError, NodeTypeCapacity, Resources
from tune_policies.placement.deadlock import (
    ClusterOccupancy,
    Gang,
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


def gang(num_workers=1, cpus=1, gpus=0.0, **kwargs):
    worker = {"CPU": int(cpus * CPU), "GPU": int(gpus * GPU)}
    return Gang(worker={name: amount for name, amount in worker.items() if amount}, num_workers=num_workers, **kwargs)


def run(name, started_at=0.0, needs=None, share=(), **kwargs):
    return WaitingRun(run_id=name, started_at=started_at, driver=share, gang=needs, **kwargs)


def stuck(view):
    return [each.run_id for each in stuck_runs(view)]


def test_two_drivers_that_hold_all_cpus_wait_for_each_other():
    runs = (run("old", 1, gang(), driver()), run("young", 2, gang(), driver()))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=2),), waiting=runs)) == ["old", "young"]


def test_drivers_that_leave_room_for_one_gang_run_one_after_the_other():
    runs = tuple(run(str(i), i, gang(), driver()) for i in range(3))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=4),), waiting=runs)) == []


def test_a_small_run_that_can_start_frees_its_driver_for_a_large_one():
    small, large = run("small", 2, gang(1), driver()), run("large", 1, gang(3), driver())

    assert stuck(ClusterOccupancy(nodes=(node(cpus=4),), waiting=(small, large))) == []


def test_a_run_whose_workers_are_not_known_may_start():
    waiting = (run("new", 2, None, driver()), run("old", 1, gang(), driver()))

    assert stuck(ClusterOccupancy(nodes=(node(cpus=2),), waiting=waiting)) == []


def test_what_lasts_takes_room():
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
        pytest.param(gang(1, cpus=4), True, id="no node holds the worker, only their sum"),
        pytest.param(gang(2, cpus=2, strategy="STRICT_PACK"), True, id="not both on one node"),
        pytest.param(gang(2, cpus=1, strategy="STRICT_PACK"), False, id="both on one node"),
        pytest.param(gang(3, cpus=1, strategy="STRICT_SPREAD"), True, id="three nodes are not there"),
        pytest.param(gang(4, cpus=1, gpus=0.6), True, id="a device holds one share of 0.6"),
        pytest.param(gang(2, cpus=1, gpus=0.6), False, id="a share for each device"),
        pytest.param(gang(2, cpus=2, label_selector={"zone": "x"}), True, id="one node has the label"),
    ],
)
def test_a_gang_must_fit_node_by_node_and_device_by_device(needs, is_stuck):
    nodes = (node("a", gpus=1, zone="x"), node("b", gpus=1, zone="y"))

    assert bool(stuck(ClusterOccupancy(nodes=nodes, waiting=(run("one", needs=needs),)))) == is_stuck


def test_what_is_left_of_several_devices_counts_as_room_where_the_shares_may_lie_well():
    """1.2 of 2 GPUs are held; two shares of 0.4 fit if each device has one of 0.6."""
    held = (Reservation(node_id="a", amounts={"GPU": 6_000}, holder="actor Server"),) * 2

    assert (
        stuck(ClusterOccupancy(nodes=(node(gpus=2),), permanent=held, waiting=(run("one", needs=gang(2, gpus=0.4)),)))
        == []
    )


def test_the_error_has_the_sum_and_the_number_of_trials_that_would_run():
    runs = tuple(run(str(i), i, gang(2), driver()) for i in range(4))
    view = ClusterOccupancy(nodes=(node(cpus=4),), waiting=runs)

    error = deadlock_error(view, runs[0])

    assert isinstance(error, InfeasibleRequestError)
    assert str(error) == (
        "one trial needs 2 workers, each with 1 CPU, but what others hold leaves room for 0 (node a: 4 CPUs - "
        "4 CPUs held by 4 waiting drivers = 0 CPUs): short of CPU. Pass max_concurrent_trials=2 to Tune (a plan says "
        "how many: plan.max_concurrent_trials), or let drivers hold no CPU or GPU, or add nodes."
    )


@pytest.mark.parametrize(("num_workers", "is_stuck"), [(4, False), (5, True)])
def test_workers_that_must_be_on_one_node_are_on_the_largest(num_workers, is_stuck):
    needs = gang(num_workers, strategy="STRICT_PACK")
    nodes = (node("small", cpus=2), node("large", cpus=4))

    assert bool(stuck(ClusterOccupancy(nodes=nodes, waiting=(run("one", needs=needs),)))) == is_stuck


def test_trials_that_only_run_one_by_one_are_told_so():
    view = ClusterOccupancy(
        nodes=(node(cpus=2),), waiting=(run("old", 1, gang(), driver()), run("b", 2, gang(), driver()))
    )

    assert deadlock_error(view, view.waiting[0]).suggestion.startswith("Pass max_concurrent_trials=1 to Tune")


def test_a_gang_that_no_empty_cluster_holds_is_told_what_would_fit():
    one = run("one", needs=gang(3))

    error = deadlock_error(ClusterOccupancy(nodes=(node(cpus=2),), waiting=(one,)), one)

    assert error.suggestion == (
        "Ask for num_workers=2, or add nodes: even with nothing else running they would not start."
    )


def test_a_gpu_that_is_not_there_is_what_is_short():
    one = run("one", needs=gang(1, gpus=1))

    error = deadlock_error(ClusterOccupancy(nodes=(NodeTotals(node_id="a", amounts={"CPU": 2 * CPU}),)), one)

    assert (error.short_of, "(node a: 2 CPUs, 0 GPUs)" in str(error)) == ("GPU", True)


def test_an_actor_in_the_way_is_to_be_ended():
    one = run("one", needs=gang(2))
    server = Reservation(node_id="a", amounts={"CPU": CPU}, holder="actor Server")

    error = deadlock_error(ClusterOccupancy(nodes=(node(cpus=2),), permanent=(server,), waiting=(one,)), one)

    assert "2 CPUs - 1 CPU held by actor Server = 1 CPU" in error.offered
    assert error.suggestion.startswith("End what holds resources")


@pytest.mark.parametrize(
    ("needs", "asked"),
    [
        (gang(1, cpus=3), "1 worker with 3 CPUs, but"),
        (gang(3, cpus=0.5, gpus=2), "3 workers, each with 0.5 CPU, 2 GPUs, but"),
        (Gang(worker={"memory": 2**30}, num_workers=1), "1 worker with 1 GiB of host memory, but"),
        (Gang(worker={}, num_workers=2), "2 workers, each with nothing, but"),
        (gang(1, strategy="STRICT_PACK"), "1 worker with 1 CPU, STRICT_PACK, but"),
        (gang(1, label_selector={"zone": "x"}), "1 worker with 1 CPU on nodes with zone=x, but"),
    ],
)
def test_the_error_says_what_the_workers_need(needs, asked):
    one = run("one", needs=needs)

    assert str(deadlock_error(ClusterOccupancy(nodes=(), waiting=(one,)), one)).startswith(f"one trial needs {asked}")


def test_of_many_nodes_the_error_has_the_first_and_the_number_of_the_others():
    one = run("one", needs=gang(9, cpus=2))
    nodes = tuple(node(name) for name in "abcdef")

    offered = deadlock_error(ClusterOccupancy(nodes=nodes, waiting=(one,)), one).offered

    assert offered == (
        "what others hold leaves room for 6 (node a: 2 CPUs; node b: 2 CPUs; node c: 2 CPUs; node d: 2 CPUs; "
        "and 2 more nodes)"
    )


@pytest.mark.parametrize(
    ("needs", "share", "hint"),
    [
        (gang(2), driver(), "Let the driver hold less, as under a policy"),
        (gang(1, cpus=3), (), "Ask for less for each worker, or add nodes: even with nothing else running"),
    ],
)
def test_the_error_says_what_would_help_one_run(needs, share, hint):
    one = run("one", needs=needs, share=share)

    assert deadlock_error(ClusterOccupancy(nodes=(node(),), waiting=(one,)), one).suggestion.startswith(hint)


def test_the_resource_that_lets_the_fewest_workers_start_is_short():
    one = run("one", needs=gang(3, cpus=1, gpus=1))

    assert deadlock_error(ClusterOccupancy(nodes=(node(cpus=1, gpus=2),), waiting=(one,)), one).short_of == "CPU"


def test_of_each_node_the_error_says_who_holds_what_there():
    one = run("one", needs=gang(9, cpus=1))
    server = Reservation(node_id="b", amounts={"CPU": CPU}, holder="actor Server")
    view = ClusterOccupancy(nodes=(node("a"), node("b")), permanent=(server,), waiting=(one,))

    assert "(node a: 2 CPUs; node b: 2 CPUs - 1 CPU held by actor Server = 1 CPU)" in deadlock_error(view, one).offered


def addable(name, most, cpus=2, gpus=0, **labels):
    resources = Resources(cpus=cpus, gpus=gpus)
    return NodeTypeCapacity(name=name, resources=resources, max_nodes_to_add=most, labels=labels)


def test_nodes_of_any_type_may_come_within_the_limit_of_all():
    """The types are in the order of their names, of which the first would use up the limit."""
    types = (addable("cpu", 2, cpus=4), addable("gpu", 2, cpus=4, gpus=1))
    gpu_run = run("one", needs=gang(2, gpus=1))

    assert stuck(ClusterOccupancy(nodes=(node(),), waiting=(gpu_run,), node_types=types, max_nodes_to_add=2)) == []
    assert stuck(ClusterOccupancy(nodes=(node(),), waiting=(gpu_run,), node_types=types, max_nodes_to_add=1)) == ["one"]


def test_an_idle_node_may_make_room_for_one_that_is_needed():
    """An autoscaler that may add no more takes idle nodes away, and adds others then."""
    nodes = (node("head"), node("a", may_go=True), node("b", may_go=True))
    gpu_run = run("one", needs=gang(2, gpus=1), share=driver(on="head"))
    of_gpus = {"node_types": (addable("gpu", 2, gpus=1),), "max_nodes_to_add": 0}
    server = Reservation(node_id="b", amounts={"CPU": CPU}, holder="actor Server")

    assert stuck(ClusterOccupancy(nodes=nodes, waiting=(gpu_run,), **of_gpus)) == []
    assert stuck(ClusterOccupancy(nodes=nodes, waiting=(gpu_run,), permanent=(server,), **of_gpus)) == ["one"]
    assert stuck(ClusterOccupancy(nodes=nodes[:2], waiting=(gpu_run,), **of_gpus)) == ["one"]


def test_an_idle_node_that_may_go_counts_once():
    one = run("one", needs=gang(3))

    assert stuck(ClusterOccupancy(nodes=(node(may_go=True),), waiting=(one,))) == ["one"]


def test_a_node_that_can_be_added_has_one_unit_of_its_device_type():
    worker = {"CPU": 1, "accelerator_type:T4": 10}  # of which Ray asks for 0.001 for each worker
    type_of = NodeTypeCapacity(name="t4", resources=Resources(cpus=1), accelerator_type="T4", max_nodes_to_add=1)
    runs = tuple(run(str(n), needs=Gang(worker=worker, num_workers=n)) for n in (1000, 1001))

    assert stuck(ClusterOccupancy(nodes=(), waiting=runs, node_types=(type_of,))) == ["1001"]


def test_host_memory_that_is_not_known_limits_nothing():
    needs = Gang(worker={"memory": 2**30}, num_workers=2)
    unknown, none = ({"CPU": CPU}, {"CPU": CPU, "memory": 0})

    assert (
        stuck(ClusterOccupancy(nodes=(NodeTotals(node_id="a", amounts=unknown),), waiting=(run("one", needs=needs),)))
        == []
    )
    assert stuck(
        ClusterOccupancy(nodes=(NodeTotals(node_id="a", amounts=none),), waiting=(run("one", needs=needs),))
    ) == ["one"]


def test_the_error_says_what_could_be_added():
    one = run("one", needs=gang(3, gpus=1))
    view = ClusterOccupancy(
        nodes=(node(),), waiting=(one,), node_types=(addable("gpu", 2, cpus=4, gpus=1),), max_nodes_to_add=5
    )

    error = deadlock_error(view, one)

    assert "nodes that can be added: 2 gpu with 4 CPUs, 1 GPU, at most 5 together" in error.offered
    assert error.suggestion.startswith("Ask for num_workers=2, or add nodes")

    with_none_left = view.model_copy(update={"node_types": (*view.node_types, addable("used up", 0))})
    assert deadlock_error(with_none_left, one).offered == error.offered

    full = view.model_copy(update={"nodes": (node(may_go=True),), "max_nodes_to_add": 0})
    error = deadlock_error(full, one)

    assert "2 gpu with 4 CPUs, 1 GPU, at most 0 together and one for each idle node that goes, of 1" in error.offered
    assert error.suggestion.startswith("Ask for num_workers=1, or add nodes")


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
    """The view with each mix of nodes gone, of those without a driver, and added that the limits allow."""
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
def test_a_run_is_stuck_only_if_no_mix_of_nodes_that_may_come_would_start_it(view):
    found = set(stuck(view))
    with_mixes = [set(stuck(each)) for each in mixes(view)]

    assert found <= set.intersection(*with_mixes)
    if len(view.waiting) == 1:
        assert found == set.intersection(*with_mixes)
