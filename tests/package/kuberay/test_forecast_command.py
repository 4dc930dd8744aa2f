"""Tests of the command ``plan --cluster FILE``: exit status, stdout and stderr."""

import gzip
import io
import json
import sys
from typing import NamedTuple

import pytest

from tune_policies.cli.main import main

MANIFEST = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: train}
spec:
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: head, resources: {limits: {cpu: "2", memory: 8Gi}}}]}}
  workerGroupSpecs:
  - groupName: gpu
    minReplicas: 1
    maxReplicas: 4
    template: {spec: {containers: [{name: ray, resources: {limits: {cpu: "8", nvidia.com/gpu: "1"}}}]}}
"""
NODES = "nodes: [{name: gpu, cpus: 8, memory: 32GiB, gpus: 1, price_per_hour: 1.5}]"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command on a cluster file with the given text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    policy = tmp_path / "policy.yaml"
    policy.write_text("kind: GpuPolicy\ngpus: 0.25\ncpus: 2\n")

    def run(text, *arguments, cluster="cluster.yaml"):
        (tmp_path / "cluster.yaml").write_text(text)
        (tmp_path / "cluster.yaml.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / "nodes.yaml").write_text(NODES)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        of_cluster = [] if cluster is None else ["--cluster", cluster]
        monkeypatch.setattr(sys, "argv", ["tune-policies", "plan", policy.name, *of_cluster, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def test_a_forecast_shows_minimum_maximum_and_price(plan):
    done = plan(MANIFEST, "--nodes", "nodes.yaml", "--num-trials", "6")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "at the minimum (1 gpu node, 1.50 USD an hour): 4 trials at once, limited by GPU",
        "at the maximum (4 gpu nodes, 6.00 USD an hour): 16 trials at once, limited by GPU",
        "  each trial: 2 CPUs, 0.25 GPU",
        "  - the plan may use nodes that the autoscaler can add: up to 3 gpu",
        "  - GPU memory was not read on every node, so the memory of a fraction is unknown",
        "6 trials at once need 2 gpu nodes, 3.00 USD an hour",
        "caution: the price does not include the head, because the catalog has no price for it",
        "6 trials run in 1 round",
    ]


@pytest.mark.parametrize("cluster", ["-", "cluster.yaml.gz"])
def test_stdin_and_gzipped_files_are_read(plan, cluster):
    found = json.loads(plan(MANIFEST, "--json", "--num-trials", "40", cluster=cluster).stdout)

    assert (found["cluster"], found["at_minimum"]["nodes"], found["at_maximum"]["nodes"]) == (
        "train",
        {"gpu": 1},
        {"gpu": 4},
    )
    assert (found["at_maximum"]["plan"]["limited_by"], found["num_rounds"]) == ("GPU", 3)


def test_the_exit_status_is_1_if_no_trial_fits(plan):
    done = plan(MANIFEST.replace('nvidia.com/gpu: "1"', 'memory: "1Gi"'))

    assert (done.returncode, done.stdout) == (1, "")
    assert "with all nodes that can be added" in done.stderr


ON_AWS = """
cluster_name: train
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default: {resources: {CPU: 0}, node_config: {InstanceType: m5.large}}
  g5: {resources: {CPU: 8}, node_config: {InstanceType: g5.2xlarge}}
"""


def test_assumptions_are_printed_even_if_no_plan_is_feasible(plan):
    planned, infeasible = plan(ON_AWS.replace("CPU: 8", "CPU: 8, GPU: 1")), plan(ON_AWS)

    assert planned.stdout.endswith("caution: the file has no max_workers, so Ray's default for aws is assumed: 2\n")
    assert (planned.returncode, infeasible.returncode, infeasible.stdout) == (0, 1, "")
    assert (
        "Note that Ray adds the devices of the instance type g5.2xlarge to the resources of 'g5'" in infeasible.stderr
    )


TWO = f"{MANIFEST}---{MANIFEST.replace('name: train', 'name: tune').replace('maxReplicas: 4', 'maxReplicas: 2')}"
LIST = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: tune}}\n" + "".join(
    f"- {text.strip().replace(chr(10), chr(10) + '  ')}\n" for text in TWO.split("---")
)


@pytest.mark.parametrize(
    "text",
    [TWO.replace('num-cpus: "0"', "num-cpus: 0", 1), LIST],
    ids=["two documents, one with a mistake", "a list"],
)
def test_the_name_option_selects_one_of_several_clusters(plan, text):
    done = plan(text, "--name", "tune")

    assert (done.returncode, done.stderr) == (0, "")
    assert "at the maximum (2 gpu nodes): 8 trials at once" in done.stdout


def test_the_error_for_an_unknown_name_lists_the_available_names(plan):
    done = plan(TWO, "--name", "tuna")

    assert (done.returncode, done.stdout) == (2, "")
    assert "cluster.yaml has no cluster 'tuna'; did you mean 'tune'? Available names: 'train', 'tune'" in done.stderr


def test_the_name_option_requires_a_cluster_file(plan):
    done = plan(MANIFEST, "--name", "train", cluster=None)

    assert done.returncode == 2
    assert "Pass the file with --cluster" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "cluster.yaml is not a cluster's file: it must define a cluster in a KubeRay RayCluster"),
        (TWO, "cluster.yaml contains 2 clusters (RayCluster 'train', RayCluster 'tune'): select one by name"),
        (
            MANIFEST.replace('cpu: "8"', 'cpu: "8 cores"'),
            "cluster.yaml, line 14: cpu '8 cores' is not a Kubernetes quantity",
        ),
    ],
    ids=["no cluster", "two clusters", "an invalid amount"],
)
def test_an_invalid_file_is_reported_with_its_line(plan, text, message):
    done = plan(text)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("option", ["--address", "--cluster-config"])
def test_a_cluster_file_cannot_be_combined_with_options_for_a_running_cluster(plan, option):
    done = plan(MANIFEST, option, "other.yaml")

    assert done.returncode == 2
    assert f"Omit {option}" in done.stderr


def test_the_plot_shows_the_cluster_at_its_maximum(plan, tmp_path):
    done = plan(MANIFEST, "--plot", "plan.svg")

    drawn = (tmp_path / "plan.svg").read_text()
    assert done.returncode == 0
    assert "16 trials at once, limited by GPU" in drawn
    assert "to be added by the autoscaler: gpu" in drawn
    assert "× 3" in drawn
