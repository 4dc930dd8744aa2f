"""Tests that the picture of a plan contains every slot, shows similar nodes as one card, and escapes names."""

import cProfile
import pstats
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.clusters import gpu_node, slice_hosts
from tests.unit.strategies import clusters, with_kinds
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    Resources,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.files.svg import WIDTH, fitted, text_width, wrapped
from tune_policies.placement.bundles import RemainingNode
from tune_policies.placement.layout import workers_on_nodes

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text></svg><script>alert(1)</script>&"\N{RIGHT-TO-LEFT OVERRIDE}\x00\x1b[31m]]>'


def cluster(*nodes):
    return ClusterCapacity(nodes=nodes)


def picture(policy, capacity):
    return ElementTree.fromstring(policy.plan(capacity).plot(capacity).svg)


def texts(policy, capacity):
    return [each.text for each in picture(policy, capacity).iter(f"{SVG}text")]


def boxes(policy, capacity, style):
    return [each for each in picture(policy, capacity).iter(f"{SVG}rect") if style in each.get("class", "").split()]


def planned(policy, capacity):
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        assume(False)


@given(clusters(), with_kinds)
def test_every_worker_of_a_plan_is_on_a_node_with_room_for_it(capacity, policy):
    plan = planned(policy, capacity)

    found = workers_on_nodes(plan.slots, capacity)

    for slot_type, slot in enumerate(plan.slots):
        wanted = slot.max_concurrent_trials * max(1, slot.num_workers)
        assert sum(each.workers[slot_type] for each in found) == wanted
    for node, workers in found:
        left = RemainingNode(node.amounts)
        # Whole devices are allocated first, because fractions also fit on the devices that remain.
        by_share = sorted(zip(plan.slots, workers, strict=True), key=lambda each: -each[0].worker.gpus)
        assert all(left.allocate(slot.worker.ticks) for slot, count in by_share for _ in range(count))


@given(clusters(), with_kinds)
def test_every_plan_has_a_picture_whose_parts_are_inside_the_frame(capacity, policy):
    plan = planned(policy, capacity)

    drawn = ElementTree.fromstring(plan.plot(capacity).svg)

    height = float(drawn.get("height"))
    for box in drawn.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= x + float(box.get("width")) <= WIDTH + 0.5
        assert 0 <= y <= y + float(box.get("height")) <= height
    assert all(float(each.get("font-size")) >= 12.5 for each in drawn.iter(f"{SVG}text"))


ONE = gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=80, accelerator_type="A100")


SLICE = {"resource": "TPU", "amount": 4, "num_workers": 2, "topology": "2x2x2", "accelerator_type": "TPU-V4"}
TYPE = NodeTypeCapacity(name="gpu", resources=Resources(cpus=16, gpus=4), max_nodes_to_add=3)
GROWING = ClusterCapacity(nodes=(gpu_node("head", gpus=0),), node_types=(TYPE,))


@pytest.mark.parametrize(
    ("policy", "capacity", "expected"),
    [
        pytest.param(
            GpuPolicy(gpus=0.25, cpus=4),
            cluster(ONE),
            ["32 CPUs, 2 GPUs (A100, 80 GiB)", "a", "GPU: 2 of 2", "8 × type 1", "CPU: 32 of 32"],
            id="a node with its address and the resources of its slots",
        ),
        pytest.param(
            GpuPolicy(cpus=4),
            cluster(ONE),
            ["GPU: 2 of 2", "full: no room for another trial", "24 of 32 CPUs: no GPU is left on their"],
            id="the limiting resource and the idle resources",
        ),
        pytest.param(
            MixedPolicy(GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=10)),
            cluster(ONE),
            ["type 1", "type 2", "2 trials with 10 CPUs", "4 × type 1, 2 × type 2"],
            id="slots of several types",
        ),
        pytest.param(
            CappedPolicy(GpuPolicy(), 5),
            cluster(*(gpu_node(name, gpus=2) for name in "abcd")),
            ["× 2", "GPU: 2 of 2", "GPU: 1 of 2", "GPU: 0 of 2"],
            id="nodes of one shape with different numbers of slots",
        ),
        pytest.param(
            CpuPolicy(),
            cluster(*(gpu_node(f"n{i}", gpus=0, cpus=i + 1) for i in range(40))),
            ["and 24 nodes of 24 further shapes"],
            id="the number of omitted cards",
        ),
        pytest.param(
            GpuPolicy(num_workers=3),
            cluster(*(gpu_node(name, gpus=4) for name in "ab")),
            ["× 2", "GPU: 3 of 4"],
            id="Train workers",
        ),
        pytest.param(
            AcceleratorPolicy(**SLICE),
            cluster(*slice_hosts("a-broken")[:1], *slice_hosts("s1"), *slice_hosts("s2")),
            ["a-broken-0", "TPU: 0 of 4", "× 4"],
            id="whole TPU slices only",
        ),
        pytest.param(
            AutoscalingPolicy(GpuPolicy()),
            GROWING,
            ["to be added by the autoscaler: gpu", "× 3"],
            id="nodes to be added",
        ),
    ],
)
def test_a_picture_contains_the_expected_texts(policy, capacity, expected):
    shown = texts(policy, capacity)

    assert [each for each in expected if each not in shown] == []


