"""What users see of the objects in an editor, a terminal or a notebook."""

import inspect
import json

import pytest
import yaml
from hypothesis import given

import tune_policies
from tests.decisions import a_decision
from tests.unit.strategies import by_config, with_kinds
from tune_policies import (
    AutoPolicy,
    BenchmarkedPolicy,
    ByConfigPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InvalidResourcesError,
    LearningPolicy,
    MixedPolicy,
    PolicyScheduler,
    ResourcePolicy,
    Resources,
    SelectingPolicy,
    plan_on_cluster,
    plan_when_ready,
    probe_cluster,
)
from tune_policies.files.plain_data import parse_data
from tune_policies.policies.policy import build_policy

NAMES = {name: getattr(tune_policies, name) for name in tune_policies.__all__}
POLICIES = [value for value in NAMES.values() if isinstance(value, type) and issubclass(value, ResourcePolicy)]
CLUSTER = ClusterCapacity.of(Resources(cpus=4, gpus=1))


@pytest.mark.parametrize(
    "text",
    [
        "CpuPolicy()",
        "CpuPolicy(cpus=2)",
        "CpuPolicy(cpus=0.5)",
        'GpuMemoryPolicy(gpu_memory="5GiB", cpus=1)',
        'CpuPolicy(memory="500MB")',
        "CpuPolicy(memory=1234567)",
        "GpuPolicy(gpus=0.5) | CpuPolicy(cpus=2)",
        "GpuPolicy() | GpuPolicy(gpus=0.5) | CpuPolicy()",
        "FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(), min_trials=2)",
        "MixedPolicy(GpuPolicy(), CpuPolicy(), speeds=(10.0, 1.0))",
        "CappedPolicy(GpuPolicy() | CpuPolicy(), 4)",
        "ReservingPolicy(GpuPolicy(), gpus=1)",
        "SelectingPolicy(CpuPolicy(), exclude_head=True)",
        'ByConfigPolicy("algo", {"SAC": GpuPolicy()}, default=CpuPolicy())',
        'SelectingPolicy(CpuPolicy(), exclude_nodes=("a",))',
        "LearningPolicy()",
        'Resources(cpus=2, memory_bytes="4GiB")',
    ],
)
def test_the_repr_of_a_value_is_what_a_user_types(text):
    assert repr(eval(text, NAMES)) == text


@given(with_kinds | by_config)
def test_the_repr_of_a_policy_creates_an_equal_policy(policy):
    assert eval(repr(policy), NAMES) == policy


@given(with_kinds | by_config)
def test_the_yaml_of_a_policy_is_a_policy_file(policy):
    assert build_policy(yaml.safe_load(policy.to_yaml())) == policy


@pytest.mark.parametrize("text", ["1e3", "0o17", "017", "on", "12", "a"])
@pytest.mark.parametrize("one_line", [True, False], ids=["in one line", "in several lines"])
def test_a_policy_file_keeps_texts_that_look_like_numbers(text, one_line):
    policy = SelectingPolicy(CpuPolicy(), label_selector={"rack": text})

    assert build_policy(parse_data(policy.to_yaml(one_line=one_line), "policy.yaml")) == policy


def test_the_yaml_of_a_policy_contains_the_fields_that_differ_from_their_defaults():
    policy = GpuMemoryPolicy(gpu_memory="5GiB") | CpuPolicy()

    assert policy.to_yaml() == (
        "kind: FirstFeasiblePolicy\npolicies:\n- kind: GpuMemoryPolicy\n  gpu_memory: 5GiB\n- kind: CpuPolicy\n"
    )


def test_the_text_of_a_policy_contains_its_class():
    assert str(GpuPolicy(gpus=0.5)) == "GpuPolicy(gpus=0.5)"


