"""The picture of a plan: every slot is in it, alike nodes are one card, and texts from outside stay texts."""

from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, assume, given, settings
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
from tune_policies.cluster.capacity import NodeTypeCapacity
from tune_policies.placement.layout import place_slots, workers_on_nodes
from tune_policies.placement.packing import RemainingNode
from tune_policies.views.svg import COLORS, ON_DARK, WIDTH, fitted, text_width, wrapped

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


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(clusters(), with_kinds)
def test_every_worker_of_a_plan_is_on_a_node_and_finds_room_there(capacity, policy):
    plan = planned(policy, capacity)

    found = workers_on_nodes(plan.slots, capacity)

    for slot_type, slot in enumerate(plan.slots):
        wanted = slot.max_concurrent_trials * max(1, slot.num_workers)
        assert sum(each.workers[slot_type] for each in found) == wanted
    for node, workers in found:
        left = RemainingNode(node.amounts)
        # Whole devices first: shares find their place on what they leave.
        by_share = sorted(zip(plan.slots, workers, strict=True), key=lambda each: -each[0].worker.gpus)
        assert all(left.allocate(slot.worker.ticks) for slot, count in by_share for _ in range(count))


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(clusters(), with_kinds)
def test_slots_that_have_a_node_are_drawn_on_it(capacity, policy):
    plan = planned(policy, capacity)

    found = workers_on_nodes(plan.slots, capacity)

    placed = Counter()
    for place in place_slots(plan.slots, capacity).places:
        for node_id, number in place.worker_nodes or ((place.node_id, 1),):
            placed[node_id, place.slot_type] += place.count * number
    assert all(each.workers[at] == placed[each.node.node_id, at] for each in found for at in range(len(plan.slots)))


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(clusters(), with_kinds)
def test_every_plan_has_a_picture_in_which_nothing_leaves_the_frame(capacity, policy):
    plan = planned(policy, capacity)

    drawn = ElementTree.fromstring(plan.plot(capacity).svg)

    height = float(drawn.get("height"))
    for box in drawn.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= x + float(box.get("width")) <= WIDTH + 0.5
        assert 0 <= y <= y + float(box.get("height")) <= height
    assert all(float(each.get("font-size")) >= 12.5 for each in drawn.iter(f"{SVG}text"))


ONE = gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=80, accelerator_type="A100")


def test_shares_of_a_device_are_boxes_in_it():
    policy = GpuPolicy(gpus=0.25, cpus=4)

    said = texts(policy, cluster(ONE))

    assert {
        "32 CPUs, 2 GPUs (A100, 80 GiB)",
        "a",
        "GPU: 2 of 2",
        "0: 4 × type 1",
        "1: 4 × type 1",
        "CPU: 32 of 32",
    } <= {*said}
    assert len(boxes(policy, cluster(ONE), "tp-c0")) == 1 + 8 + 8  # the slot type's own, and one in each resource


def test_what_is_used_up_stops_one_more_trial_and_what_is_left_is_idle():
    said = texts(GpuPolicy(cpus=4), cluster(ONE))

    assert said.index("GPU: 2 of 2") + 1 == said.index("stops one more trial")
    assert said.count("stops one more trial") == 1
    assert "24 of 32 CPUs: their nodes have no GPU left" in said


def test_a_worker_with_several_devices_is_one_box_with_their_numbers():
    assert {"0-1: type 1", "2-3: type 1"} <= {*texts(GpuPolicy(gpus=2), cluster(gpu_node("a", gpus=4)))}


def test_slots_of_several_types_have_a_colour_and_a_number_each():
    policy = MixedPolicy(GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=10))

    said = texts(policy, cluster(ONE))

    assert {"type 1", "type 2", "2 trials with 10 CPUs", "4 × type 1, 2 × type 2"} <= {*said}
    assert len(boxes(policy, cluster(ONE), "tp-c1")) == 1 + 2


def test_nodes_of_one_shape_are_one_card_with_their_number():
    shapes = {"h": {"gpus": 8}, "t": {"gpus": 1}, "c": {"gpus": 0}}
    many = cluster(*(gpu_node(f"{name}{i}", **has) for i in range(100) for name, has in shapes.items()))

    said = texts(GpuPolicy(), many)

    assert said.count("× 100") == 3
    assert len(boxes(GpuPolicy(), many, "tp-card")) == 3


def test_a_node_that_holds_less_than_others_of_its_shape_is_a_card_of_its_own():
    policy = CappedPolicy(GpuPolicy(), 5)

    said = texts(policy, cluster(*(gpu_node(name, gpus=2) for name in "abcd")))

    assert {"× 2", "GPU: 2 of 2", "GPU: 1 of 2", "1: idle", "GPU: 0 of 2"} <= {*said}


