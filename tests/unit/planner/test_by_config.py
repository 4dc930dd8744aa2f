"""Tests of policies that are chosen by a value in the config or by a function of the config."""

import pickle

import pytest
import ray.cloudpickle
import yaml

from tests.clusters import gpu_node, nodes
from tests.decisions import a_decision
from tune_policies import (
    AutoPolicy,
    AutoscalingPolicy,
    BenchmarkedPolicy,
    ByConfigPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    SelectingPolicy,
    TrialPlan,
    load_policy,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.policies.policy import build_policy

CLUSTER = nodes((4, 2))
WHOLE, QUARTER, CPU = GpuPolicy(cpus=1), GpuPolicy(gpus=0.25, cpus=0.25), CpuPolicy()
BY_ALGORITHM = ByConfigPolicy("algo", {"SAC": WHOLE, "PPO": QUARTER}, default=CPU)
WITHOUT_DEFAULT = ByConfigPolicy("algo", {"SAC": WHOLE, "PPO": QUARTER})
PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"batch": 1}, total_bytes=2**30),))


def gpus(plan, **config):
    return plan.slot_for(config).worker.gpus


def slots_of(plan):
    return {name: plan.by_config.slots[at] for name, at in plan.by_config.slot_of.items()}


# Choice


def test_each_value_gets_the_slot_of_its_policy_and_other_values_get_the_default():
    plan = BY_ALGORITHM.plan(CLUSTER)

    assert [gpus(plan, algo=name) for name in ("SAC", "PPO", "A2C")] == [1, 0.25, 0]


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("model/algo", {"model": {"algo": "SAC"}}),
        ("model/algo", {"model/algo": "SAC"}),
        (lambda config: config["model"]["algo"], {"model": {"algo": "SAC"}}),
    ],
    ids=["in a nested mapping", "in a flat mapping", "by a function"],
)
def test_the_value_may_be_nested_or_come_from_a_function(key, config):
    plan = ByConfigPolicy(key, {"SAC": WHOLE, "PPO": QUARTER}).plan(CLUSTER)

    assert plan.slot_for(config).worker.gpus == 1


class Algorithm:
    """A class that a config contains."""


@pytest.mark.parametrize(
    ("key", "same"),
    [(16, 16.0), (16, "16"), (0.5, 0.5), (True, True), (None, None), (Algorithm, Algorithm), ("16", 16)],
    ids=str,
)
def test_a_value_may_be_a_number_a_boolean_none_or_a_class(key, same):
    plan = ByConfigPolicy("value", {key: WHOLE, "other": CPU}).plan(CLUSTER)

    assert gpus(plan, value=same) == 1


def test_numpy_numbers_count_as_numbers():
    numpy = pytest.importorskip("numpy")
    plan = ByConfigPolicy("width", {64: CPU, 1024: WHOLE}).plan(CLUSTER)

    assert gpus(plan, width=numpy.int64(1024)) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"algo": "SACC"},
            "one trial needs a policy for algo='SACC', but the policies are only for 'PPO', 'SAC': short of a policy "
            "for this config. Did you mean 'SAC'? Add a policy for this value, or set default.",
        ),
        (
            {"alog": "SAC"},
            "one trial needs a value 'algo' in its config, but the config has only 'alog': short of a policy for this "
            "config. Did you mean 'alog'? Change the key of the policy, add the value to the search space, or set "
            "default.",
        ),
        ({}, "but the config is empty"),
        ({"algo": ["SAC"]}, "one trial needs a policy for algo=['SAC']"),
        ({"algo": {"name": "SAC"}}, "one trial needs a policy for algo={'name': 'SAC'}"),
    ],
    ids=["a misspelled value", "a misspelled key", "an empty config", "a list", "a mapping"],
)
def test_a_config_without_a_policy_is_an_error_with_the_known_values_and_the_fix(config, message):
    plan = WITHOUT_DEFAULT.plan(CLUSTER)

    with pytest.raises(InfeasibleRequestError) as caught:
        plan.slot_for(config)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda config: config["algo"],
            "one trial needs the result of the function <lambda>, but it raised KeyError for the config {'width': 1}: "
            "'algo': short of a policy for this config. Change the function so that it returns a value for each "
            "config.",
        ),
        (lambda _: "SACC", "one trial needs a policy for 'SACC', which the function <lambda> returned, but the"),
        (lambda _: WHOLE, "which the function <lambda> returned, but the policies are only for 'PPO', 'SAC'"),
    ],
    ids=["it fails", "its result has no policy", "its result is a policy"],
)
def test_an_error_of_the_function_names_the_function_and_the_fix(function, message):
    plan = ByConfigPolicy(function, {"SAC": WHOLE, "PPO": QUARTER}).plan(CLUSTER)

    with pytest.raises(InfeasibleRequestError) as caught:
        plan.slot_for({"width": 1})

    assert message in str(caught.value)


