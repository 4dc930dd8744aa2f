"""Tests of the line of Python that replaces the resource requests of a trainable."""

import pytest

import tune_policies
from tests.clusters import gpu_node
from tune_policies import ByConfigPolicy, ClusterCapacity
from tune_policies.policies.policy_of_requests import TrialRequest, policy_line, requests_differ

SAC, PPO = {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 0.25}
CLUSTER = ClusterCapacity.of(
    gpu_node("a", gpus=4, cpus=16, memory_gib=64, accelerator_type="A100", custom={"TPU": 4, "license": 2}),
)


def requests(*pairs):
    return [TrialRequest([bundle], config) for bundle, config in pairs]


def policy_of(line):
    return eval(line, {name: getattr(tune_policies, name) for name in tune_policies.__all__})


@pytest.mark.parametrize(
    ("bundles", "differ"),
    [
        ([[SAC], [PPO]], True),
        ([[SAC], [SAC]], False),
        ([[SAC], [{**SAC, "TPU": 0}]], False),
        ([[SAC, PPO], [PPO, SAC]], True),
        ([[SAC]], False),
        ([], False),
    ],
    ids=["different amounts", "equal amounts", "an amount of 0", "another order", "one trial", "no trial"],
)
def test_requests_differ_if_an_amount_differs(bundles, differ):
    assert requests_differ([TrialRequest(request) for request in bundles]) == differ


@pytest.mark.parametrize(
    ("bundle", "line"),
    [
        ({"CPU": 1}, "CpuPolicy(cpus=1)"),
        ({"CPU": 2.0, "GPU": 0.25}, "GpuPolicy(gpus=0.25, cpus=2)"),
        ({"GPU": 1}, "GpuPolicy(gpus=1)"),
        ({"CPU": 1, "memory": 4 * 2**30}, "CpuPolicy(cpus=1, memory='4GiB')"),
        ({"CPU": 1, "memory": 3 * 2**20}, "CpuPolicy(cpus=1, memory='3MiB')"),
        ({"CPU": 1, "memory": 5_000_000}, "CpuPolicy(cpus=1, memory=5000000)"),
        ({"CPU": 1, "GPU": 1, "accelerator_type:A100": 0.001}, "GpuPolicy(gpus=1, cpus=1, accelerator_type='A100')"),
        ({"CPU": 1, "TPU": 4}, "AcceleratorPolicy(resource='TPU', amount=4, cpus=1)"),
        ({"CPU": 1, "license": 1}, "CpuPolicy(cpus=1, custom={'license': 1})"),
    ],
    ids=str,
)
def test_one_request_becomes_one_policy_with_the_same_amounts(bundle, line):
    found = policy_line(requests((bundle, {}), (bundle, {})))

    assert found == line
    reserved = policy_of(found).plan(CLUSTER).common_slot.bundles()[0].resources
    assert {name: pytest.approx(amount) for name, amount in bundle.items()} == {name: reserved[name] for name in bundle}


def test_less_host_memory_than_a_policy_accepts_becomes_the_minimum():
    assert policy_line(requests(({"CPU": 1, "memory": 1_000}, {}))) == "CpuPolicy(cpus=1, memory='1MiB')"


@pytest.mark.parametrize(
    ("trials", "line"),
    [
        (
            requests((SAC, {"algo": "SAC", "lr": 0.1}), (PPO, {"algo": "PPO", "lr": 0.2}), (SAC, {"algo": "SAC"})),
            "ByConfigPolicy('algo', {'SAC': GpuPolicy(gpus=1, cpus=1), 'PPO': GpuPolicy(gpus=0.25, cpus=1)})",
        ),
        (
            requests((SAC, {"lr": 0.1, "model": {"name": "a"}}), (PPO, {"lr": 0.2, "model": {"name": "b"}})),
            "ByConfigPolicy('model/name', {'a': GpuPolicy(gpus=1, cpus=1), 'b': GpuPolicy(gpus=0.25, cpus=1)})",
        ),
        (
            requests(
                (SAC, {"width": 1024, "seed": 1}), (PPO, {"width": 64, "seed": 2}), (PPO, {"width": 64, "seed": 3})
            ),
            "ByConfigPolicy('width', {1024: GpuPolicy(gpus=1, cpus=1), 64: GpuPolicy(gpus=0.25, cpus=1)})",
        ),
        (
            requests((SAC, {"width": 1024}), (PPO, {"width": 64}), (PPO, {"width": 32})),
            "ByConfigPolicy(lambda config: ..., {'1 CPU, 1 GPU': GpuPolicy(gpus=1, cpus=1), "
            "'1 CPU, 0.25 GPU': GpuPolicy(gpus=0.25, cpus=1)})",
        ),
        (
            requests((SAC, {}), (PPO, {})),
            "ByConfigPolicy(lambda config: ..., {'1 CPU, 1 GPU': GpuPolicy(gpus=1, cpus=1), "
            "'1 CPU, 0.25 GPU': GpuPolicy(gpus=0.25, cpus=1)})",
        ),
    ],
    ids=["a name", "a nested name", "a number", "a range of numbers", "unknown configs"],
)
def test_different_requests_become_a_policy_by_config(trials, line):
    found = policy_line(trials)

    assert found == line
    assert isinstance(policy_of(found), ByConfigPolicy)


def test_the_policy_reserves_for_each_trial_what_the_trial_requested():
    trials = requests((SAC, {"algo": "SAC"}), (PPO, {"algo": "PPO"}), ({"CPU": 2}, {"algo": "A2C"}))

    plan = policy_of(policy_line(trials)).plan(CLUSTER)

    assert [plan.slot_for(trial.config).bundles()[0].resources for trial in trials] == [
        trial.bundles[0] for trial in trials
    ]


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [TrialRequest([SAC, SAC])],
        requests(({"CPU": 1, "GPU": 1, "TPU": 1}, {})),
        requests(({"TPU": 1, "license": 1}, {})),
        requests(({"license": 1}, {})),
        requests(({"CPU": 1, "accelerator_type:A100": 0.001}, {})),
        requests(({"CPU": 1, "node:10.0.0.5": 0.001}, {})),
        requests(*(({"CPU": cpus}, {"cpus": cpus}) for cpus in range(1, 10))),
    ],
    ids=[
        "no trial",
        "several bundles",
        "two kinds of devices",
        "a device and a license",
        "only a license",
        "a type",
        "an address",
        "nine requests",
    ],
)
def test_requests_that_no_policy_can_express_have_no_line(trials):
    assert policy_line(trials) is None
