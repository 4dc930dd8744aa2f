"""The commands that need no Ray, as a user types them: status, stdout and stderr."""

import json
import subprocess
import sys

import pytest

from tests.clusters import nodes


def run(*arguments):
    command = [sys.executable, "-m", "tune_policies", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def capacity(tmp_path):
    path = tmp_path / "capacity.json"
    path.write_text(nodes((16, 2)).to_json())
    return path


@pytest.fixture
def policy(tmp_path):
    def write(text):
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return path

    return write


def test_plan_prints_the_plan_on_stdout(capacity, policy):
    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), "--capacity", capacity, "--trials", 9)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("4 trials at once, limited by GPU\n  each trial: 4 CPU, 0.5 GPU\n")
    assert done.stdout.endswith("9 trials run in 3 waves\n")


def test_plan_prints_json_for_machines(capacity, policy):
    done = run("plan", policy("kind: CpuPolicy\n"), "--capacity", capacity, "--json")

    assert json.loads(done.stdout)["slots"][0]["max_concurrent_trials"] == 16


def test_an_infeasible_wish_ends_with_1_and_nothing_on_stdout(capacity, policy):
    done = run("plan", policy("kind: GpuPolicy\ngpus: 4\n"), "--capacity", capacity)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: one trial needs 4 GPU, but the largest node offers 16 CPU, 2 GPU")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "Missing argument"),
        (["plan", "POLICY", "--capacity", "/nowhere.json"], "cannot read the capacity file /nowhere.json"),
        (["plan", "POLICY", "--capacity", "POLICY"], "is not what `tune-policies probe --json` writes"),
        (["plan", "/nowhere.yaml", "--capacity", "CAPACITY"], "cannot read the policy file /nowhere.yaml"),
        (["plan", "POLICY", "--capacity", "CAPACITY", "--trials", "-1"], "greater than or equal to 0"),
        (["prob"], "No such command 'prob'"),
    ],
    ids=["no policy", "no capacity file", "not a capacity", "no policy file", "negative trials", "no such command"],
)
def test_wrong_usage_ends_with_2_and_a_message(capacity, policy, arguments, message):
    paths = {"POLICY": policy("kind: CpuPolicy\n"), "CAPACITY": capacity}

    done = run(*(paths.get(argument, argument) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_wrong_policy_ends_with_2_and_the_way_out(capacity, policy):
    done = run("plan", policy("kind: GpuPolcy\n"), "--capacity", capacity)

    assert done.returncode == 2
    assert "unknown kind 'GpuPolcy'; did you mean 'GpuPolicy'?" in done.stderr
