"""What a trial that ran out of memory gets next, and which configs need as much."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import GIB, gpu_node
from tune_policies import InfeasibleRequestError
from tune_policies.oom import OutOfMemory
from tune_policies.resources import TICKS, to_ticks
from tune_policies.schedulers.escalation import (
    Lesson,
    MemoryFloor,
    floor_for,
    next_floor,
    next_share,
    traits_of,
    what_next,
)

ACCELERATOR = OutOfMemory(kind="accelerator")
HOST = OutOfMemory(kind="host")
NODES = (gpu_node("a", gpus=4, cpus=8, memory_gib=64),)


def after(bundle, out_of_memory=ACCELERATOR, *, growth=2.0, max_gpus=1.0, nodes=NODES):
    floor = next_floor([bundle], out_of_memory, growth=growth, max_gpus=max_gpus, nodes=nodes)
    return floor.lift([bundle])[0]


@pytest.mark.parametrize(
    ("gpus", "growth", "max_gpus", "expected"),
    [
        pytest.param(0.25, 2.0, 1.0, 0.5, id="a quarter becomes a half"),
        pytest.param(0.5, 2.0, 1.0, 1, id="a half becomes a whole"),
        pytest.param(0.2, 2.0, 1.0, 0.5, id="two fifths are rounded up to a half"),
        pytest.param(0.25, 1.1, 1.0, 0.3333, id="the least growth is the next part"),
        pytest.param(0.75, 2.0, 4.0, 1, id="a share becomes a whole GPU first"),
        pytest.param(1, 2.0, 4.0, 2, id="a whole becomes two where two are allowed"),
        pytest.param(1, 1.1, 4.0, 2, id="several GPUs are whole"),
        pytest.param(3, 2.0, 4.0, 4, id="growth stops at the most"),
        pytest.param(0.25, 4.0, 0.5, 0.5, id="a part of a GPU may be the most"),
        pytest.param(0.25, 4.0, 0.6, 0.5, id="the most is rounded down to a part"),
    ],
)
def test_a_share_grows_in_equal_parts(gpus, growth, max_gpus, expected):
    assert after({"CPU": 2, "GPU": gpus}, growth=growth, max_gpus=max_gpus) == {"CPU": 2, "GPU": expected}


@given(
    share=st.integers(1, TICKS), growth=st.floats(1.001, 20), devices=st.integers(1, 16), most=st.sampled_from([1, 16])
)
def test_a_share_always_grows_until_it_is_the_most(share, growth, devices, most):
    grown = next_share(share, growth=growth, max_gpus=most, most_devices=devices)

    assert grown is None if share == most * TICKS else share < grown <= most * TICKS
    assert grown is None or grown >= min(TICKS, math.floor(share * growth))


def test_everything_else_of_a_bundle_stays_as_it_is():
    others = {"CPU": 0.5, "memory": GIB, "accelerator_type:A100": 0.001}
    nodes = (gpu_node("a", gpus=1, cpus=8, memory_gib=8, accelerator_type="A100"),)

    assert after({**others, "GPU": 0.25}, nodes=nodes) == {**others, "GPU": 0.5}


def test_every_bundle_that_holds_a_gpu_grows():
    bundles = [{"CPU": 1}, {"GPU": 0.25}, {"GPU": 0.25, "CPU": 1}]

    floor = next_floor(bundles, ACCELERATOR, growth=2, max_gpus=1, nodes=NODES)

    assert floor.lift(bundles) == [{"CPU": 1}, {"GPU": 0.5}, {"GPU": 0.5, "CPU": 1}]


@pytest.mark.parametrize(
    ("bundle", "max_gpus", "message"),
    [
        pytest.param({"GPU": 1}, 1.0, "than 1 GPU gave it, but max_gpus=1: short of GPU memory. Raise max_gpus"),
        pytest.param({"GPU": 0.5}, 0.5, "than 0.5 GPU gave it, but max_gpus=0.5"),
        pytest.param({"GPU": 4}, 8.0, "no node has more than 4 GPU"),
        pytest.param({"CPU": 1}, 1.0, "it holds no GPU of its own"),
        pytest.param({"GPU": 1, "CPU": 9}, 4.0, "no node has 2 GPU beside the rest of what it reserves"),
    ],
)
def test_where_there_is_no_more_it_says_so(bundle, max_gpus, message):
    with pytest.raises(InfeasibleRequestError, match=message):
        after(bundle, max_gpus=max_gpus)


@pytest.mark.parametrize(
    ("bundle", "out_of_memory", "expected"),
    [
        pytest.param({"memory": 4 * GIB}, HOST, 8 * GIB, id="from what it reserved"),
        pytest.param({"memory": 40 * GIB}, HOST, 64 * GIB, id="up to what the largest node has"),
        pytest.param({}, OutOfMemory(kind="host", requested_bytes=3 * GIB), 6 * GIB, id="from what it asked for"),
        pytest.param({}, HOST, 4 * GIB, id="from 2 GiB where nothing is known"),
    ],
)
def test_host_memory_grows_in_bytes(bundle, out_of_memory, expected):
    assert after({"CPU": 1, **bundle}, out_of_memory) == {"CPU": 1, "memory": expected}


def test_host_memory_ends_at_the_largest_node():
    with pytest.raises(InfeasibleRequestError, match=r"more host memory than the 64 GiB .* largest node has 64 GiB"):
        after({"memory": 64 * GIB}, HOST)


CONFIG = {"batch_size": 64, "lr": 0.1, "kind": "cnn", "layers": [128, 64], "model": {"width": 512, "dropout": 0.5}}
LESSON = Lesson(traits=traits_of(CONFIG), floor=MemoryFloor(gpu_ticks=5000))


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        pytest.param({}, 0.5, id="the same config"),
        pytest.param({"lr": 3.0}, 0.5, id="another learning rate"),
        pytest.param({"batch_size": 65}, 0.5, id="a larger batch"),
        pytest.param({"batch_size": np.int64(64)}, 0.5, id="a whole number of NumPy"),
        pytest.param({"model": {"width": 600, "dropout": 0.1}}, 0.5, id="a wider model"),
        pytest.param({"batch_size": 63}, 0.25, id="a smaller batch"),
        pytest.param({"model": {"width": 256, "dropout": 0.5}}, 0.25, id="a narrower model"),
        pytest.param({"layers": [128, 32]}, 0.25, id="a smaller layer"),
        pytest.param({"layers": [128, 64, 64]}, 0.25, id="one more layer is another config"),
        pytest.param({"kind": "mlp"}, 0.25, id="another kind"),
        pytest.param({"batch_size": True}, 0.25, id="a truth value is no number"),
        pytest.param({"batch_size": None}, 0.25, id="none is no number"),
        pytest.param({"seed": 1}, 0.25, id="a key that was not there"),
    ],
)
def test_a_config_like_one_that_ran_out_needs_as_much(changes, gpus):
    floor = floor_for(traits_of({**CONFIG, **changes}), [LESSON])

    assert floor.lift([{"GPU": 0.25}]) == [{"GPU": gpus}]


def test_only_the_keys_that_are_named_count():
    keys = ["batch_size", "model/width"]
    lesson = Lesson(traits=traits_of(CONFIG, keys), floor=MemoryFloor(gpu_ticks=5000))

    other = {"batch_size": 64, "seed": 3, "model": {"width": 512, "kind": "other"}}
    assert floor_for(traits_of(other, keys), [lesson]).gpu_ticks == 5000
    assert floor_for(traits_of({**other, "batch_size": 32}, keys), [lesson]).gpu_ticks == 0


def test_a_fraction_counts_where_its_key_is_named():
    assert traits_of({"width": 1.5, "lr": 0.1}, ["width"]) == {"width": 1.5}


def test_of_several_lessons_the_largest_holds():
    more = LESSON.model_copy(update={"floor": MemoryFloor(gpu_ticks=10000, memory_bytes=GIB)})

    assert floor_for(traits_of(CONFIG), [more, LESSON]) == more.floor


def test_what_is_no_plain_data_counts_by_its_name():
    config = {"f": max, "partial": functools.partial(max), "object": np.zeros(3), "nan": math.nan, 1: "one"}

    traits = traits_of(config)

    assert traits == {
        "f": "builtins.max",
        "partial": "functools.partial",
        "object": "numpy.ndarray",
        "1": "one",
    }
    assert Lesson.from_json(Lesson(traits=traits, floor=MemoryFloor()).to_json()).traits == traits


def test_a_lesson_survives_json():
    assert Lesson.from_json(LESSON.to_json()) == LESSON


@pytest.mark.parametrize(
    ("out_of_memory", "num_same_share", "expected"),
    [
        (OutOfMemory(kind="none"), 0, "leave"),
        (ACCELERATOR, 0, "more"),
        (HOST, 0, "more"),
        (OutOfMemory(kind="accelerator", cause="own_limit"), 0, "more"),
        (OutOfMemory(kind="accelerator", cause="neighbour"), 1, "same"),
        (OutOfMemory(kind="accelerator", cause="neighbour"), 2, "more"),
    ],
)
def test_memory_that_a_neighbour_took_brings_a_larger_share_only_when_the_same_does_not_help(
    out_of_memory, num_same_share, expected
):
    assert what_next(out_of_memory, num_same_share) == expected


def test_a_share_that_was_asked_for_in_between_is_left_alone_where_it_is_enough():
    assert MemoryFloor(gpu_ticks=to_ticks(0.5)).lift([{"GPU": 0.7}]) == [{"GPU": 0.7}]
