"""Tests of policies in YAML and JSON: valid and invalid files, and the names of classes."""

import importlib
import json
import subprocess
import sys

import pytest
from ray import cloudpickle

from tests.decisions import a_decision
from tune_policies import (
    BenchmarkedPolicy,
    CappedPolicy,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    ResourcePolicy,
    SelectingPolicy,
    load_policy,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.policies.policy import build_policy
from tune_policies.policies.policy_kinds import policies_by_kind

PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"profile": "wide"}, total_bytes="2GiB"),))
BY_PROFILE = GpuMemoryPolicy(profile=PROFILE, headroom=0.2)
MIXED = MixedPolicy(GpuPolicy(gpus=0.25), CpuPolicy(cpus=2), speeds=(10, 1))
NAMED = "{kind: GpuMemoryPolicy, profile: measured.json, headroom: 0.2}"


@pytest.fixture
def path(tmp_path):
    """Return the path of a policy file in a folder with a profile and a decision."""
    (tmp_path / "measured.json").write_text(PROFILE.to_json())
    (tmp_path / "decision.json").write_text(a_decision().to_json())
    return tmp_path / "policy.yaml"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        pytest.param('{\n\t"kind": "CpuPolicy",\n\t"cpus": 1e1\n}', CpuPolicy(cpus=10), id="JSON that is not YAML"),
        pytest.param(
            "kind: MixedPolicy\nspeeds: [10, 1]\npolicies:\n"
            "  - {kind: GpuPolicy, gpus: 0.25}\n  - {kind: CpuPolicy, cpus: 2}\n",
            MIXED,
            id="YAML",
        ),
        pytest.param(MIXED.to_json(), MIXED, id="the output of the policy"),
        pytest.param(BY_PROFILE.to_json(), BY_PROFILE, id="an inline profile"),
        pytest.param(NAMED, BY_PROFILE, id="a profile in a file"),
        pytest.param(
            f"{{kind: FirstFeasiblePolicy, policies: [{NAMED}]}}",
            FirstFeasiblePolicy(BY_PROFILE),
            id="a profile in a nested policy",
        ),
        pytest.param(
            "{kind: BenchmarkedPolicy, decision: decision.json, size: width, gpu: {kind: GpuPolicy, gpus: 0.5}}",
            BenchmarkedPolicy(a_decision(), size="width", gpu=GpuPolicy(gpus=0.5)),
            id="a decision in a file",
        ),
        pytest.param(
            "{kind: SelectingPolicy, inner: {kind: CpuPolicy}, label_selector: {profile: fast}}",
            SelectingPolicy(CpuPolicy(), {"profile": "fast"}),
            id="a label named profile",
        ),
    ],
)
def test_a_policy_is_loaded_from_its_file(path, text, policy):
    path.write_text(text)

    assert load_policy(path) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- GpuPolicy", "a policy must be a mapping with a 'kind', got a list"),
        ("GpuPolicy", "a policy must be a mapping with a 'kind', got a string"),
        ("", "a policy must be a mapping with a 'kind', got nothing"),
        ("gpus: 1", "a policy requires a 'kind', such as kind: CpuPolicy (known: AcceleratorPolicy, "),
        ("kind: GpuPolcy", "unknown kind 'GpuPolcy'; did you mean 'GpuPolicy'?"),
        ("kind: 7", "unknown kind 7"),
        ("kind: [CpuPolicy]", "unknown kind ['CpuPolicy']"),
        ("kind: CappedPolicy\ninner: {kind: {a: 1}}\nmax_concurrent_trials: 1", "inner: unknown kind {'a': 1}"),
        ("kind: FirstFeasiblePolicy\npolicies: GpuPolicy", "policies must be a list of policies, got 'GpuPolicy'"),
        ("kind: GpuPolicy\ngpu: 1", "unknown field 'gpu'; did you mean 'gpus'? (GpuPolicy has gpus,"),
        ("kind: GpuPolicy\n1: 1", "unknown field '1'"),
        ("kind: GpuMemoryPolicy\ngpu_memory: 6 gigs", "gpu_memory must be a number of bytes above 0"),
        ("kind: CappedPolicy\ninner: {kind: GpuPolicy, gpus: 1.5}\nmax_concurrent_trials: 1", "inner: gpus above 1"),
        ("kind: [", "line 1: the text is not YAML"),
        ("kind: CpuPolicy\ncpus: 2024-13-45", "cpus must be a number"),
        ("kind: CpuPolicy\ncpus: 1\ncpus: 5", "line 3: duplicate key 'cpus' (first in line 2)"),
        ("[" * 3000, "line 1: the text is neither JSON (recursion limit exceeded"),
        ("&a {kind: CappedPolicy, max_concurrent_trials: 1, inner: *a}", "line 1: the alias *a contains itself"),
        ("kind: CpuPolicy\ncpus: 1" + "0" * 400, "cpus must be a finite number up to 1e+11, got 1000000"),
        (
            "!!python/object/apply:os.system ['true']",
            "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is not",
        ),
        (b"\xff\xfe\x00kind", "line 1: the byte 0xff is not valid in UTF-8 text"),
        ("{kind: GpuPolicy, profile: measured.json}", "unknown field 'profile'"),
        ("{kind: GpuMemoryPolicy, profile: none.json}", "cannot read the profile file"),
        ("{kind: GpuMemoryPolicy, profile: decision.json}", "decision.json is not a profile: "),
        ("{kind: BenchmarkedPolicy, decision: measured.json}", "measured.json is not a decision: "),
    ],
)
def test_an_invalid_file_is_rejected_with_its_name_and_the_rule(path, text, message):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(InvalidResourcesError) as caught:
        load_policy(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["none.yaml", "a\0b"], ids=["missing", "impossible"])