def test_of_many_shapes_the_rest_is_counted():
    many = cluster(*(gpu_node(f"n{i}", gpus=0, cpus=i + 1) for i in range(40)))

    assert "and 24 nodes of 24 further shapes" in texts(CpuPolicy(), many)


def test_many_devices_of_a_node_are_one_box_for_each_way_they_are_used():
    said = texts(CappedPolicy(GpuPolicy(), 10), cluster(gpu_node("a", gpus=16)))

    assert {"10 with type 1", "6 idle"} <= {*said}


def test_train_workers_fill_the_nodes_and_ray_chooses_which():
    said = texts(GpuPolicy(num_workers=3), cluster(*(gpu_node(name, gpus=4) for name in "ab")))

    assert {"× 2", "GPU: 3 of 4"} <= {*said}
    note = "Each box is a Train worker. This is one way in which all find room: Ray chooses the nodes."
    assert " ".join(said).endswith(note)


def test_workers_are_on_whole_tpu_slices_only():
    policy = AcceleratorPolicy(resource="TPU", amount=4, num_workers=2, topology="2x2x2", accelerator_type="TPU-V4")
    broken = slice_hosts("a-broken")[:1]

    said = texts(policy, cluster(*broken, *slice_hosts("s1"), *slice_hosts("s2")))

    assert said.count("× 4") == 1
    assert said[said.index("a-broken-0") + 1] == "TPU: 0 of 4"


def test_a_node_that_the_autoscaler_is_to_add_has_a_dashed_card():
    kind = NodeTypeCapacity(name="gpu", resources=Resources(cpus=16, gpus=4), max_nodes_to_add=3)
    capacity = ClusterCapacity(nodes=(gpu_node("head", gpus=0),), node_types=(kind,))
    policy = AutoscalingPolicy(GpuPolicy())

    assert {"to be added by the autoscaler: gpu", "× 3"} <= {*texts(policy, capacity)}
    assert len(boxes(policy, capacity, "tp-expected")) == 1


def test_names_become_no_elements_of_a_picture():
    labels = {HOSTILE: HOSTILE}
    node = gpu_node(HOSTILE, cpus=4, accelerator_type=HOSTILE, custom={HOSTILE: 2}, labels=labels)
    capacity = cluster(node.model_copy(update={"address": HOSTILE}))

    drawn = picture(CpuPolicy(custom={HOSTILE: 1}), capacity)

    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} == {"svg", "style", "rect", "text"}
    assert any("</text></svg><script>alert(1)" in (each.text or "") for each in drawn.iter(f"{SVG}text"))


def test_a_plan_for_another_cluster_has_no_picture():
    plan = GpuPolicy().plan(cluster(gpu_node("a", gpus=4)))

    with pytest.raises(InvalidResourcesError, match="made for another"):
        plan.plot(cluster(gpu_node("a", gpus=2)))


def test_trials_for_which_no_single_node_has_room_are_not_drawn():
    plan = GpuPolicy(gpus=2).plan(cluster(gpu_node("a", gpus=2)))

    with pytest.raises(InvalidResourcesError, match="made for another"):
        plan.plot(cluster(gpu_node("a", gpus=1), gpu_node("b", gpus=1)))


def test_a_picture_is_saved_as_svg_and_replaces_a_file_only_if_it_is_told_to(tmp_path):
    drawn = GpuPolicy().plan(cluster(ONE)).plot(cluster(ONE))
    drawn.save(tmp_path / "plan.svg")

    assert (tmp_path / "plan.svg").read_text() == drawn.svg == drawn._repr_svg_()
    drawn.save(str(tmp_path / "plan.svg"), force=True)
    with pytest.raises(InvalidResourcesError, match=r"plan\.svg"):
        drawn.save(tmp_path / "plan.svg")
    with pytest.raises(InvalidResourcesError, match=r"ends in \.svg, not 'plan\.png'"):
        drawn.save(tmp_path / "plan.png")


@given(st.text(), st.floats(20, 400))
def test_a_text_is_cut_and_broken_to_fit(text, width):
    assert text_width(fitted(text, width), 12.5) <= width
    assert all(text_width(line, 12.5) <= width for line in wrapped(text, width))


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=5).map(" ".join))
def test_a_text_that_is_broken_keeps_its_words(text):
    assert "".join("".join(wrapped(text, 200, most=100)).split()) == text.replace(" ", "")


def luminance(color):
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("colors", "ground"), [(COLORS, "#f6f7f9"), (ON_DARK, "#1b2129")], ids=["light", "dark"])
def test_every_slot_stands_out_from_its_ground(colors, ground):
    for color in colors:
        low, high = sorted((luminance(color), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) > 3