def test_a_config_without_the_value_gets_the_default_and_is_reported():
    plan = BY_ALGORITHM.plan(CLUSTER)

    assert gpus(plan, alog="SAC") == 0
    assert (
        plan.by_config.why_unknown({"alog": "SAC"}) == "the config has no value 'algo', so the default policy applies"
    )
    assert plan.by_config.why_unknown({"algo": "A2C"}) is None


def test_a_train_run_gets_the_plan_of_its_config():
    policy = ByConfigPolicy("size", {"s": CpuPolicy(num_workers=2), "l": GpuPolicy(cpus=1, num_workers=2)})

    plan = policy.plan(CLUSTER).for_config({"size": "l"})

    assert (plan.by_config, plan.num_workers, plan.resources_per_worker) == (None, 2, {"CPU": 1, "GPU": 1})


# The plan


def test_the_plan_explains_which_trials_get_what_and_how_many_run_at_once():
    text = BY_ALGORITHM.plan(CLUSTER).explain()

    assert text.splitlines()[:7] == [
        "2 to 10 trials at once, depending on their configs, limited by GPU",
        "  at most 8 with 0.25 CPU, 0.25 GPU",
        "  at most 2 with 1 CPU, 1 GPU",
        "  at most 4 with 1 CPU",
        "  - trials with algo 'PPO' get 0.25 CPU, 0.25 GPU",
        "  - trials with algo 'SAC' get 1 CPU, 1 GPU",
        "  - all other trials get 1 CPU",
    ]


def test_values_and_the_default_with_equal_policies_have_one_slot():
    plan = ByConfigPolicy("algo", {"SAC": WHOLE, "TD3": WHOLE, "PPO": CPU}, default=CPU).plan(CLUSTER)

    assert [str(slot) for slot in plan.by_config.slots] == ["1 CPU", "1 CPU, 1 GPU"]
    assert plan.reasons[:2] == (
        "trials with algo 'PPO' and all other trials get 1 CPU",
        "trials with algo 'SAC', 'TD3' get 1 CPU, 1 GPU",
    )


def test_the_order_of_the_policies_has_no_effect():
    one = ByConfigPolicy("algo", {"SAC": WHOLE, "PPO": CPU})
    other = ByConfigPolicy("algo", {"PPO": CPU, "SAC": WHOLE})

    assert one.to_json() == other.to_json()
    assert one.plan(CLUSTER) == other.plan(CLUSTER)


def test_without_a_scheduler_every_trial_gets_the_slot_with_the_most_devices():
    plan = BY_ALGORITHM.plan(CLUSTER)

    assert plan.resources_per_trial == {"cpu": 1, "gpu": 1}


def test_an_infeasible_policy_is_an_error_before_the_run_that_names_its_values():
    with pytest.raises(
        InfeasibleRequestError, match=r"one trial needs 0\.25 CPU, 0\.25 GPU for 'PPO', but the largest"
    ):
        BY_ALGORITHM.plan(nodes((4, 0)))


