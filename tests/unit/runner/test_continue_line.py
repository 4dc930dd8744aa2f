"""The line that continues a run after Ctrl-C can be typed as it is."""

import pytest

from tests.advice import CPUS
from tune_policies import CpuPolicy, GpuMemoryPolicy
from tune_policies.trainers.start.continue_line import line_for_run, line_for_tuner


def train_fn(config):
    """Train nothing."""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        pytest.param(
            {},
            'run(train_fn, GpuMemoryPolicy(gpu_memory="5GiB"), name="mine", storage_path="/results", resume="AUTO")',
            id="the default name and storage path",
        ),
        pytest.param(
            {"name": "mine", "storage_path": "s3://bucket/a", "resume": True},
            'run(train_fn, GpuMemoryPolicy(gpu_memory="5GiB"), name="mine", storage_path="s3://bucket/a", '
            'resume="AUTO")',
            id="given ones",
        ),
        pytest.param(
            {"config": {}},
            'run(train_fn, GpuMemoryPolicy(gpu_memory="5GiB"), name="mine", storage_path="/results", resume="AUTO", '
            "…), where … stands for the other arguments, which stay the same",
            id="other arguments",
        ),
    ],
)
def test_the_line_contains_the_name_and_the_storage_path(arguments, line):
    assert line_for_run(train_fn, GpuMemoryPolicy(gpu_memory="5GiB"), arguments, "/results/mine") == line


def test_a_policy_in_the_scheduler_and_a_long_plan_are_not_repeated():
    plan = CpuPolicy().plan(CPUS)
    lines = [line_for_run("PPO", policy, {}, "/results/mine") for policy in (None, plan)]

    assert lines == [
        'run("PPO", name="mine", storage_path="/results", resume="AUTO")',
        'run("PPO", policy, name="mine", storage_path="/results", resume="AUTO")',
    ]


def test_the_line_of_a_tuner_has_the_path_and_the_trainable():
    assert line_for_tuner(train_fn, "/results/mine") == 'tune.Tuner.restore("/results/mine", train_fn).fit()'