@pytest.mark.parametrize(
    ("policy", "capacity", "style", "number"),
    [
        (GpuPolicy(gpus=0.25, cpus=4), cluster(ONE), "tp-c0", 1 + 8 + 8),
        (MixedPolicy(GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=10)), cluster(ONE), "tp-c1", 1 + 2),
        (GpuPolicy(gpus=0.5, cpus=1, num_workers=3), cluster(gpu_node("a", gpus=2, cpus=3)), "tp-free", 1),
        (GpuPolicy(), cluster(*(gpu_node(f"{n}{i}", gpus=n) for n in (8, 1) for i in range(9))), "tp-card", 2),
        (AutoscalingPolicy(GpuPolicy()), GROWING, "tp-expected", 1),
    ],
    ids=[
        "a box for each worker",
        "a colour for each type",
        "the idle part of a device",
        "a card for a shape",
        "a new node",
    ],
)
def test_a_picture_has_the_expected_number_of_boxes(policy, capacity, style, number):
    assert len(boxes(policy, capacity, style)) == number


def calls_of_picture_and_text(policy, num_nodes):
    """Return the number of function calls for the picture and the text of a plan. All nodes differ in host memory."""
    capacity = cluster(*(gpu_node(f"n{i}", gpus=2, memory_gib=32 + i / 1024) for i in range(num_nodes)))
    plan = policy.plan(capacity)
    profile = cProfile.Profile()
    with profile:
        plan.plot(capacity)
        plan.explain(capacity)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(gpus=0.5),
        CpuPolicy(memory="2GiB", num_workers=2),
        MixedPolicy(GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)),
    ],
    ids=["GPU fractions", "Train workers with host memory", "several slot types"],
)
def test_the_calls_for_a_picture_and_a_text_grow_by_less_than_120_for_each_further_node(policy):
    calls_of_picture_and_text(policy, 10)  # imports modules

    further = calls_of_picture_and_text(policy, 300) - calls_of_picture_and_text(policy, 200)

    assert further < 120 * 100


def test_names_are_escaped_in_a_picture():
    labels = {HOSTILE: HOSTILE}
    node = gpu_node(HOSTILE, cpus=4, accelerator_type=HOSTILE, custom={HOSTILE: 2}, labels=labels)
    capacity = cluster(node.model_copy(update={"address": HOSTILE}))

    drawn = picture(CpuPolicy(custom={HOSTILE: 1}), capacity)

    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} == {"svg", "style", "rect", "text"}
    assert any("</text></svg><script>alert(1)" in (each.text or "") for each in drawn.iter(f"{SVG}text"))


def test_a_plan_for_another_cluster_has_no_picture():
    plan = GpuPolicy().plan(cluster(gpu_node("a", gpus=4)))

    with pytest.raises(InvalidResourcesError, match="Pass the capacity for which the plan was made"):
        plan.plot(cluster(gpu_node("a", gpus=2)))


def test_a_picture_is_saved_as_svg_and_replaces_a_file_only_with_force(tmp_path):
    drawn = GpuPolicy().plan(cluster(ONE)).plot(cluster(ONE))
    drawn.save(tmp_path / "plan.svg")

    assert (tmp_path / "plan.svg").read_text() == drawn.svg == drawn._repr_svg_()
    drawn.save(str(tmp_path / "plan.svg"), force=True)
    with pytest.raises(InvalidResourcesError, match=r"plan\.svg"):
        drawn.save(tmp_path / "plan.svg")
    with pytest.raises(InvalidResourcesError, match=r"'plan\.png' does not end in \.svg"):
        drawn.save(tmp_path / "plan.png")


@given(st.text(), st.floats(20, 400))
def test_a_text_is_shortened_or_wrapped_to_fit(text, width):
    assert text_width(fitted(text, width), 12.5) <= width
    assert all(text_width(line, 12.5) <= width for line in wrapped(text, width))


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=5).map(" ".join))
def test_a_wrapped_text_keeps_its_words(text):
    assert "".join("".join(wrapped(text, 200, most=100)).split()) == text.replace(" ", "")


def test_an_amount_and_its_unit_stay_on_one_line():
    lines = wrapped("each trial has 1 CPU and 6 GiB of memory", 26 * 0.6 * 10, 10)

    assert lines == ["each trial has 1 CPU and", "6 GiB of memory"]
