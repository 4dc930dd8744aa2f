import pickle
from functools import cached_property

import pytest
from pydantic import PrivateAttr

from tests.clusters import gpu_node
from tune_policies import ClusterCapacity, InvalidResourcesError, NodeTypeCapacity, Resources
from tune_policies.values.value import Value


def test_a_capacity_has_one_node_for_each_argument():
    capacity = ClusterCapacity.of(Resources(cpus=8, gpus=4), gpu_node("a", gpus=2))

    assert [node.resources.gpus for node in capacity.nodes] == [4, 2]


def test_a_capacity_round_trips_through_json_and_pickle():
    more = NodeTypeCapacity(name="gpu", resources=Resources(gpus=4), max_nodes_to_add=3, labels={"zone": "a"})
    capacity = ClusterCapacity(
        nodes=(gpu_node("a", gpu_memory_gib=80, accelerator_type="A100", memory_gib=64),), node_types=(more,)
    )

    assert ClusterCapacity.from_json(capacity.to_json()) == capacity
    assert pickle.loads(pickle.dumps(capacity)) == capacity


def test_the_smallest_device_determines_the_gpu_memory_of_a_node():
    small, large = (gpu_node("a", gpu_memory_gib=gib).devices[0] for gib in (16, 80))
    node = gpu_node("a", gpus=2).model_copy(update={"devices": (large, small)})

    assert node.smallest_gpu_memory_bytes == 16 * 2**30


@pytest.mark.parametrize("devices", [None, ()], ids=["not read", "none found"])
def test_without_known_devices_the_gpu_memory_of_a_node_is_unknown(devices):
    node = gpu_node("a").model_copy(update={"devices": devices})

    assert node.smallest_gpu_memory_bytes is None


def test_more_gpus_than_devices_leave_gpu_memory_unknown():
    """With more GPUs than devices, Ray would assign one device to several trials."""
    node = gpu_node("a", gpus=1, gpu_memory_gib=80)

    assert node.model_copy(update={"resources": Resources(gpus=4)}).smallest_gpu_memory_bytes is None


class _Counting(Value):
    cpus: int
    _asked: list[int] = PrivateAttr(default_factory=list)

    @cached_property
    def twice(self) -> int:
        self._asked.append(self.cpus)
        return 2 * self.cpus


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_keeps_private_attributes_but_not_cached_properties(deep):
    value = _Counting(cpus=1)

    copied = value.model_copy(update={"cpus": value.twice + 1}, deep=deep)

    assert (copied.twice, copied._asked) == (6, [1, 3])


def test_generated_node_ids_do_not_collide_with_given_ids():
    capacity = ClusterCapacity.of(gpu_node("node-1"), Resources(cpus=1), Resources(cpus=2))

    assert [node.node_id for node in capacity.nodes] == ["node-1", "node-0", "node-2"]


def test_two_nodes_with_the_same_id_raise_an_error():
    with pytest.raises(InvalidResourcesError, match="'a' occurs more than once"):
        ClusterCapacity.of(gpu_node("a"), gpu_node("a"))


@pytest.mark.parametrize(
    ("text", "message"), [("{", "Invalid JSON"), ('{"node": []}', "unknown field 'node'"), ("[]", "ClusterCapacity")]
)
def test_json_in_another_format_raises_an_error(text, message):
    with pytest.raises(InvalidResourcesError, match=message):
        ClusterCapacity.from_json(text)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ('{"gpus": 1.5}', r"gpus above 1 must be whole, got 1\.5"),
        ('{"gpu": 1}', "unknown field 'gpu'.*Resources has cpus"),
    ],
)
def test_a_nested_mistake_is_reported_with_its_path(resources, message):
    with pytest.raises(InvalidResourcesError, match=rf"nodes\.0\.resources: {message}"):
        ClusterCapacity.from_json(f'{{"nodes": [{{"node_id": "a", "resources": {resources}}}]}}')


@pytest.mark.parametrize("amount", ["3", "3.0", "0.5", "0.33333"])
def test_an_amount_in_json_equals_the_same_amount_in_python(amount):
    loaded = Resources.from_json(f'{{"gpus": {amount}}}')

    assert loaded == Resources(gpus=float(amount))
    assert isinstance(loaded.gpus, float)
