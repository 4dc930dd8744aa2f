import importlib
import json
import subprocess
import sys

import pytest
import yaml
from ray import cloudpickle

from tests.decisions import a_decision
from tune_policies import (
    BenchmarkedPolicy,
    CappedPolicy,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryMeasurement,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InvalidResourcesError,
    ResourcePolicy,
    SelectingPolicy,
    load_policy,
)
from tune_policies.policies.policy import build_policy, policies_by_kind

POLICY = FirstFeasiblePolicy(GpuMemoryPolicy(gpu_memory="6GiB"), CappedPolicy(CpuPolicy(cpus=2), 8))
DATA = {
    "kind": "FirstFeasiblePolicy",
    "policies": [
        {"kind": "GpuMemoryPolicy", "gpu_memory": "6GiB"},
        {"kind": "CappedPolicy", "inner": {"kind": "CpuPolicy", "cpus": 2}, "max_concurrent_trials": 8},
    ],
}


def test_json_that_yaml_would_misread_is_read_as_json(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{\n\t"kind": "CpuPolicy",\n\t"cpus": 1e1\n}')

    assert load_policy(path) == CpuPolicy(cpus=10)


def test_a_path_that_cannot_be_is_an_error_with_its_name():
    with pytest.raises(InvalidResourcesError, match="cannot read the policy file a"):
        load_policy("a\0b")


@pytest.mark.parametrize("write", [yaml.safe_dump, json.dumps, lambda _: POLICY.to_json()], ids=["yaml", "json", "own"])
def test_the_same_policy_comes_from_yaml_and_json(tmp_path, write):
    path = tmp_path / "policy.yaml"
    path.write_text(write(DATA))

    assert load_policy(path) == POLICY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- GpuPolicy", "a policy must be a mapping with a 'kind', got a list"),
        ("GpuPolicy", "a policy must be a mapping with a 'kind', got a text"),
        ("", "a policy must be a mapping with a 'kind', got nothing"),
        (
            "gpus: 1",
            "a policy needs a 'kind' (known: AcceleratorPolicy, ",
        ),
        ("kind: GpuPolcy", "unknown kind 'GpuPolcy'; did you mean 'GpuPolicy'?"),
        ("kind: 7", "unknown kind 7"),
        ("kind: GpuPolicy\ngpu: 1", "unknown field 'gpu'; did you mean 'gpus'? (GpuPolicy has gpus, cpus"),
        ("kind: GpuPolicy\n1: 1", "unknown field '1'"),
        ("kind: GpuMemoryPolicy\ngpu_memory: 6 gigs", "gpu_memory must be above 0: a number of bytes"),
        ("kind: CappedPolicy\ninner: {kind: GpuPolicy, gpus: 1.5}\nmax_concurrent_trials: 1", "inner: gpus above 1"),
        ("kind: [", "line 1: not YAML"),
        ("kind: CpuPolicy\ncpus: 2024-13-45", "cpus must be a number"),
        ("kind: CpuPolicy\ncpus: 1\ncpus: 5", "line 3: the key 'cpus' comes twice, first in line 2"),
        ("[" * 3000, "line 1: neither JSON (recursion limit exceeded"),
        (
            "&a {kind: CappedPolicy, max_concurrent_trials: 1, inner: *a}",
            "line 1: the alias *a contains itself",
        ),
        ("kind: CpuPolicy\ncpus: 1" + "0" * 400, "cpus must be a finite number from 0 to 1e+11, got 1000000"),
        (
            "!!python/object/apply:os.system ['true']",
            "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is not",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_rule(tmp_path, text, message):
    path = tmp_path / "policy.yaml"
    path.write_text(text)

    with pytest.raises(InvalidResourcesError) as caught:
        load_policy(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff\xfe\x00kind", "line 1: the byte 0xff is not UTF-8 text")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, message):
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=message):
        load_policy(path)


PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"batch": 8}, total_bytes="2GiB"),))


@pytest.mark.parametrize("nested", [False, True])
def test_a_profile_is_named_by_its_file_beside_the_policy(tmp_path, nested):
    (tmp_path / "measured.json").write_text(PROFILE.to_json())
    text = "{kind: GpuMemoryPolicy, profile: measured.json, headroom: 0.2}"
    path = tmp_path / "policy.yaml"
    path.write_text(f"kind: FirstFeasiblePolicy\npolicies: [{text}]" if nested else text)

    policy = GpuMemoryPolicy(profile=PROFILE, headroom=0.2)
    assert load_policy(path) == (FirstFeasiblePolicy(policy) if nested else policy)