def test_a_file_that_cannot_be_read_raises_an_error(tmp_path, name):
    with pytest.raises(InvalidResourcesError, match="cannot read the policy file"):
        load_policy(tmp_path / name)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CpuPolicy.from_dict({"kind": "GpuPolicy"}), "the data describes a GpuPolicy, not a CpuPolicy"),
        (lambda: CpuPolicy.from_json("{"), "CpuPolicy: the text is not JSON"),
        (lambda: build_policy({"kind": "CpuPolicy", "flavour": 1}), r"unknown field 'flavour' \(CpuPolicy has cpus, "),
    ],
    ids=["another kind", "not JSON", "an unknown field"],
)
def test_invalid_data_of_a_policy_is_rejected(build, message):
    with pytest.raises(InvalidResourcesError, match=message):
        build()


def nested(depth):
    policy = {"kind": "CpuPolicy"}
    for _ in range(depth - 1):
        policy = {"kind": "CappedPolicy", "max_concurrent_trials": 3, "inner": policy}
    return policy


def test_policies_may_be_nested_32_deep():
    policy = build_policy(nested(32))

    assert type(policy).from_json(policy.to_json()) == policy


@pytest.mark.parametrize("depth", [33, 900])
@pytest.mark.parametrize(
    "build",
    [
        lambda data: build_policy(data),
        lambda data: CappedPolicy.from_json(json.dumps(data)),
        lambda data: CappedPolicy(build_policy(nested(32)), 2),
    ],
    ids=["data", "JSON", "Python"],
)
def test_policies_nested_more_than_32_deep_are_rejected(build, depth):
    with pytest.raises(InvalidResourcesError, match="policies are nested more than 32 levels deep"):
        build(nested(depth))


def test_mistakes_at_every_depth_are_reported_together():
    """The second validation, for the error message, must not double the number of validations at each level."""
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
def test_no_class_can_have_the_name_of_another_policy(name, base):
    defined("PolicyOfALibrary", ResourcePolicy)
    before = policies_by_kind()

    with pytest.raises(InvalidResourcesError, match=rf"another_library\.{name} has the same name as the policy"):
        defined(name, base, "another_library")
    assert policies_by_kind() == before
    assert GpuPolicy() | CpuPolicy() == FirstFeasiblePolicy(GpuPolicy(), CpuPolicy())


def test_the_name_of_a_builtin_policy_is_reserved_even_if_the_policy_is_not_imported():
    program = (
        "from tune_policies import ResourcePolicy\nclass MixedPolicy(ResourcePolicy):\n    def plan(self, c): ...\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "__main__.MixedPolicy has the same name as the policy tune_policies.policies.mixed.MixedPolicy" in ended.stderr
    )


def test_an_abstract_class_is_not_a_kind_of_policy_and_may_have_any_name():
    type("CpuPolicy", (ResourcePolicy,), {"__module__": "a_library"})

    assert policies_by_kind()["CpuPolicy"] is CpuPolicy


def test_a_class_of_a_reloaded_module_replaces_the_previous_class(tmp_path, monkeypatch):
    (tmp_path / "reloaded_policies.py").write_text(
        "from tune_policies import CpuPolicy\nclass ReloadedPolicy(CpuPolicy): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_policies")

    importlib.reload(module)
    assert policies_by_kind()["ReloadedPolicy"] is module.ReloadedPolicy


def test_a_class_sent_by_cloudpickle_may_also_be_defined_in_the_other_process(tmp_path):
    cls = defined("PickledPolicy", ResourcePolicy, "__main__", "make.<locals>.PickledPolicy")
    (tmp_path / "policy").write_bytes(cloudpickle.dumps(cls()))
    program = f"""
import pickle
from tune_policies.policies.policy import ResourcePolicy, build_policy
from tune_policies.policies.policy_kinds import policies_by_kind
policy = pickle.load(open({str(tmp_path / "policy")!r}, "rb"))
assert type(build_policy({{"kind": "PickledPolicy"}})) is type(policy)
def make():
    class PickledPolicy(ResourcePolicy):
        def plan(self, capacity): ...
    return PickledPolicy
assert make() is policies_by_kind()["PickledPolicy"]
"""

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