def test_trials_keep_their_minimum_number_of_workers_if_they_compete():
    policy = ByConfigPolicy("size", {"s": CpuPolicy(num_workers=(1, 4)), "l": CpuPolicy(cpus=2, num_workers=(1, 2))})

    assert [slot.max_workers for slot in policy.plan(CLUSTER).by_config.slots] == [None, None]


@pytest.mark.parametrize(
    ("wrap", "at_once"),
    [
        (lambda policy: CappedPolicy(policy, 3), (2, 3)),
        (lambda policy: ReservingPolicy(policy, gpus=1), (1, 7)),
        (lambda policy: SelectingPolicy(policy, label_selector={"zone": "!eu"}), (2, 10)),
        (lambda policy: policy | CPU, (2, 10)),
        (AutoscalingPolicy, (2, 10)),
    ],
    ids=["capped", "reserving", "selecting", "first feasible", "autoscaling"],
)
def test_other_policies_can_wrap_it(wrap, at_once):
    plan = wrap(BY_ALGORITHM).plan(CLUSTER)

    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == at_once
    assert [gpus(plan, algo=name) for name in ("SAC", "PPO", "A2C")] == [1, 0.25, 0]


# Concurrency


def test_the_cap_of_a_policy_for_a_value_limits_trials_on_nodes_of_several_sizes():
    a100 = {"gpus": 2, "accelerator_type": "A100"}
    capacity = ClusterCapacity.of(gpu_node("a", cpus=16, **a100), gpu_node("b", cpus=4, **a100))

    plan = ByConfigPolicy("k", {"x": CappedPolicy(GpuPolicy(), 3)}).plan(capacity)

    assert (plan.max_concurrent_trials, most_beside(plan, {}, "x")) == (3, 3)


def most_beside(plan, running, name):
    """Return how many trials with this value may start while ``running`` trials of other values run."""
    slots = slots_of(plan)
    taken = [slots[other] for other, number in running.items() for _ in range(number)]
    number = 0
    while plan.by_config.has_room(slots[name], [*taken, *[slots[name]] * number]):
        number += 1
    return number


@pytest.mark.parametrize(
    ("running", "name", "number"),
    [
        ({}, "SAC", 2),
        ({}, "PPO", 8),
        ({"SAC": 1}, "PPO", 4),
        ({"SAC": 2}, "PPO", 0),
        ({"PPO": 1}, "SAC", 1),
        ({"PPO": 4}, "SAC", 1),
        ({"PPO": 5}, "SAC", 0),
    ],
    ids=str,
)
def test_a_gpu_that_trials_share_has_no_room_for_a_trial_with_a_whole_gpu(running, name, number):
    assert most_beside(WITHOUT_DEFAULT.plan(CLUSTER), running, name) == number


def test_trials_of_all_kinds_share_the_cpus():
    policy = ByConfigPolicy("algo", {"SAC": GpuPolicy(cpus=1), "A2C": CpuPolicy(cpus=1)})
    plan = policy.plan(CLUSTER)

    assert [most_beside(plan, {"SAC": number}, "A2C") for number in (0, 1, 2)] == [4, 3, 2]
    assert plan.max_concurrent_trials == 4


def test_more_trials_run_in_total_than_of_any_kind_alone():
    policy = ByConfigPolicy("algo", {"SAC": GpuPolicy(cpus=1), "A2C": CpuPolicy(cpus=2)})

    assert policy.plan(CLUSTER).max_concurrent_trials == 3


HALF, THIRD = GpuPolicy(gpus=0.5, cpus=0.1), GpuPolicy(gpus=1 / 3, cpus=0.1)
TYPES = ClusterCapacity.of(gpu_node("a", accelerator_type="A100"), gpu_node("b", accelerator_type="T4"))


