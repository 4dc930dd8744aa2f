"""Tests of the resources for the next attempt of a trial that ran out of memory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import GIB, gpu_node
from tune_policies import InfeasibleRequestError
from tune_policies.oom import OutOfMemory
from tune_policies.oom.memory_monitor import KilledWorker, NodeProcess
from tune_policies.placement.bundles import BundleGroup, is_held
from tune_policies.placement.request import DRIVER_BYTES
from tune_policies.trainers.retries.memory_floor import MemoryFloor, floor_of, limit_gpus, limit_to_nodes, next_share
from tune_policies.trainers.retries.oom_history import OomRecord, TrialOomHistory
from tune_policies.trainers.retries.oom_retry import (
    PAUSE_S,
    RetryDecision,
    decide_retry,
    history_after,
    next_floor,
)
from tune_policies.values.resources import TICKS, to_ticks

ACCELERATOR = OutOfMemory(kind="accelerator")
HOST = OutOfMemory(kind="host")
NODES = (gpu_node("a", gpus=4, cpus=8, memory_gib=64),)


def after(bundle, out_of_memory=ACCELERATOR, *, growth=2.0, max_gpus=1.0, nodes=NODES):
    floor = next_floor(BundleGroup([bundle]), out_of_memory, growth=growth, max_gpus=max_gpus, nodes=nodes)
    return floor.apply_to([bundle])[0]


@pytest.mark.parametrize(
    ("gpus", "growth", "max_gpus", "expected"),
    [
        pytest.param(0.25, 2.0, 1.0, 0.5, id="a quarter becomes a half"),
        pytest.param(0.5, 2.0, 1.0, 1, id="a half becomes a whole"),
        pytest.param(0.2, 2.0, 1.0, 0.5, id="two fifths are rounded up to a half"),
        pytest.param(0.25, 1.1, 1.0, 0.3333, id="the smallest growth is the next equal part"),
        pytest.param(0.75, 2.0, 4.0, 1, id="a fraction becomes a whole GPU first"),
        pytest.param(1, 2.0, 4.0, 2, id="one GPU becomes two if two are allowed"),
        pytest.param(1, 1.1, 4.0, 2, id="several GPUs are whole"),
        pytest.param(3, 2.0, 4.0, 4, id="growth stops at the maximum"),
        pytest.param(0.25, 4.0, 0.5, 0.5, id="the maximum may be a GPU fraction"),
        pytest.param(0.25, 4.0, 0.6, 0.5, id="the maximum is rounded down to an equal part"),
    ],
)
def test_a_gpu_fraction_grows_to_a_unit_fraction_or_to_whole_gpus(gpus, growth, max_gpus, expected):
    assert after({"CPU": 2, "GPU": gpus}, growth=growth, max_gpus=max_gpus) == {"CPU": 2, "GPU": expected}


@given(
    share=st.integers(1, TICKS), growth=st.floats(1.001, 20), devices=st.integers(1, 16), most=st.sampled_from([1, 16])
)
def test_a_gpu_fraction_always_grows_up_to_the_maximum(share, growth, devices, most):
    grown = next_share(share, growth=growth, max_gpus=most, num_devices=devices)

    assert grown is None if share == most * TICKS else share < grown <= most * TICKS
    assert grown is None or grown >= min(TICKS, math.floor(share * growth))


def test_other_resources_of_a_bundle_do_not_change():
    others = {"CPU": 0.5, "memory": GIB, "accelerator_type:A100": 0.001}
    nodes = (gpu_node("a", gpus=1, cpus=8, memory_gib=8, accelerator_type="A100"),)

    assert after({**others, "GPU": 0.25}, nodes=nodes) == {**others, "GPU": 0.5}


def test_on_nodes_with_one_gpu_the_error_does_not_advise_to_raise_max_gpus():
    with pytest.raises(InfeasibleRequestError, match=r"no node has more than 1 GPU: .* Use a GPU with"):
        after({"GPU": 1}, max_gpus=1.0, nodes=(gpu_node("a", gpus=1, cpus=8),))


def test_every_bundle_with_a_gpu_grows():
    bundles = [{"CPU": 1}, {"GPU": 0.25}, {"GPU": 0.25, "CPU": 1}]

    floor = next_floor(BundleGroup(bundles), ACCELERATOR, growth=2, max_gpus=1, nodes=NODES)

    assert floor.apply_to(bundles) == [{"CPU": 1}, {"GPU": 0.5}, {"GPU": 0.5, "CPU": 1}]


@pytest.mark.parametrize(
    ("bundle", "max_gpus", "message"),
    [
        pytest.param({"GPU": 1}, 1.0, "than 1 GPU, but max_gpus is 1: short of GPU memory. Raise max_gpus"),
        pytest.param({"GPU": 4}, 8.0, "no node has more than 4 GPUs: short of GPU memory. Use a GPU with more memory"),
        pytest.param({"GPU": 0.5}, 0.5, "than 0.5 GPU, but max_gpus is 0.5"),
        pytest.param({"CPU": 1}, 1.0, "the trial does not reserve a GPU"),
        pytest.param({"GPU": 1, "CPU": 9}, 4.0, "no node has 2 GPUs in addition to the other resources of the trial"),
    ],
)
def test_a_request_that_cannot_grow_raises_an_error_with_the_reason(bundle, max_gpus, message):
    with pytest.raises(InfeasibleRequestError, match=message):
        after(bundle, max_gpus=max_gpus)


@pytest.mark.parametrize(
    ("bundle", "out_of_memory", "expected"),
    [
        pytest.param({"memory": 4 * GIB}, HOST, 8 * GIB, id="from its reservation"),
        pytest.param({"memory": 40 * GIB}, HOST, 64 * GIB, id="up to the memory of the largest node"),
        pytest.param({}, OutOfMemory(kind="host", requested_bytes=3 * GIB), 6 * GIB, id="from its request"),
        pytest.param({}, HOST, 4 * GIB, id="from 2 GiB if its request is unknown"),
    ],
)
def test_host_memory_is_doubled_up_to_the_memory_of_the_largest_node(bundle, out_of_memory, expected):
    assert after({"CPU": 1, **bundle}, out_of_memory) == {"CPU": 1, "memory": expected}


def test_host_memory_as_large_as_on_the_largest_node_cannot_grow():
    with pytest.raises(InfeasibleRequestError, match=r"more host memory than 64 GiB, .* largest node has 64 GiB"):
        after({"memory": 64 * GIB}, HOST)


def decide(bundle, out_of_memory, *, nodes=NODES, growth=2.0, **history):
    return decide_retry(
        BundleGroup([bundle]), out_of_memory, TrialOomHistory(**history), growth=growth, max_gpus=1.0, nodes=nodes
    )


@pytest.mark.parametrize(
    ("out_of_memory", "num_retries", "expected"),
    [
        (OutOfMemory(kind="none"), 0, "leave_to_tune"),
        (ACCELERATOR, 0, "more_memory"),
        (HOST, 0, "more_memory"),
        (OutOfMemory(kind="accelerator", cause="own_limit"), 0, "more_memory"),
        (OutOfMemory(kind="accelerator", cause="neighbour"), 1, "same_memory"),
        (OutOfMemory(kind="accelerator", cause="neighbour"), 2, "more_memory"),
        (OutOfMemory(kind="accelerator", cause="neighbour", needed_share=0.25), 0, "same_memory"),
        (OutOfMemory(kind="accelerator", cause="neighbour", needed_share=0.3), 0, "more_memory"),
    ],
)
def test_after_an_oom_error_caused_by_a_neighbour_retries_keep_the_fraction_at_most_twice(
    out_of_memory, num_retries, expected
):
    assert decide({"GPU": 0.25}, out_of_memory, num_same_memory_retries=num_retries).kind == expected


@pytest.mark.parametrize(("out_of_memory", "expected"), [(ACCELERATOR, "leave_to_tune"), (HOST, "more_memory")])
def test_a_trial_without_a_gpu_gets_more_memory_only_after_a_host_oom_error(out_of_memory, expected):
    assert decide({"CPU": 1}, out_of_memory).kind == expected


@pytest.mark.parametrize(
    ("bundle", "expected"),
    [
        ({"memory": DRIVER_BYTES}, "leave_to_tune"),
        ({"CPU": 0, "memory": DRIVER_BYTES}, "leave_to_tune"),
        ({"memory": 2 * DRIVER_BYTES}, "more_memory"),
        ({"CPU": 1, "memory": DRIVER_BYTES}, "more_memory"),
        ({}, "more_memory"),
    ],
)
def test_the_host_memory_of_a_train_driver_does_not_grow(bundle, expected):
    assert decide(bundle, HOST).kind == expected


def test_a_trial_does_not_get_more_memory_if_the_nodes_are_not_known():
    decision = decide({"memory": GIB}, HOST, nodes=None)

    assert (decision.kind, decision.floor) == ("leave_to_tune", None)
    assert "the nodes could not be read" in decision.reason


def test_a_decision_for_more_memory_has_the_floor_and_the_reason():
    decision = decide({"GPU": 0.25}, ACCELERATOR)

    assert decision == RetryDecision(
        kind="more_memory",
        floor=MemoryFloor(gpu_ticks=TICKS // 2),
        reason="ran out of GPU memory and is retried with 0.5 GPU instead of 0.25 GPU",
    )


RESERVED = {"CPU": 1, "memory": GIB // 2}
OTHER_PROGRAM = NodeProcess(pid=7, used_bytes=3 * GIB, command="python other.py")


def killed(used_bytes, *others):
    """Return the error of a trial that Ray's memory monitor killed while it used this memory."""
    workers = (KilledWorker(actor_id="a", used_bytes=used_bytes),)
    return OutOfMemory(
        kind="host", framework="ray", used_bytes=used_bytes, killed_workers=workers, other_processes=others
    )


