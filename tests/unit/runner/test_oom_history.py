"""Tests of the memory for configs that are similar to a config whose trial ran out of memory."""

import functools
import math

import numpy as np
import pytest

from tests.clusters import GIB
from tune_policies import InvalidResourcesError, OomRetryScheduler
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.retries.oom_history import OomRecord, floor_for, memory_settings, unknown_keys

CONFIG = {"batch_size": 64, "lr": 0.1, "kind": "cnn", "layers": [128, 64], "model": {"width": 512, "dropout": 0.5}}
RECORD = OomRecord(settings=memory_settings(CONFIG), floor=MemoryFloor(gpu_ticks=5000))


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        pytest.param({}, 0.5, id="the same config"),
        pytest.param({"lr": 3.0}, 0.5, id="another learning rate"),
        pytest.param({"batch_size": 65}, 0.5, id="a larger batch"),
        pytest.param({"batch_size": np.int64(64)}, 0.5, id="a NumPy integer"),
        pytest.param({"batch_size": 64.0}, 0.5, id="a whole number as a float"),
        pytest.param({"lr": 1.0}, 0.5, id="a learning rate that is a whole number"),
        pytest.param({"batch_size": 10**400}, 0.5, id="a number beyond all floats"),
        pytest.param({"batch_size": 32.0}, 0.25, id="a smaller batch as a float"),
        pytest.param({"model": {"width": 600, "dropout": 0.1}}, 0.5, id="a wider model"),
        pytest.param({"batch_size": 63}, 0.25, id="a smaller batch"),
        pytest.param({"model": {"width": 256, "dropout": 0.5}}, 0.25, id="a narrower model"),
        pytest.param({"layers": [128, 32]}, 0.25, id="a smaller layer"),
        pytest.param({"layers": [128, 64, 64]}, 0.25, id="one more layer is another config"),
        pytest.param({"kind": "mlp"}, 0.25, id="a value of another type"),
        pytest.param({"batch_size": True}, 0.25, id="a boolean is not a number"),
        pytest.param({"batch_size": None}, 0.25, id="None is not a number"),
        pytest.param({"seed": 1}, 0.25, id="a new key"),
    ],
)
def test_a_config_similar_to_a_config_that_ran_out_of_memory_gets_as_much_memory(changes, gpus):
    floor = floor_for(memory_settings({**CONFIG, **changes}), [RECORD])

    assert floor.apply_to([{"GPU": 0.25}]) == [{"GPU": gpus}]


def test_with_memory_keys_only_these_keys_are_compared():
    keys = ["batch_size", "model/width"]
    record = OomRecord(settings=memory_settings(CONFIG, keys), floor=MemoryFloor(gpu_ticks=5000))

    other = {"batch_size": 64, "seed": 3, "model": {"width": 512, "kind": "other"}}
    assert floor_for(memory_settings(other, keys), [record]).gpu_ticks == 5000
    assert floor_for(memory_settings({**other, "batch_size": 32}, keys), [record]).gpu_ticks == 0


def test_a_fraction_is_a_memory_setting_if_its_key_is_a_memory_key():
    assert memory_settings({"width": 1.5, "lr": 0.1}, ["width"]) == {"width": 1.5}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("width", "memory_keys must be a list of names, got 'width'. Use ['width']"),
        (7, "memory_keys must be a list of names, got 7"),
        (["width", 7], "memory_keys must be a list of names, got ['width', 7]"),
    ],
)
def test_memory_keys_must_be_a_list_of_names(keys, message):
    with pytest.raises(InvalidResourcesError) as caught:
        OomRetryScheduler(memory_keys=keys)

    assert str(caught.value) == message


def test_an_unknown_memory_key_is_returned_with_the_most_similar_key():
    keys = ["model/widht", "model", "model/width", "layers/0", "lr", "x", "seed"]

    unknown = unknown_keys(keys, [CONFIG, {"seed": 1}])

    assert unknown == {"model/widht": "; did you mean 'model/width'?", "x": ""}


def test_the_record_with_the_largest_amount_of_memory_applies():
    more = RECORD.model_copy(update={"floor": MemoryFloor(gpu_ticks=10000, memory_bytes=GIB)})

    assert floor_for(memory_settings(CONFIG), [more, RECORD]) == more.floor


def test_objects_in_a_config_are_compared_by_their_type_or_name():
    config = {"f": max, "partial": functools.partial(max), "object": np.zeros(3), "nan": math.nan, 1: "one"}

    settings = memory_settings(config)

    assert settings == {
        "f": "builtins.max",
        "partial": "functools.partial",
        "object": "numpy.ndarray",
        "1": "one",
    }
    assert OomRecord.from_json(OomRecord(settings=settings, floor=MemoryFloor()).to_json()).settings == settings


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIG, id="plain data"),
        pytest.param({"batch_size": 256.0}, id="a whole number as a float"),
        pytest.param({"n": 10**400}, id="a number beyond all floats"),
        pytest.param({"path": "\udc80", "\udc81": 1}, id="a path that is not UTF-8"),
    ],
)
def test_a_record_round_trips_through_json(config):
    record = OomRecord(settings=memory_settings(config), floor=MemoryFloor(gpu_ticks=5000))

    restored = OomRecord.from_json(record.to_json())

    assert restored == record
    assert restored.applies_to(memory_settings(config))