def test_a_profile_may_be_written_out(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(GpuMemoryPolicy(profile=PROFILE).to_json())

    assert load_policy(path) == GpuMemoryPolicy(profile=PROFILE)


def test_a_decision_is_named_by_its_file_and_its_policies_stay_policies(tmp_path):
    (tmp_path / "decision.json").write_text(a_decision().to_json())
    path = tmp_path / "policy.yaml"
    path.write_text(
        "{kind: BenchmarkedPolicy, decision: decision.json, size: width, gpu: {kind: GpuPolicy, gpus: 0.5}}"
    )

    assert load_policy(path) == BenchmarkedPolicy(a_decision(), size="width", gpu=GpuPolicy(gpus=0.5))


def test_a_file_that_is_no_decision_is_named(tmp_path):
    (tmp_path / "decision.json").write_text('{"workloads": []}')
    path = tmp_path / "policy.yaml"
    path.write_text("{kind: BenchmarkedPolicy, decision: decision.json}")

    with pytest.raises(InvalidResourcesError, match=r"decision\.json is not a decision: Decision needs 'measured_at'"):
        load_policy(path)


def test_a_profile_that_is_not_there_or_is_none_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("{kind: GpuMemoryPolicy, profile: measured.json}")

    with pytest.raises(InvalidResourcesError, match=r"cannot read the profile file .*measured\.json"):
        load_policy(path)
    (tmp_path / "measured.json").write_text("{}")
    with pytest.raises(
        InvalidResourcesError, match=r"measured\.json is not a profile: GpuMemoryProfile needs 'measurements'"
    ):
        load_policy(path)


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        pytest.param(
            {"kind": "SelectingPolicy", "inner": {"kind": "CpuPolicy"}, "label_selector": {"profile": "fast"}},
            SelectingPolicy(CpuPolicy(), {"profile": "fast"}),
            id="a label",
        ),
        pytest.param(
            {
                "kind": "GpuMemoryPolicy",
                "profile": {"measurements": [{"config": {"profile": "wide"}, "total_bytes": 1}]},
            },
            GpuMemoryPolicy(
                profile=GpuMemoryProfile(
                    measurements=(GpuMemoryMeasurement(config={"profile": "wide"}, total_bytes=1),)
                )
            ),
            id="a config",
        ),
    ],
)
def test_what_else_is_named_profile_is_no_file(tmp_path, data, policy):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(data))

    assert load_policy(path) == policy


def test_a_policy_that_takes_no_profile_says_so(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"kind": "GpuPolicy", "profile": "measured.json"}')

    with pytest.raises(InvalidResourcesError, match="unknown field 'profile'"):
        load_policy(path)


def nested(depth):
    policy = {"kind": "CpuPolicy"}
    for _ in range(depth - 1):
        policy = {"kind": "CappedPolicy", "max_concurrent_trials": 3, "inner": policy}
    return policy


def test_policies_may_be_inside_one_another_32_deep():
    policy = build_policy(nested(32))

    assert type(policy).from_json(policy.to_json()) == policy
    with pytest.raises(InvalidResourcesError, match="more than 32 policies are inside one another"):
        CappedPolicy(policy, 2)


@pytest.mark.parametrize("depth", [33, 100, 300, 900])
def test_policies_that_are_nested_deeper_are_refused(depth):
    with pytest.raises(InvalidResourcesError, match="more than 32 policies are inside one another"):
        build_policy(nested(depth))
    with pytest.raises(InvalidResourcesError, match="more than 32 policies are inside one another"):
        CappedPolicy.from_json(json.dumps(nested(depth)))


def test_a_mistake_at_every_depth_is_told_at_once():
    """Each wrong policy is checked again to say what is wrong; that must not double with each depth."""
    policy = nested(32)
    inner = policy
    while "inner" in inner:
        inner = inner["inner"]
        inner["max_concurrent_trials"] = -1

    with pytest.raises(InvalidResourcesError, match="inner: "):
        build_policy(policy)


def defined(name, base, module="a_library", qualname=None):
    return type(name, (base,), {"__module__": module, "__qualname__": qualname or name, "plan": CpuPolicy.plan})


@pytest.mark.parametrize("base", [ResourcePolicy, CpuPolicy, GpuPolicy])
@pytest.mark.parametrize("name", ["GpuPolicy", "FirstFeasiblePolicy", "PolicyOfALibrary"])
def test_no_class_takes_the_name_of_another_policy(name, base):
    defined("PolicyOfALibrary", ResourcePolicy)
    before = policies_by_kind()

    with pytest.raises(InvalidResourcesError, match=rf"another_library\.{name} has the name of another policy"):
        defined(name, base, "another_library")
    assert policies_by_kind() == before
    assert GpuPolicy() | CpuPolicy() == FirstFeasiblePolicy(GpuPolicy(), CpuPolicy())


def test_a_builtin_policy_that_the_program_has_not_imported_keeps_its_name():
    program = (
        "from tune_policies import ResourcePolicy\nclass MixedPolicy(ResourcePolicy):\n    def plan(self, c): ...\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "__main__.MixedPolicy has the name of another policy, tune_policies.policies.mixed.MixedPolicy" in ended.stderr
    )


def test_an_abstract_class_is_no_kind_and_may_have_any_name():
    type("CpuPolicy", (ResourcePolicy,), {"__module__": "a_library"})

    assert policies_by_kind()["CpuPolicy"] is CpuPolicy


def test_a_class_that_is_defined_again_replaces_itself():
    defined("CellPolicy", ResourcePolicy, "__main__")
    second = defined("CellPolicy", ResourcePolicy, "__main__")

    assert policies_by_kind()["CellPolicy"] is second


def test_a_class_of_a_reloaded_module_replaces_itself(tmp_path, monkeypatch):
    (tmp_path / "reloaded_policies.py").write_text(
        "from tune_policies import CpuPolicy\nclass ReloadedPolicy(CpuPolicy): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_policies")

    importlib.reload(module)
    assert policies_by_kind()["ReloadedPolicy"] is module.ReloadedPolicy


def test_a_class_that_cloudpickle_brings_to_another_process_may_be_defined_there_too(tmp_path):
    cls = defined("PickledPolicy", ResourcePolicy, "__main__", "make.<locals>.PickledPolicy")
    (tmp_path / "policy").write_bytes(cloudpickle.dumps(cls()))
    program = f"""
import pickle
from tune_policies.policies.policy import ResourcePolicy, build_policy, policies_by_kind
policy = pickle.load(open({str(tmp_path / "policy")!r}, "rb"))
assert type(build_policy({{"kind": "PickledPolicy"}})) is type(policy)
def make():
    class PickledPolicy(ResourcePolicy):
        def plan(self, capacity): ...
    return PickledPolicy
assert make() is policies_by_kind()["PickledPolicy"]
"""

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