@pytest.mark.parametrize(
    ("half", "third", "cluster", "number"),
    [
        (HALF, THIRD, CLUSTER, 0),
        (HALF, HALF, CLUSTER, 4),
        (HALF.model_copy(update={"accelerator_type": "A100"}), THIRD, TYPES, 0),
        (
            HALF.model_copy(update={"accelerator_type": "A100"}),
            THIRD.model_copy(update={"accelerator_type": "T4"}),
            TYPES,
            3,
        ),
    ],
    ids=["on the same GPUs", "equal fractions", "on possibly the same GPUs", "on different types"],
)
def test_trials_with_different_fractions_run_at_the_same_time_only_on_different_nodes(half, third, cluster, number):
    plan = ByConfigPolicy("algo", {"half": half, "third": third}).plan(cluster)

    expected = number if half != third else number - 1  # equal slots are counted together
    assert most_beside(plan, {"half": 1}, "third") == expected


@pytest.mark.parametrize(
    ("one", "other", "may_start"),
    [
        ("eu", "us", True),
        ("eu", "eu", False),
        ("eu", "!eu", True),
        ("in(eu,us)", "!eu", False),
        ("!eu", "!us", False),
        ("in(eu,us)", "in(us,asia)", False),
    ],
)
def test_label_selectors_separate_fractions(one, other, may_start):
    cluster = ClusterCapacity.of(
        *(gpu_node(zone, labels={"zone": zone}) for zone in ("eu", "us", "asia", "africa")),
    )
    policies = [SelectingPolicy(inner, label_selector={"zone": zone}) for inner, zone in ((HALF, one), (THIRD, other))]
    plan = ByConfigPolicy("algo", dict(zip(("half", "third"), policies, strict=True))).plan(cluster)
    slots = slots_of(plan)

    assert plan.by_config.has_room(slots["third"], [slots["half"]]) == may_start
    assert may_start != any("do not run at the same time" in reason for reason in plan.reasons)


def test_train_workers_and_their_drivers_count():
    cluster = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=4, memory_gib=1))
    policy = ByConfigPolicy(
        "size", {"s": CpuPolicy(memory="100MiB"), "l": CpuPolicy(cpus=1, memory="400MiB", num_workers=2)}
    )
    plan = policy.plan(cluster)

    assert [most_beside(plan, {"l": number}, "s") for number in (0, 1)] == [4, 2]


# A value


def test_the_policy_and_its_plan_survive_json_and_pickle():
    plan = BY_ALGORITHM.plan(CLUSTER)

    assert build_policy(yaml.safe_load(BY_ALGORITHM.to_json())) == BY_ALGORITHM
    assert pickle.loads(pickle.dumps(BY_ALGORITHM)) == BY_ALGORITHM
    assert TrialPlan.from_json(plan.to_json()) == pickle.loads(pickle.dumps(plan)) == plan