@pytest.mark.parametrize(("num_retries", "pause_s"), [(0, PAUSE_S), (1, 2 * PAUSE_S)])
def test_a_killed_trial_within_its_reservation_is_retried_with_the_same_memory_after_a_pause(num_retries, pause_s):
    decision = decide(RESERVED, killed(GIB // 4, OTHER_PROGRAM), num_same_memory_retries=num_retries, other_pids=(7,))

    assert (decision.kind, decision.floor, decision.pause_s) == ("same_memory", None, pause_s)
    assert decision.reason == (
        "used 256 MiB of host memory and reserves 512 MiB, but other processes took the memory of the node (process 7 "
        "used 3 GiB: python other.py). It is retried with the same memory"
    )


def test_after_two_retries_with_the_same_memory_tune_handles_the_failure():
    decision = decide(RESERVED, killed(GIB // 4, OTHER_PROGRAM), num_same_memory_retries=2, other_pids=(7,))

    assert decision.kind == "leave_to_tune"
    assert "2 retries with the same memory failed" in decision.reason


def test_a_retry_with_the_same_memory_adds_no_record_for_similar_configs():
    out_of_memory = killed(GIB // 4, OTHER_PROGRAM)

    history = history_after(TrialOomHistory(), decide(RESERVED, out_of_memory), out_of_memory, {"width": 1})

    assert history == TrialOomHistory(num_same_memory_retries=1, other_pids=(7,))


def test_a_retry_with_more_memory_adds_a_record_and_allows_two_more_retries_with_the_same_memory():
    out_of_memory, before = killed(3 * GIB), TrialOomHistory(num_same_memory_retries=2)

    history = history_after(before, decide(RESERVED, out_of_memory), out_of_memory, {"width": 1})

    record = OomRecord(settings={"width": 1}, floor=MemoryFloor(memory_bytes=6 * GIB))
    assert history == TrialOomHistory(records=(record,), other_pids=())


@pytest.mark.parametrize(
    ("bundle", "out_of_memory", "expected"),
    [
        pytest.param(RESERVED, killed(3 * GIB, OTHER_PROGRAM), 6 * GIB, id="it used more than it reserved"),
        pytest.param({"CPU": 1}, killed(4 * GIB, OTHER_PROGRAM), 8 * GIB, id="it used most of the memory"),
        pytest.param({"CPU": 1}, killed(GIB), 2 * GIB, id="the message lists no other process"),
    ],
)
def test_a_killed_trial_that_took_the_memory_gets_more_than_it_used(bundle, out_of_memory, expected):
    assert decide(bundle, out_of_memory).floor == MemoryFloor(memory_bytes=expected)


@pytest.mark.parametrize("bundle", [{"CPU": 1}, RESERVED], ids=["without a reservation", "within its reservation"])
def test_a_trial_whose_child_process_takes_the_memory_has_enough_in_its_third_attempt(bundle):
    first = killed(GIB // 5, NodeProcess(pid=100, used_bytes=4 * GIB), NodeProcess(pid=8, used_bytes=GIB // 2))
    again = killed(GIB // 5, NodeProcess(pid=200, used_bytes=4 * GIB), NodeProcess(pid=8, used_bytes=GIB // 2))
    settings = {"width": 1}

    decisions, history = [], TrialOomHistory()
    for out_of_memory in (first, again):
        decision = decide(bundle, out_of_memory, **dict(history))
        history = history_after(history, decision, out_of_memory, settings)
        decisions.append(decision)

    assert [decision.kind for decision in decisions] == ["same_memory", "more_memory"]
    assert decisions[1].floor == MemoryFloor(memory_bytes=math.ceil(2 * (GIB // 5 + 4 * GIB)))


def test_small_processes_that_started_between_two_kills_do_not_count_as_child_processes():
    out_of_memory = killed(GIB // 4, OTHER_PROGRAM, NodeProcess(pid=9, used_bytes=GIB))

    assert decide(RESERVED, out_of_memory, other_pids=(7,)).kind == "same_memory"


def test_child_processes_with_exactly_half_of_the_memory_of_others_do_not_count():
    out_of_memory = killed(GIB // 4, NodeProcess(pid=7, used_bytes=4 * GIB), NodeProcess(pid=9, used_bytes=4 * GIB))

    assert decide(RESERVED, out_of_memory, other_pids=(7,)).kind == "same_memory"


def test_the_reason_names_the_largest_other_process():
    out_of_memory = killed(
        GIB,
        NodeProcess(pid=8, used_bytes=GIB, command="small"),
        NodeProcess(pid=9, used_bytes=4 * GIB, command="large"),
    )

    assert "(process 9 used 4 GiB: large)" in decide({"CPU": 1}, out_of_memory).reason


@pytest.mark.parametrize(
    ("bundle", "out_of_memory", "expected"),
    [
        pytest.param(RESERVED, killed(GIB // 2), "same_memory", id="it used exactly what it reserved"),
        pytest.param(
            {"CPU": 1}, killed(3 * GIB, OTHER_PROGRAM), "more_memory", id="it used as much as all other processes"
        ),
        pytest.param(
            {"memory": 4 * GIB},
            OutOfMemory(kind="host", used_bytes=2 * GIB, requested_bytes=2 * GIB),
            "same_memory",
            id="its request reached its reservation",
        ),
        pytest.param(
            {"memory": 4 * GIB},
            OutOfMemory(kind="host", requested_bytes=GIB),
            "more_memory",
            id="a small request failed, and its usage is unknown",
        ),
    ],
)
def test_a_trial_gets_more_memory_only_if_it_used_more_than_it_reserved(bundle, out_of_memory, expected):
    assert decide(bundle, out_of_memory).kind == expected


def test_a_trial_that_used_less_than_it_reserved_grows_if_no_request_of_it_failed():
    assert decide({"memory": 4 * GIB}, OutOfMemory(kind="host", used_bytes=GIB)).floor.memory_bytes == 8 * GIB


def test_the_second_retry_with_a_known_amount_gets_a_multiple_of_this_amount():
    out_of_memory = OutOfMemory(kind="host", used_bytes=3 * GIB)
    record = OomRecord(settings={}, floor=MemoryFloor(memory_bytes=2 * GIB))

    assert decide({"memory": 2 * GIB}, out_of_memory, records=(record,)).floor.memory_bytes == 6 * GIB


def test_the_smallest_growth_is_the_next_share_although_products_are_rounded():
    assert next_share(5000, growth=1 + 1e-12, max_gpus=1.0, num_devices=1) == TICKS


def test_two_bundles_on_one_gpu_grow_to_a_half_if_a_whole_gpu_each_does_not_fit():
    floor = next_floor(
        BundleGroup([{"GPU": 0.25}] * 2), ACCELERATOR, growth=4.0, max_gpus=1.0, nodes=(gpu_node("a", gpus=1),)
    )

    assert floor.gpu_ticks == TICKS // 2


def test_devices_that_the_trial_does_not_reserve_do_not_count():
    nodes = (gpu_node("a", gpus=8, custom={"NPU": 2}),)

    with pytest.raises(InfeasibleRequestError, match="no node has more than 2 GPUs"):
        after({"NPU": 2}, max_gpus=8, nodes=nodes)


def test_the_largest_node_determines_the_maximum_number_of_gpus():
    nodes = (gpu_node("a", gpus=4), gpu_node("b", gpus=1))

    assert after({"GPU": 1}, max_gpus=8, nodes=nodes) == {"GPU": 2}
    assert after({"GPU": 3}, max_gpus=8, nodes=nodes) == {"GPU": 4}


def test_a_failed_request_within_the_reservation_is_retried_with_the_same_memory():
    used_by_others = OutOfMemory(kind="host", framework="python", used_bytes=GIB, requested_bytes=GIB)

    assert decide({"memory": 4 * GIB}, used_by_others).kind == "same_memory"
    assert decide({"memory": GIB}, used_by_others).floor == MemoryFloor(memory_bytes=4 * GIB)


def test_the_second_retry_without_a_known_amount_gets_the_largest_amount_that_fits():
    """A kill by the kernel reports no amount. The first retry gets twice the assumed or reserved amount."""
    first = decide({"memory": GIB // 5}, HOST)
    history = history_after(TrialOomHistory(), first, HOST, {})

    second = decide({"memory": first.floor.memory_bytes}, HOST, **dict(history))

    assert (first.floor.memory_bytes, second.floor.memory_bytes) == (math.ceil(GIB // 5 * 2.0), 64 * GIB)


def test_a_fraction_that_was_raised_in_the_meantime_is_kept_if_it_is_enough():
    assert MemoryFloor(gpu_ticks=to_ticks(0.5)).apply_to([{"GPU": 0.7}]) == [{"GPU": 0.7}]


def grown(bundles, *, out_of_memory=ACCELERATOR, max_gpus=1.0, nodes=NODES, **where):
    floor = next_floor(BundleGroup(bundles, **where), out_of_memory, growth=2.0, max_gpus=max_gpus, nodes=nodes)
    return floor.apply_to(bundles)


def test_an_npu_fraction_grows_like_a_gpu_fraction():
    nodes = (gpu_node("a", gpus=0, custom={"NPU": 2}),)

    assert after({"NPU": 0.25}, nodes=nodes) == {"NPU": 0.5}


def test_the_number_of_whole_devices_does_not_change():
    assert decide({"TPU": 4}, ACCELERATOR).kind == "leave_to_tune"


ONE, TWO = gpu_node("a", gpus=1, labels={"zone": "x"}), gpu_node("b", gpus=2)
HALF = {"GPU": 0.5}


@pytest.mark.parametrize(
    ("bundles", "nodes", "where"),
    [
        pytest.param([HALF] * 3, (TWO,), {}, id="three on two devices"),
        pytest.param([HALF] * 3, (ONE, TWO), {"strategy": "STRICT_PACK"}, id="on one node"),
        pytest.param([HALF] * 3, (ONE, TWO), {"strategy": "STRICT_SPREAD"}, id="on a node each"),
        pytest.param([HALF] * 2, (ONE, TWO), {"selectors": [{"zone": "x"}] * 2}, id="on nodes with a label"),
        pytest.param([{"CPU": 1}, HALF, {"GPU": 1.0}], (ONE,), {}, id="next to a whole device"),
    ],
)
def test_a_trial_does_not_grow_if_its_bundles_fit_individually_but_not_together(bundles, nodes, where):
    with pytest.raises(
        InfeasibleRequestError, match="no node has 1 GPU in addition to the other resources of the trial"
    ):
        grown(bundles, nodes=nodes, **where)


@pytest.mark.parametrize(
    ("bundles", "where"),
    [
        pytest.param([HALF] * 3, {}, id="over both nodes"),
        pytest.param([HALF] * 2, {"strategy": "STRICT_PACK"}, id="on the larger node"),
        pytest.param([HALF] * 2, {"strategy": "STRICT_SPREAD"}, id="on a node each"),
        pytest.param([HALF] * 3, {"selectors": [{"zone": "x"}, {"zone": "!x"}, {}]}, id="bundles on different nodes"),
        pytest.param([{}, HALF, HALF], {"selectors": [{}, {"zone": "x"}, {}]}, id="with a trainable without resources"),
    ],
)
def test_all_bundles_grow_if_they_fit_the_nodes_together(bundles, where):
    assert grown(bundles, nodes=(ONE, TWO), **where) == [{"GPU": 1} if bundle else {} for bundle in bundles]


def test_fractions_must_fit_single_devices():
    assert is_held(BundleGroup([{"GPU": 0.6}, {"GPU": 0.4}, {"GPU": 1.0}]), [TWO])
    assert not is_held(BundleGroup([{"GPU": 0.6}] * 3), [TWO])


def test_growth_is_limited_to_the_largest_amount_that_fits():
    devices = (gpu_node("a", gpus=8, accelerator_type="T4"), gpu_node("b", gpus=3, accelerator_type="A100"))
    memory = (gpu_node("a", gpus=4, memory_gib=32), gpu_node("b", gpus=0, memory_gib=256))
    thirds = [{"GPU": 0.25, "CPU": 32}] * 6

    assert after({"GPU": 2, "accelerator_type:A100": 0.001}, max_gpus=8, nodes=devices)["GPU"] == 3
    assert after({"GPU": 0.25, "memory": 20 * GIB}, HOST, nodes=memory)["memory"] == 32 * GIB
    assert {bundle["GPU"] for bundle in grown(thirds, nodes=(gpu_node("a", gpus=2, cpus=200),))} == {0.3333}


@pytest.mark.parametrize(
    ("max_gpus", "nodes", "expected"),
    [
        pytest.param(4, NODES, {"GPU": 4, "memory": 8 * GIB}, id="all the memory"),
        pytest.param(2, NODES, {"GPU": 2, "memory": 8 * GIB}, id="at most the allowed amount"),
        pytest.param(0.6, NODES, {"GPU": 0.5, "memory": 8 * GIB}, id="an equal part"),
        pytest.param(
            4, (gpu_node("a", gpus=1, memory_gib=4),), {"GPU": 1, "memory": 4 * GIB}, id="the resources of the nodes"
        ),
        pytest.param(
            4, (gpu_node("a", gpus=0),), {"GPU": 4, "memory": 8 * GIB}, id="nodes that have not been added yet"
        ),
        pytest.param(2, None, {"GPU": 2, "memory": 8 * GIB}, id="unread nodes"),
    ],
)
def test_a_trial_gets_the_memory_that_another_trial_needed_up_to_its_own_limits(max_gpus, nodes, expected):
    needed, planned = MemoryFloor(gpu_ticks=4 * TICKS, memory_bytes=8 * GIB), [{"GPU": 0.25}]

    group = BundleGroup(planned)
    floor = limit_to_nodes(limit_gpus(needed, group, max_gpus=max_gpus, nodes=nodes), group, nodes)

    assert floor.apply_to(planned) == [expected]
    assert floor_of(floor.apply_to(planned)) == floor
