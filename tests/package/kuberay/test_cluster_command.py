"""Tests of the command ``kuberay design``: the file on stdout, the reasons on stderr, the exit status and errors."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.decisions import a_decision
from tune_policies.cli.main import main

POLICY = """
kind: MixedPolicy
policies:
  - {kind: GpuPolicy, gpus: 0.25, cpus: 1}
  - {kind: CpuPolicy, cpus: 2}
"""
NODES = """
head: {name: control, cpus: 2, memory: 8GiB, price_per_hour: 0.1}
nodes:
  - {name: l4, cpus: 4, memory: 16GiB, gpus: 1, accelerator_type: L4, price_per_hour: 0.70}
  - {name: cpu, cpus: 16, memory: 64GiB, price_per_hour: 0.60}
"""


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "decision.json").write_text(a_decision("L4").to_json())

    def run(*arguments, policy="policy.yaml"):
        monkeypatch.setattr(
            sys, "argv", ["tune-policies", "kuberay", "design", policy, "--num-trials", "64", *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *capsys.readouterr())

    return run


def test_json_contains_the_design_and_its_file(run):
    found = json.loads(run("--nodes", "nodes.yaml", "--json", "-o", "tune.yaml").stdout)

    assert found["num_trials"] == 64
    assert found["file"] == Path("tune.yaml").read_text()


def test_the_manifest_is_on_stdout_and_the_reasons_are_on_stderr(run):
    done = run("--nodes", "nodes.yaml", "--name", "mine", "--ray-version", "2.58.0", "--image", "my/ray:1")

    manifest = yaml.safe_load(done.stdout)
    groups = {each["groupName"]: each["maxReplicas"] for each in manifest["spec"]["workerGroupSpecs"]}
    assert done.status == 0
    assert (manifest["kind"], manifest["metadata"]["name"], manifest["spec"]["rayVersion"]) == (
        "RayCluster",
        "mine",
        "2.58.0",
    )
    assert groups == {"cpu": 4, "l4": 8}
    assert "my/ray:1" in done.stdout
    assert done.stderr.startswith("room for 64 of 64 trials at once")
    assert "at most 8.10 USD an hour, " in done.stderr


def test_a_cluster_yaml_is_written(run):
    assert "available_node_types" in yaml.safe_load(run("--nodes", "nodes.yaml", "--format", "cluster-yaml").stdout)


def test_a_job_manifest_contains_the_namespace_and_the_runtime_environment(run, tmp_path):
    (tmp_path / "env.yaml").write_text("{working_dir: 's3://bucket/code.zip', pip: [tune-policies]}")

    done = run("--job", "python tune.py", "--runtime-env", "env.yaml", "--namespace", "ml")

    manifest = yaml.safe_load(done.stdout)
    assert manifest["metadata"]["namespace"] == "ml"
    assert yaml.safe_load(manifest["spec"]["runtimeEnvYAML"])["working_dir"] == "s3://bucket/code.zip"


def test_options_set_the_minimum_number_of_nodes_the_gpus_and_the_platform(run):
    done = run(
        "--nodes", "nodes.yaml", "--min-nodes", "l4=2", "--min-nodes", "cpu=1", "--num-gpus", "--platform", "eks"
    )

    cpu, l4 = yaml.safe_load(done.stdout)["spec"]["workerGroupSpecs"]
    assert (cpu["minReplicas"], l4["minReplicas"], l4["rayStartParams"]["num-gpus"]) == (1, 2, "1")
    assert l4["template"]["spec"]["nodeSelector"] == {"k8s.amazonaws.com/accelerator": "nvidia-l4"}
    assert "room for 64 of 64 trials at once, 3 worker nodes at first" in done.stderr


def test_a_decision_places_all_trials_on_the_cheapest_nodes(run):
    done = run("--nodes", "nodes.yaml", "--decision", "decision.json", "--size", "16")

    groups = yaml.safe_load(done.stdout)["spec"]["workerGroupSpecs"]
    assert [each["groupName"] for each in groups] == ["cpu"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(("--size", "16"), 2, "--size requires --decision", id="a size without a decision"),
        pytest.param(("--name", "My_Cluster"), 2, "at most 53", id="a name that is invalid in Kubernetes"),
        pytest.param(("--job", "python tune.py"), 2, "neither its code nor its packages", id="a job without code"),
        pytest.param(
            ("--job", "x", "--runtime-env", "list.yaml"), 2, "working_dir", id="an invalid runtime environment"
        ),
        pytest.param(
            ("--min-nodes", "l4"), 2, "must have the form NAME=NUMBER, such as l4=2", id="a minimum without a number"
        ),
        pytest.param(
            ("--min-nodes", "l4=1"),
            2,
            "'l4', which is not a node type. Node types:",
            id="a minimum of an unknown group",
        ),
        pytest.param(
            ("--num-gpus", "--format", "cluster-yaml"),
            2,
            "always contains the GPUs",
            id="--num-gpus for a cluster YAML",
        ),
        pytest.param(("--nodes", "small.yaml"), 1, "short of", id="nodes that are too small"),
    ],
)
def test_an_error_is_on_stderr_and_nothing_is_written(run, tmp_path, arguments, status, message):
    (tmp_path / "small.yaml").write_text("nodes: [{name: tiny, cpus: 1, memory: 1GiB}]")
    (tmp_path / "large.yaml").write_text("{kind: CpuPolicy, cpus: 9}")
    (tmp_path / "list.yaml").write_text("[working_dir, .]")

    done = run(*arguments, policy="large.yaml")

    assert (done.status, done.stdout) == (status, "")
    assert message in done.stderr