def test_the_text_of_a_plan_explains_it():
    plan = GpuPolicy().plan(CLUSTER)

    assert str(plan) == plan.explain()


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (GpuPolicy(gpus=0.5), ["GpuPolicy", "gpus", "0.5"]),
        (GpuPolicy(gpus=0.5).plan(CLUSTER).slots[0], ["TrialSlot", "2 CPUs, 0.5 GPU", "max_concurrent_trials"]),
        (Resources(cpus=2), ["Resources", "2 CPUs", "cpus"]),
        (CappedPolicy(CpuPolicy(), 3), ["CappedPolicy", "inner", "CpuPolicy()"]),
        (CpuPolicy(), ["CpuPolicy", "<td", "cpus", "1"]),
        (LearningPolicy(), ["LearningPolicy", "starts with AutoPolicy()", "learns from the first 4 trials"]),
    ],
    ids=["policy", "slot", "resources", "policy inside a policy", "only defaults", "a policy that has learned nothing"],
)
def test_a_notebook_shows_the_fields_that_differ_from_their_defaults_or_else_the_defaults(value, parts):
    html = value._repr_html_()

    assert [part for part in parts if part not in html] == []


@pytest.mark.parametrize(
    ("policy", "signature"),
    [
        (CpuPolicy, "(*, cpus: float = 1, custom: dict[str, float] = {}, exclude_gpu_nodes: bool = False, "),
        (GpuPolicy, "(*, gpus: float = 1, min_gpu_memory: int | str | None = None, cpus: float | None = None, "),
        (GpuMemoryPolicy, "(*, gpu_memory: int | str | None = None, "),
    ],
)
def test_the_signature_of_a_policy_begins_with_its_main_field_and_has_readable_types(policy, signature):
    assert str(inspect.signature(policy)).startswith(signature)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_signature_contains_an_implementation_detail(policy):
    text = str(inspect.signature(policy))

    assert [part for part in ("Annotated", "Checked", "0x", "json_schema", "factory") if part in text] == []


def test_the_names_of_a_policy_are_its_fields_and_the_methods_of_policies():
    names = [name for name in dir(CpuPolicy()) if not name.startswith("_")]

    assert sorted(names) == sorted(
        [
            *CpuPolicy.model_fields,
            *("choices", "depends_on_config", "from_dict", "from_json", "inner_policies", "model_copy", "plan"),
            *("requests_gpus", "to_json", "to_yaml"),
        ]
    )


def test_the_names_of_the_package_are_the_public_names_and_parts():
    assert set(dir(tune_policies)) == {*tune_policies.__all__, "kuberay", "testing", "trainers"}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: GpuPolicy().plan(32), "GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=32)))"),
        (lambda: GpuPolicy().plan(), "plan_on_cluster(GpuPolicy())"),
        (
            lambda: CpuPolicy(cpus=2).plan({"CPU": 4, "GPU": 1}),
            "CpuPolicy(cpus=2).plan(ClusterCapacity.of(Resources(cpus=4, gpus=1)))",
        ),
        (lambda: GpuPolicy().plan(Resources(cpus=4)), "GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=4)))"),
        (lambda: GpuPolicy().plan(None), "GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=8)))"),
        (lambda: MixedPolicy([GpuPolicy(), CpuPolicy()]), "MixedPolicy(GpuPolicy(), CpuPolicy())"),
        (lambda: FirstFeasiblePolicy((GpuPolicy(), CpuPolicy())), "FirstFeasiblePolicy(GpuPolicy(), CpuPolicy())"),
        (lambda: PolicyScheduler(AutoPolicy), "AutoPolicy(…)"),
        (lambda: PolicyScheduler(GpuPolicy | CpuPolicy), "Write GpuPolicy(…) | CpuPolicy(…) instead of the classes"),
        (lambda: GpuPolicy() or CpuPolicy(), "GpuPolicy() | CpuPolicy()"),
        (lambda: GpuPolicy() | CpuPolicy, "Write CpuPolicy(…) instead of the class"),
        (lambda: GpuPolicy() | AutoPolicy() | CpuPolicy, "Write CpuPolicy(…) instead of the class"),
        (lambda: CpuPolicy.plan(CLUSTER), "Write CpuPolicy(…).plan(capacity)"),
        (lambda: FirstFeasiblePolicy(GpuPolicy, CpuPolicy()), "policies.0: a policy must be a mapping"),
        (lambda: FirstFeasiblePolicy([GpuPolicy, CpuPolicy()]), "Write GpuPolicy(…) instead of the class"),
        (lambda: FirstFeasiblePolicy(policies=GpuPolicy()), "must be a list of policies, got GpuPolicy()"),
        (lambda: CappedPolicy(CpuPolicy, 4), "inner: a policy must be a mapping with a 'kind'"),
        (lambda: CappedPolicy(CpuPolicy, 4), "Write CpuPolicy(…) instead of the class"),
        (lambda: CappedPolicy(CpuPolicy(), 4, 5), "CappedPolicy(inner=CpuPolicy(), max_concurrent_trials=4)"),
        (lambda: GpuMemoryPolicy(6), "Write GpuMemoryPolicy(gpu_memory=…)"),
        (lambda: GpuMemoryPolicy("6GiB"), "Write GpuMemoryPolicy(gpu_memory='6GiB')"),
        (lambda: CpuPolicy(gpus=1), "unknown field 'gpus'. It is a field of GpuPolicy"),
        (lambda: GpuPolicy(gpu_memory="6GiB"), "It is a field of AutoPolicy, GpuMemoryPolicy, ReservingPolicy"),
        (lambda: GpuPolicy(num_samples=4), "It is an option of a run: run(train_fn, policy, num_samples=4)"),
        (lambda: plan_on_cluster(CpuPolicy), "Write CpuPolicy(…) instead of the class"),
        (lambda: plan_when_ready("policy.yaml"), "policy must be a policy, such as AutoPolicy(), got 'policy.yaml'"),
        (lambda: probe_cluster(timeout_s="3"), "timeout_s must be above 0 seconds, got '3'"),
        (lambda: probe_cluster(6379), "the Ray address must be a string such as 'auto', got 6379"),
        (lambda: setattr(CpuPolicy(), "cpus", 2), "model_copy(update={'cpus': 2})"),
        (lambda: ResourcePolicy.from_dict({"cpus": 2}), "a policy requires a 'kind', such as kind: CpuPolicy"),
        (lambda: ResourcePolicy.from_json("{}"), "a policy requires a 'kind', such as kind: CpuPolicy"),
        (lambda: ResourcePolicy.from_json({"kind": "CpuPolicy"}), "For a mapping, use from_dict"),
        (lambda: ByConfigPolicy(len, {1: CpuPolicy()}).to_yaml(), "Use the name of a value in the config"),
    ],
)
def test_a_mistake_gets_the_line_to_write(call, line):
    with pytest.raises(InvalidResourcesError) as caught:
        call()

    assert line in str(caught.value)