def test_a_file_maps_values_to_policies(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(
        "kind: ByConfigPolicy\nkey: width\npolicies:\n  64: {kind: CpuPolicy}\n  1024: {kind: GpuPolicy, cpus: 1}\n"
        "  true: {kind: GpuPolicy}\ndefault: {kind: CpuPolicy, cpus: 2}\n"
    )

    policies = {64: CPU, 1024: WHOLE, True: GpuPolicy()}
    assert load_policy(path) == ByConfigPolicy("width", policies, default=CpuPolicy(cpus=2))


def test_a_policy_in_a_file_may_refer_to_another_file(tmp_path):
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    path = tmp_path / "policy.yaml"
    path.write_text(
        "kind: ByConfigPolicy\nkey: algo\npolicies: {inner: {kind: GpuMemoryPolicy, profile: profile.json}}\n"
    )

    with pytest.raises(InvalidResourcesError, match="a GpuMemoryPolicy with a profile does not"):
        load_policy(path)


def test_a_lambda_survives_cloudpickle():
    policy = ByConfigPolicy(lambda config: config["width"] > 512, {True: WHOLE, False: CPU})

    again = ray.cloudpickle.loads(ray.cloudpickle.dumps(policy))

    plan = again.plan(CLUSTER)
    assert [gpus(plan, width=width) for width in (64, 1024)] == [0, 1]


def test_the_json_of_a_policy_with_a_function_names_the_function_and_cannot_be_loaded():
    def by_width(config):
        return config["width"] > 512

    policy = ByConfigPolicy(by_width, {True: WHOLE, False: CPU})
    plan = policy.plan(CLUSTER)

    assert "by_width" in plan.to_json()
    for load in (lambda: ByConfigPolicy.from_json(policy.to_json()), lambda: TrialPlan.from_json(plan.to_json())):
        with pytest.raises(InvalidResourcesError, match="key was the function 'by_width', and a file cannot"):
            load()


# Refusals

ONE = {"SAC": WHOLE}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ByConfigPolicy("", ONE), "key must be the name of a value in the config, such as 'algo'"),
        (lambda: ByConfigPolicy(3, ONE), "or a function of the config, got 3"),
        (lambda: ByConfigPolicy("algo", {}), "policies must map at least one value in the config to a policy"),
        (lambda: ByConfigPolicy("algo", [WHOLE]), "such as {'SAC': GpuPolicy()}, got a list"),
        (lambda: ByConfigPolicy("algo", {(1, 2): WHOLE}), "policies: (1, 2) is not a single value. Use a function"),
        (lambda: ByConfigPolicy("algo", {1: WHOLE, "1": CPU}), "policies: two values have the name '1'"),
        (lambda: ByConfigPolicy("algo", {"SAC": 3}), "policies.SAC: a policy must be a mapping with a 'kind'"),
        (
            lambda: build_policy(
                {"kind": "ByConfigPolicy", "key": "a", "policies": {"b": {"kind": "CpuPolicy", "c": 1}}}
            ),
            "policies.b: unknown field 'c'",
        ),
        (lambda: ByConfigPolicy("algo"), "the required field 'policies' of ByConfigPolicy is missing"),
        (
            lambda: ByConfigPolicy("algo", {"SAC": CappedPolicy(BY_ALGORITHM, 2)}),
            "policies and default must be policies that give every trial the same resources, but a ByConfigPolicy does",
        ),
        (lambda: ByConfigPolicy("a", ONE, BenchmarkedPolicy(a_decision())), "but a BenchmarkedPolicy does not"),
        (lambda: ByConfigPolicy("a", ONE, GpuMemoryPolicy(profile=PROFILE)), "but a GpuMemoryPolicy with a profile"),
        (lambda: ByConfigPolicy("a", ONE, AutoPolicy(profile=PROFILE)), "but an AutoPolicy with a profile"),
        (lambda: ByConfigPolicy("a", ONE, MixedPolicy(WHOLE, CPU)), "but a MixedPolicy does not"),
        (
            lambda: ByConfigPolicy("a", ONE, AutoscalingPolicy(CPU)),
            "policies and default cannot contain an AutoscalingPolicy. Wrap the ByConfigPolicy in the Autoscaling",
        ),
        (
            lambda: MixedPolicy(CappedPolicy(BY_ALGORITHM, 2)),
            "MixedPolicy cannot contain a ByConfigPolicy, because each slot of a MixedPolicy must fit any config",
        ),
        (lambda: MixedPolicy(BenchmarkedPolicy(a_decision())), "MixedPolicy cannot contain a BenchmarkedPolicy"),
        (lambda: BenchmarkedPolicy(a_decision(), gpu=BY_ALGORITHM), "but a ByConfigPolicy does not"),
    ],
    ids=range(18),
)
def test_a_policy_that_cannot_work_is_rejected_at_construction(build, message):
    with pytest.raises(InvalidResourcesError) as caught:
        build()

    assert message in str(caught.value)
