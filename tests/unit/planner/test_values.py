"""Tests that policies, plans and their parts never change, and that equal ones have one hash and one JSON."""

import copy
import json
import pickle

import pytest
from hypothesis import given

from tests.decisions import a_decision
from tests.unit.planner.test_policy_conformance import CAPACITY, POLICIES, PROFILE
from tests.unit.strategies import clusters, plan_or_skip, with_kinds
from tune_policies import (
    BenchmarkedPolicy,
    CappedPolicy,
    CpuPolicy,
    EvenSplitPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    ResourcePolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.files.yaml_documents import read_documents
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.policies.policy import build_policy
from tune_policies.values.field_types import FrozenDict
from tune_policies.values.value import Value


def parts_of(value):
    """Yield everything inside a value: its fields and public cached properties, and the parts of these."""
    yield value
    if isinstance(value, Value):
        inside = [each for name, each in value.__dict__.items() if not name.startswith("_")]
    elif isinstance(value, dict):
        inside = [*value.values()]
    else:
        inside = value if isinstance(value, tuple | list | set | frozenset) else ()
    for part in inside:
        yield from parts_of(part)


def changeable(value):
    return [part for part in parts_of(value) if isinstance(part, list | set) or type(part) is dict]


def with_other_numbers(data):
    """Return plain data with whole floats as integers, integers of amounts as floats, and mappings in another order."""
    if isinstance(data, dict):
        return {name: with_other_numbers(each) for name, each in reversed(data.items())}
    if isinstance(data, list):
        return [with_other_numbers(each) for each in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


@given(with_kinds)
def test_nothing_inside_a_policy_can_be_changed(policy):
    assert changeable(policy) == []


@given(with_kinds, clusters())
def test_nothing_inside_a_plan_or_a_capacity_can_be_changed(policy, capacity):
    plan = plan_or_skip(policy, capacity)

    assert changeable((plan, capacity.nodes)) == []


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_no_policy_and_no_plan_contains_a_part_that_can_be_changed(policy):
    try:
        values = (policy, policy.plan(CAPACITY))
    except InfeasibleRequestError:
        values = (policy,)

    assert changeable(values) == []


@given(with_kinds)
def test_equal_policies_have_one_hash_and_one_json(policy):
    others = [
        build_policy(with_other_numbers(json.loads(policy.to_json()))),
        build_policy(read_documents(policy.to_json(), "policy.yaml")[0].data),
        pickle.loads(pickle.dumps(policy)),
        copy.deepcopy(policy),
        policy.model_copy(update={name: getattr(policy, name) for name in type(policy).model_fields}),
    ]

    assert {(other, hash(other), other.to_json()) for other in others} == {(policy, hash(policy), policy.to_json())}


@given(with_kinds, clusters())
def test_equal_plans_have_one_hash(policy, capacity):
    plan = plan_or_skip(policy, capacity)
    again = type(plan).from_json(plan.to_json())

    assert (again, hash(again), hash(again.slots)) == (plan, hash(plan), hash(plan.slots))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(GpuPolicy(), GpuPolicy(gpus=1.0), id="default and argument"),
        pytest.param(GpuPolicy(cpus=1), GpuPolicy(cpus=1.0), id="integer and float"),
        pytest.param(CpuPolicy(), CpuPolicy(cpus=2).model_copy(update={"cpus": 1}), id="copied with an integer"),
        pytest.param(EvenSplitPolicy(num_trials=3), EvenSplitPolicy(num_trials=3, min_gpus=0.0), id="zero"),
        pytest.param(
            CpuPolicy(custom={"a": 1, "b": 2}), CpuPolicy(custom={"b": 2.0, "a": 1.0}), id="order of custom resources"
        ),
        pytest.param(
            SelectingPolicy(CpuPolicy(), {"a": "1", "b": "2"}),
            SelectingPolicy(CpuPolicy(), {"b": "2", "a": "1"}),
            id="order of labels",
        ),
        pytest.param(
            BenchmarkedPolicy(a_decision()), BenchmarkedPolicy(a_decision(), max_age_days=90.0), id="age of a decision"
        ),
        pytest.param(
            *(
                GpuMemoryPolicy(profile=GpuMemoryProfile(measurements=PROFILE.measurements, versions=versions))
                for versions in ({"ray": "2.60.0", "torch": "2.13"}, {"torch": "2.13", "ray": "2.60.0"})
            ),
            id="order of versions",
        ),
    ],
)
def test_two_ways_to_write_a_policy_have_one_hash_and_one_json(one, other):
    assert (one, hash(one), one.to_json()) == (other, hash(other), other.to_json())