def test_the_error_about_an_unknown_field_does_not_report_policies_passed_by_position_as_missing():
    with pytest.raises(InvalidResourcesError) as caught:
        FirstFeasiblePolicy(GpuPolicy(), min_trial=2)

    assert str(caught.value).startswith("unknown field 'min_trial'; did you mean 'min_trials'?")


def test_a_time_that_was_read_from_json_is_shown_with_the_time_zone_of_python():
    policy = BenchmarkedPolicy(a_decision(), size="n")

    assert repr(ResourcePolicy.from_json(policy.to_json())) == repr(policy)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Resources(cpus=1), Resources(cpus=1.0, gpus=0.0)),
        (Resources(custom={"a": 1, "b": 2}), Resources(custom={"b": 2.0, "a": 1.0})),
        (CpuPolicy(cpus=1), CpuPolicy(cpus=1.0)),
    ],
)
def test_equal_values_have_the_same_json_and_hash(one, other):
    assert one == other
    assert (one.to_json(), hash(one)) == (other.to_json(), hash(other))


def test_a_name_in_a_part_of_the_package_gets_its_import():
    with pytest.raises(AttributeError, match=r"from tune_policies\.trainers import build_torch_trainer"):
        _ = tune_policies.build_torch_trainer


def test_a_saved_policy_with_all_fields_is_unchanged():
    """Files contain all fields, so that a later default does not change them."""
    assert json.loads(CpuPolicy(cpus=2).to_json())["exclude_gpu_nodes"] is False


def test_a_type_checker_refuses_resources_per_trial_in_run():
    parameter = inspect.signature(tune_policies.run).parameters["resources_per_trial"]

    assert parameter.annotation is None


def test_a_notebook_lists_the_policies_of_a_combined_policy_in_separate_lines():
    html = (GpuPolicy(gpus=0.5) | CpuPolicy(cpus=2))._repr_html_()

    assert "GpuPolicy(gpus=0.5)<br>CpuPolicy(cpus=2)" in html
