"""Tests of the command ``bench decide`` with files: exit status, stdout and stderr."""

import json

import pytest
from typer.testing import CliRunner

from tests.clusters import gpu_node
from tests.measured_runs import a_run
from tune_policies import BenchmarkedPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, load_decision, load_policy
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.benchmarks.record.settings import Settings

CLUSTER = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=16, accelerator_type="A10G"))
PRICES = "{date: 2026-05-01, currency: USD, cpu: 0.05, gpus: {A10G: 0.4}}"


@pytest.fixture
def decide(tmp_path, monkeypatch):
    """Return a function that runs the command in a folder with a run, a cluster and prices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_run_set(a_run(), tmp_path / "run.json")
    write_run_set(a_run(("cpu",)), tmp_path / "cpu.json")
    (tmp_path / "cluster.json").write_text(CLUSTER.to_json())
    (tmp_path / "prices.yaml").write_text(PRICES)

    def run(*arguments, steps=1000):
        options = ("--steps-per-trial", str(steps), "--cluster", "cluster.json")
        return CliRunner().invoke(app, ["decide", *arguments, *options])

    return run


def test_the_command_prints_the_better_device_and_writes_the_decision_for_the_policy(decide, tmp_path):
    done = decide("run.json", "--prices", "prices.yaml", "--output", "decision.json")

    assert done.exit_code == 0
    assert (
        "mlp, in trials of 1,000 steps: the GPU is faster from size 256 on, and the CPU up to size 16; "
        "measured from 1 to 256" in done.stdout
    )
    policy = BenchmarkedPolicy(load_decision(tmp_path / "decision.json"), gpu=GpuPolicy(cpus=4), cpu=CpuPolicy(cpus=4))
    plan = policy.plan(CLUSTER)
    assert [plan.slot_for({"batch_size": size}).trial.gpus for size in (16, 256)] == [0, 1]


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_the_command_prints_the_decision_as_a_policy_file(objective, decide, tmp_path):
    settings = Settings(sizes={"mlp": (1,)}, devices=("cpu", "gpu"), cpus=4, num_rounds=3, num_blocks=1)
    write_run_set(a_run().model_copy(update={"settings": settings}), tmp_path / "new.json")

    done = decide("new.json", "--prices", "prices.yaml", "--output", "decision.json")

    first, *printed = done.stderr.splitlines()
    text = "\n".join(printed).replace("objective: time  # or cost", f"objective: {objective}")
    (tmp_path / "policy.yaml").write_text(text)
    policy = load_policy(tmp_path / "policy.yaml")
    assert first == "the decision as a policy file, if batch_size is the name of the size in the config:"
    assert (policy.objective, policy.workload, policy.gpu, policy.cpu) == (
        objective,
        "mlp",
        GpuPolicy(cpus=4),
        CpuPolicy(cpus=4),
    )
    assert policy.plan(CLUSTER).max_concurrent_trials > 0


def test_json_output_contains_only_the_decision(decide, tmp_path):
    done = decide("run.json", "--gpu", "GPU", "--json", "--output", "decision.json")

    assert done.stdout == (tmp_path / "decision.json").read_text()


def test_the_command_prints_how_many_cpu_nodes_are_as_fast_as_one_gpu(decide):
    options = ("run.json", "--prices", "prices.yaml", "--num-trials", "100", "--node-cpus", "16")

    table, data = decide(*options), decide(*options, "--json")

    assert (table.exit_code, data.exit_code) == (0, 0)
    assert "100 trials on 1 GPU, or on the minimum number of 16-CPU nodes that finish at least as early" in table.stdout
    sizes = json.loads(data.stdout)["workloads"][0]["sizes"]
    assert [size["gpu_or_nodes"]["num_nodes"] for size in sizes] == [1, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("cpu.json",), 1, "a decision needs times of cpu and gpu, but the run measured cpu"),
        (("run.json", "--prices", "none.csv"), 2, "cannot read the price file none.csv"),
        (("run.json", "--same-within", "0"), 2, "same_within: Input should be greater than 0"),
        (("run.json", "--packing", "prices.yaml"), 2, "prices.yaml is not a record of throughput"),
        (("run.json", "--gpu", "TPU"), 2, "--gpu must be a GPU, such as gpu or gpu@0.25, got 'TPU'"),
    ],
)
def test_the_error_explains_why_no_decision_can_be_made(decide, arguments, status, message):
    done = decide(*arguments)

    assert (done.exit_code, message in done.stderr) == (status, True), done.stderr


def test_no_decision_is_made_if_every_answer_is_ambiguous(decide, tmp_path):
    write_run_set(a_run(sizes=(40,), rounds=2), tmp_path / "few.json")

    done = decide("few.json", steps=1333)

    assert done.exit_code == 1
    assert "nothing is decided, because every answer is ambiguous" in done.stderr


def test_a_decision_by_cost_alone_prints_a_policy_that_minimizes_the_cost(decide, tmp_path):
    write_run_set(a_run(sizes=(40,), rounds=2), tmp_path / "few.json")

    done = decide("few.json", "--prices", "prices.yaml", "--output", "decision.json", steps=1333)

    assert (done.exit_code, "nothing is decided" in done.stderr) == (0, False)
    _, _, policy = done.stderr.partition("in the config:\n")
    (tmp_path / "policy.yaml").write_text(policy)
    assert load_policy(tmp_path / "policy.yaml").objective == "cost"