def test_equal_resources_have_one_hash():
    assert hash(Resources(cpus=2, custom={"a": 1, "b": 2})) == hash(Resources(cpus=2.0, custom={"b": 2.0, "a": 1}))


def test_the_formulas_of_a_profile_cannot_be_changed():
    assert changeable(PROFILE.fits) == []


class NestedPolicy(ResourcePolicy):
    """A user's policy with nested mappings."""

    rules: dict[str, dict[str, float]]
    more: tuple[dict[str, str], ...] = ({"a": "b"},)

    def plan(self, capacity):
        return CpuPolicy().plan(capacity)


@pytest.mark.parametrize(
    "change",
    [
        lambda mapping: mapping.__setitem__("a", 5),
        lambda mapping: mapping.__delitem__("a"),
        lambda mapping: mapping.__ior__({"a": 5}),
        lambda mapping: mapping.update(a=5),
        lambda mapping: mapping.setdefault("b", 5),
        lambda mapping: mapping.pop("a"),
        lambda mapping: mapping.popitem(),
        lambda mapping: mapping.clear(),
    ],
)
def test_no_method_of_dict_changes_a_mapping_of_a_policy(change):
    policy = CpuPolicy(custom={"a": 1})

    with pytest.raises(TypeError, match="cannot be changed"):
        change(policy.custom)


@pytest.mark.parametrize(
    "policy",
    [
        NestedPolicy(rules={"a": {"b": 1}}),
        NestedPolicy(rules={}).model_copy(update={"rules": {"a": {"b": 1}}}),
        NestedPolicy.model_validate({"rules": {"a": {"b": 1}}}),
        CappedPolicy(NestedPolicy(rules={"a": {"b": 1}}), 2).inner,
        copy.deepcopy(NestedPolicy(rules={"a": {"b": 1}})),
        pickle.loads(pickle.dumps(NestedPolicy(rules={"a": {"b": 1}}))),
    ],
    ids=["created", "changed copy", "validated", "inner policy", "deep copy", "unpickled"],
)
def test_nested_mappings_of_a_users_policy_are_frozen(policy):
    assert changeable(policy) == []


def test_a_mapping_that_was_passed_to_a_value_can_still_be_changed():
    custom = {"a": 1.0}
    policy = CpuPolicy(custom=custom)

    custom["a"] = 5

    assert policy.custom == {"a": 1}


def test_a_changed_copy_of_a_value_has_frozen_mappings():
    assert changeable(Resources().model_copy(update={"custom": {"a": {"b": 1}}})) == []


def test_a_changed_copy_of_a_policy_is_validated():
    with pytest.raises(InvalidResourcesError, match="cpus must be 0 or more"):
        CpuPolicy().model_copy(update={"cpus": -1})


def test_lists_and_mappings_in_a_measured_config_are_frozen():
    config = {"layers": [1, {"width": 2}], "net": {"kind": "mlp"}}
    measurement = GpuMemoryMeasurement(config=config, total_bytes=1)

    assert (changeable(measurement), measurement.config) == (
        [],
        {"layers": (1, {"width": 2}), "net/kind": "mlp"},
    )


def test_a_frozen_mapping_is_a_dict_for_json_and_for_equality():
    mapping = FrozenDict(a=1)

    assert (json.dumps(mapping), mapping == {"a": 1}, mapping | {"b": 2}) == ('{"a": 1}', True, {"a": 1, "b": 2})
