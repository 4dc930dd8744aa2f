"""Tests of the exit status, stdout and stderr of commands that do not need Ray."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from ray._private.label_utils import parse_node_labels_string
from typer.testing import CliRunner

from tests.clusters import nodes
from tune_policies import ClusterCapacity, Resources
from tune_policies.cli.main import app
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.plan.trial_plan import TrialPlan


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def in_shell(redirected, *arguments, **options):
    """Run a command in Bash with redirected streams, and return the completed process."""
    command = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", "tune_policies", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


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
    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), "--cluster", capacity, "--num-trials", 9)

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("4 trials at once, limited by GPU\n  each trial: 4 CPUs, 0.5 GPU\n")
    assert done.stdout.endswith("9 trials run in 3 rounds at best, if all trials take equally long\n")


def test_plan_prints_idle_resources_with_their_reasons(tmp_path, policy):
    capacity = tmp_path / "capacity.json"
    capacity.write_text(nodes((16, 2), (4, 8)).to_json())

    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.3\ncpus: 2\n"), "--cluster", capacity)

    assert done.stdout.splitlines()[-3:] == [
        "stays idle:",
        "  4 of 20 CPUs: no GPU is left on their nodes",
        "  7.3334 of 10 GPUs: no CPU is left on their nodes",
    ]


def test_json_contains_rounds_only_if_num_trials_is_given(capacity, policy):
    arguments = ("plan", policy("kind: CpuPolicy\n"), "--cluster", capacity, "--json")
    plain, with_rounds = (json.loads(run(*arguments, *more).stdout) for more in ((), ("--num-trials", 40)))

    assert with_rounds == {**plain, "num_trials": 40, "num_rounds": 3}
    assert TrialPlan.from_dict(plain).max_concurrent_trials == 16


def test_a_saved_cluster_can_be_a_yaml_file(tmp_path, policy):
    capacity = tmp_path / "capacity.yaml"
    capacity.write_text("# mine\nread_at: 2030-01-02 03:04:05+00:00\nnodes:\n- {node_id: a, resources: {cpus: 3}}\n")

    done = run("plan", policy("kind: CpuPolicy\n"), "--cluster", capacity)

    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "3 trials at once, limited by CPU")


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "nodes:\n- {count: 8, cpus: 32, memory: 128GiB, gpus: 4, accelerator_type: L4, price_per_hour: 6}\n"
        "- {count: 2, cpus: 16, memory: 64GiB, price_per_hour: 0.5}\n"
    )
    return path


def test_plan_prints_the_price_of_a_list_of_nodes(listed, policy):
    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), "--cluster", listed)

    lines = done.stdout.splitlines()
    assert (done.exit_code, done.stderr) == (0, "")
    assert (lines[0], lines[-1]) == (
        "64 trials at once, limited by GPU",
        "price: 49.00 USD per hour for 10 worker nodes, or 0.77 USD per trial hour",
    )


def test_the_price_states_its_nodes_and_its_number_of_trials(listed, policy):
    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), "--cluster", listed, "--num-trials", "4")

    assert done.stdout.splitlines()[-3:] == [
        "price: 49.00 USD per hour for 10 worker nodes, or 0.77 USD per trial hour if all 64 slots are in use, "
        "and 12.25 USD with 4 trials",
        "note: the price is for all nodes of the catalog. To rank the nodes to rent for 4 trials, omit their count",
        "4 trials run in 1 round",
    ]


OFFERS = """
currency: EUR
nodes:
- {name: a100, cpus: 8, gpus: 1, accelerator_type: A100, price_per_hour: 3}
- {name: l4, cpus: 8, gpus: 1, accelerator_type: L4, price_per_hour: 1}
- {name: t4, cpus: 8, gpus: 1, accelerator_type: T4, price_per_hour: 0.5}
"""
TWENTY_GIB = "kind: GpuMemoryPolicy\ngpu_memory: 20GiB\n"


def rows_of(table):
    return [re.split(r" {3,}", line.strip()) for line in table.splitlines()]


def test_the_nodes_to_rent_for_a_number_of_trials_are_ranked_by_their_price(policy, tmp_path, monkeypatch):
    """A catalog of nodes to rent needs neither counts nor, as there are no pods, the host memory."""
    monkeypatch.setenv("COLUMNS", "120")
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS)
    monkeypatch.setenv("COLUMNS", "200")

    done = run("plan", policy(TWENTY_GIB), "--cluster", offers, "--num-trials", "64")

    heading, _, cheapest, runner_up, *below = rows_of(done.stdout)
    assert heading == ["Nodes to rent", "Trials at once", "Each trial", "Price per hour", "Price of a trial hour"]
    assert [cheapest[0], cheapest[1], *cheapest[3:]] == ["64 l4 nodes", "64 of 64", "64.00 EUR", "1.00 EUR"]
    assert [runner_up[0], runner_up[1], *runner_up[3:]] == ["64 a100 nodes", "64 of 64", "192.00 EUR", "3.00 EUR"]
    assert any("no trial fits on t4: the largest GPUs have 14.7 GiB" in cell for row in below for cell in row)


def test_a_deadline_ranks_nodes_for_fewer_trials_at_once_by_their_price(policy, tmp_path, monkeypatch):
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS)
    monkeypatch.setenv("COLUMNS", "200")

    command = ("--cluster", offers, "--num-trials", "64", "--trial-hours", "1", "--deadline-hours", "3")
    (cheaper,), heading, _, cheapest, *_ = rows_of(run("plan", policy(TWENTY_GIB), *command).stdout)
    # With 32 nodes, the trials take 2 h, and all slots are in use. With 22, two slots are idle in the last round.
    assert cheaper.startswith("cheaper: with a deadline of 2 h, all trials would cost 64.00 instead of 66.00 EUR")
    assert heading[-2:] == ["Time for the trials", "Price of the trials"]
    assert [cheapest[0], cheapest[1], *cheapest[3:]] == [
        *("22 l4 nodes", "22 of 64"),
        *("22.00 EUR", "3 h in 3 rounds", "66.00 EUR"),
    ]


def test_nodes_that_are_too_few_for_the_deadline_are_marked(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS.replace("price_per_hour: 3", "price_per_hour: 3, count: 2"))

    command = ("--cluster", offers, "--num-trials", "6", "--trial-hours", "1", "--deadline-hours", "2")
    done = run("plan", policy(TWENTY_GIB), *command)

    assert "3 h in 3 rounds, after the deadline" in " ".join(done.stdout.split())


def test_a_plan_states_the_hours_and_the_price_of_all_trials(listed, policy):
    half = policy("kind: GpuPolicy\ngpus: 0.5\n")

    command = ("plan", half, "--cluster", listed, "--num-trials", "100", "--trial-hours", "2", "--deadline-hours", "3")
    takes = "100 trials take 4 h in 2 rounds, after the deadline, and cost 196.00 USD"
    assert run(*command).stdout.splitlines()[-1] == takes
    printed = json.loads(run(*command, "--json").stdout)
    assert (printed["hours"], printed["price"], printed["currency"]) == (4, 196, "USD")


def test_compared_policies_have_the_price_of_all_trials(listed, policy, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("kind: GpuPolicy\n")

    command = ("--cluster", listed, "--num-trials", "40", "--trial-hours", "2")
    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), other, *command)
    rows = {line[:22].strip(): line.split("  ")[1:] for line in done.stdout.splitlines()}
    assert [cell.strip() for cell in rows["Price of the trials"] if cell.strip()] == ["98.00 USD", "196.00 USD"]


def test_a_ranking_states_when_slightly_smaller_trials_need_fewer_nodes(policy, tmp_path):
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS)
    command = ("--cluster", offers, "--num-trials", "64", "--json")

    noted = json.loads(run("plan", policy(TWENTY_GIB), *command).stdout)["notes"]
    followed = json.loads(run("plan", policy(TWENTY_GIB.replace("20GiB", "20268MiB")), *command).stdout)

    assert noted == [
        "with gpu_memory: 20268MiB (1.0% less than 20 GiB), 32 a100 nodes (96.00 EUR per hour) instead of 64 a100 "
        "nodes would be enough",
        "no trial fits on t4: the largest GPUs have 14.7 GiB. Request at most 15079MiB of GPU memory, or add a larger "
        "GPU.",
    ]
    assert {"a100": 32} in [offer["nodes"] for offer in followed["offers"]]


def test_a_ranking_begins_with_nodes_that_cost_less_for_slightly_smaller_trials(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS.replace("price_per_hour: 3}", "price_per_hour: 1.90}"))

    done = run("plan", policy(TWENTY_GIB), "--cluster", offers, "--num-trials", "64")

    assert done.stdout.splitlines()[0] == (
        "cheaper: with gpu_memory: 20268MiB (1.0% less than 20 GiB), 32 a100 nodes would be enough, for 60.80 instead "
        "of 64.00 EUR per hour"
    )
    assert "note: with gpu_memory" not in done.stdout


def test_a_ranking_says_that_a_gpu_has_less_than_its_nominal_size(policy, tmp_path):
    offers = tmp_path / "offers.yaml"
    offers.write_text(OFFERS.replace("accelerator_type: A100", "accelerator_type: A100, gpu_memory: 40GiB"))

    done = run("plan", policy(TWENTY_GIB), "--cluster", offers, "--num-trials", "64")

    assert "Write the total that nvidia-smi reports, such as gpu_memory: 40536MiB" in " ".join(done.stdout.split())


def test_the_best_offer_can_be_drawn(policy, tmp_path):
    offers, picture = tmp_path / "offers.yaml", tmp_path / "plan.svg"
    offers.write_text(OFFERS)

    done = run("plan", policy(TWENTY_GIB), "--cluster", offers, "--num-trials", "3", "--plot", picture)

    assert (done.exit_code, "l4" in picture.read_text()) == (0, True)


def test_compared_policies_share_the_price_between_the_trials(listed, policy, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("kind: GpuPolicy\n")

    done = run(
        "plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), other, "--cluster", listed, "--num-trials", "40", "--json"
    )

    found = json.loads(done.stdout)
    assert [(each["num_trials"], each["num_rounds"]) for each in found["policies"]] == [(40, 1), (40, 2)]
    assert found["priced"] == "10 worker nodes"
    assert "To rank the nodes to rent for 40 trials, omit their count" in found["hint"]


def test_a_catalog_may_be_passed_as_nodes_or_as_cluster(listed, policy):
    one = policy("kind: GpuPolicy\ngpus: 0.5\n")
    design = ("kuberay", "design", one, "--num-trials", "40")

    plans = [run("plan", one, option, listed).stdout for option in ("--nodes", "--cluster")]
    designs = [run(*design, option, listed).stdout for option in ("--nodes", "--cluster")]

    assert plans[0] == plans[1] != ""
    assert designs[0] == designs[1] != ""


def test_designs_of_several_policies_are_compared(listed, policy, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("kind: GpuPolicy\ngpus: 9\n")
    half = policy("kind: GpuPolicy\ngpus: 0.5\n")

    done = run("kuberay", "design", half, other, "--nodes", listed, "--num-trials", "40", "--json")

    best, infeasible = json.loads(done.stdout)["policies"]
    assert (done.exit_code, best["design"]["price_per_hour"]) == (0, 30.0)
    assert (infeasible["design"], "9 GPUs" in infeasible["why_not"]) == (None, True)


def test_the_table_of_designs_has_nodes_prices_and_rounds(listed, policy, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("kind: GpuPolicy\n")
    half = policy("kind: GpuPolicy\ngpus: 0.5\n")

    done = run("kuberay", "design", half, other, "--nodes", listed, "--num-trials", "40")

    rows = {line[:22].strip(): line for line in done.stdout.splitlines()}
    assert "30.00 USD" in rows["Price per hour"]
    assert "40 of 40" in rows["Trials at once"]
    assert "32 of 40" in rows["Trials at once"]


def test_a_file_is_written_for_one_design_only(policy, tmp_path):
    one = policy("kind: CpuPolicy\n")

    done = run("kuberay", "design", one, one, "--num-trials", "4", "--output", tmp_path / "out.yaml")

    assert (done.exit_code, "only one design" in done.stderr) == (2, True)


def test_the_field_price_is_corrected_to_price_per_hour(listed, policy):
    listed.write_text(listed.read_text().replace("price_per_hour", "price"))

    done = run("plan", policy("kind: CpuPolicy\n"), "--cluster", listed)

    assert "unknown field 'price'; did you mean 'price_per_hour'?" in done.stderr


def test_the_price_includes_a_head_with_a_price(listed, policy):
    listed.write_text(f"{listed.read_text()}head: {{name: head, cpus: 2, price_per_hour: 1}}\n")

    done = run("plan", policy("kind: GpuPolicy\ngpus: 0.5\n"), "--cluster", listed)

    assert "price: 50.00 USD per hour for 10 worker nodes and the head, or 0.78 USD per" in done.stdout


def test_plans_of_several_policies_are_compared(listed, tmp_path):
    halves, cpus, large = (tmp_path / f"{name}.yaml" for name in ("halves", "cpus", "large"))
    halves.write_text("kind: GpuPolicy\ngpus: 0.5\n")
    cpus.write_text("kind: CpuPolicy\ncpus: 4\n")
    large.write_text("kind: GpuPolicy\ngpus: 8\n")

    done = run("plan", halves, cpus, large, "--cluster", listed, "--num-trials", 100, "--json")
    shown = run("plan", halves, cpus, large, "--cluster", listed)

    columns = [
        (Path(each["policy"]).name, each["plan"] and each["plan"]["limited_by"], each["price_per_hour"])
        for each in json.loads(done.stdout)["policies"]
    ]
    assert (done.exit_code, shown.exit_code) == (0, 0)
    assert columns == [("halves.yaml", "GPU", 49.0), ("cpus.yaml", "CPU", 49.0), ("large.yaml", None, None)]
    assert re.search(r"Trials at once +64 +72 +0\b", shown.stdout)


@pytest.mark.parametrize("text", ["nodes: [", "nodes: []\nnodes: []", "&a [*a]", "? [1]\n: 2"])
def test_a_capacity_that_is_neither_json_nor_yaml_is_invalid_usage(tmp_path, policy, text):
    capacity = tmp_path / "capacity.yaml"
    capacity.write_text(text)

    done = run("plan", policy("kind: CpuPolicy\n"), "--cluster", capacity)

    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {capacity}, line ")


def test_plan_lists_the_nodes_to_add(tmp_path, policy):
    worker = NodeTypeCapacity(name="cpu-worker", resources=Resources(cpus=8), max_nodes_to_add=2)
    capacity = tmp_path / "growing.json"
    capacity.write_text(ClusterCapacity(node_types=(worker,)).to_json())

    done = run("plan", policy("kind: AutoscalingPolicy\ninner: {kind: CpuPolicy, cpus: 4}\n"), "--cluster", capacity)

    assert "  nodes that the autoscaler must add first: 2 cpu-worker" in done.stdout.splitlines()


def test_an_infeasible_request_exits_with_1_and_prints_nothing_on_stdout(capacity, policy):
    done = run("plan", policy("kind: GpuPolicy\ngpus: 4\n"), "--cluster", capacity)

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: one trial needs 4 GPUs, but the largest node has 16 CPUs, 2 GPUs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "Missing argument"),
        (["plan", "POLICY", "--cluster", "/nowhere.json"], "cannot read the file /nowhere.json"),
        (["plan", "POLICY", "--cluster", "POLICY"], "is a policy, not a cluster's file. Pass it as the argument"),
        (["plan", "CAPACITY", "--cluster", "CAPACITY"], "is a cluster saved by `probe --json`, not a policy. Pass it"),
        (["kuberay", "design", "POLICY", "--num-trials", "9", "--nodes", "CAPACITY"], "Pass it as --cluster to `plan`"),
        (["plan", "POLICY", "POLICY", "--cluster", "CAPACITY", "--plot", "a.svg"], "--plot draws only one plan"),
        (["plan", "POLICY", "--cluster", "CAPACITY", "--nodes", "CAPACITY"], "not a catalog"),
        (["plan", "POLICY", "--nodes", "CAPACITY"], "not a catalog"),
        (["plan", "POLICY", "--nodes", "n.yaml", "--address", "auto"], "Omit --address or --nodes"),
        (["plan", "/nowhere.yaml", "--cluster", "CAPACITY"], "cannot read the policy file /nowhere.yaml"),
        (["plan", "POLICY", "--cluster", "CAPACITY", "--num-trials", "-1"], "greater than or equal to 1"),
        (["plan", "POLICY", "--cluster", "CAPACITY", "--cluster-config", "c.yaml"], "Omit --cluster-config"),
        (["kuberay", "design", "POLICY", "--num-trials", "9", "--platform", "x"], "'--platform': 'x' is not one of"),
        (["prob"], "No such command 'prob'"),
    ],
)
def test_invalid_arguments_cause_exit_status_2_and_a_message(capacity, policy, arguments, message):
    paths = {"POLICY": policy("kind: CpuPolicy\n"), "CAPACITY": capacity}

    done = run(*(paths.get(argument, argument) for argument in arguments))

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert isinstance(done.exception, SystemExit)


def test_the_error_for_an_invalid_policy_suggests_a_fix(capacity, policy):
    done = run("plan", policy("kind: GpuPolcy\n"), "--cluster", capacity)

    assert done.exit_code == 2
    assert "unknown kind 'GpuPolcy'; did you mean 'GpuPolicy'?" in done.stderr


@pytest.mark.parametrize(
    ("redirected", "status", "stderr"),
    [
        (">/dev/full", 2, "error: cannot write the result: [Errno 28] No space left on device"),
        (">&-", 2, "error: cannot write the result: [Errno 9] Bad file descriptor"),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("| head -c 1 >/dev/null", 0, ""),
    ],
    ids=["full disk", "closed stdout", "closed stderr", "closed stdin", "a reader that closes early"],
)
def test_closed_or_full_streams_cause_no_traceback(capacity, policy, redirected, status, stderr):
    done = in_shell(redirected, "plan", policy("kind: CpuPolicy\n"), "--cluster", capacity)

    assert (done.returncode, done.stderr.strip()) == (status, stderr)


def test_a_closed_pipe_is_not_reported_as_an_infeasible_policy(capacity, policy):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "tune_policies", "plan", policy("kind: CpuPolicy\n"), "--cluster", capacity]

    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)

    assert (done.returncode, done.stderr) == (141, "")


def test_the_address_of_the_dashboard_is_explained(policy):
    done = in_shell("", "plan", policy("kind: CpuPolicy\n"), env={**os.environ, "RAY_ADDRESS": "http://127.0.0.1:8265"})

    assert done.returncode == 2
    assert "'http://127.0.0.1:8265' is the address of the dashboard" in done.stderr
    assert "ray job submit --address http://127.0.0.1:8265 -- python program.py" in done.stderr


def test_a_closed_stdin_is_reported_as_an_unreadable_file():
    done = in_shell("<&-", "kuberay", "lint", "-")

    assert done.returncode == 1
    assert "-:1: error unreadable: stdin is closed" in done.stdout


def test_non_ascii_characters_are_escaped_on_an_ascii_terminal(capacity, policy):
    greater = policy("kind: CpuPolicy\ncustom: {größe: 1}\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}

    done = in_shell("", "plan", greater, "--cluster", capacity, env=environment)

    assert done.returncode == 1
    assert r"1 gr\u00f6\u00dfe" in done.stderr


def test_cpu_labels_are_printed_in_the_format_that_ray_start_accepts():
    text, json_text = run("cpu-labels").stdout, run("cpu-labels", "--json").stdout

    assert parse_node_labels_string(text.rstrip("\n")) == json.loads(json_text)


def test_a_deleted_working_directory_is_reported(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["bash", "-c", 'rmdir "$PWD"; "$@"', "bash", sys.executable, "-m", "tune_policies", "usage", "."]

    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert "Traceback" not in done.stderr


def test_commands_that_print_a_result_have_a_json_option_and_every_command_has_a_short_help_option():
    """Commands without ``--json`` write files, print a file, or run a program."""
    writers = {"report", "plot", "export", "dashboard", "schema", "exec"}
    found = dict(commands(typer.main.get_command(app)))

    assert {name for name, command in found.items() if "--json" not in options(command)} == writers
    assert all("-o" in options(command) for command in found.values() if "--output" in options(command))
    assert all(run(*path, "-h").stdout == run(*path, "--help").stdout != "" for path in ([], ["bench", "show"]))


def commands(group):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield from commands(command) if hasattr(command, "list_commands") else [(name, command)]


def options(command):
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(("typed", "completed"), [("bench pack", "packing"), ("plan --num", "--num-trials")])
def test_shell_completion_covers_commands_and_options(typed, completed):
    words = ["tune-policies", *typed.split()]
    asked = {
        "_TUNE_POLICIES_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = [Path(sys.executable).with_name("tune-policies")]

    done = subprocess.run(program, capture_output=True, text=True, check=False, env={**os.environ, **asked})

    assert completed in done.stdout.split()


def test_doctor_exits_with_3_if_it_cannot_read_the_nodes():
    done = in_shell("", "doctor", "--address", "127.0.0.1:1", "--timeout-s", 5)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--maymove", "policy.yaml", "tune.py"], "no such option: --maymove; did you mean '--may-move'?"),
        (["policy.yaml", "--may-move", "tune.py"], "Options of exec must precede the policy"),
        (["tune.py"], "a policy is missing"),
        (["-m", "tune"], "a policy is missing"),
        (["--audit", "policy.yaml", "tune.py"], "--audit applies no policy. Omit policy.yaml"),
    ],
    ids=["misspelled", "after the policy", "only a program", "only a module", "an audit with a policy"],
)
def test_exec_explains_wrong_arguments(policy, monkeypatch, arguments, message):
    monkeypatch.chdir(policy("kind: CpuPolicy\n").parent)
    Path("tune.py").touch()

    done = run("exec", *arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(re.sub(r"[│\s]+", " ", done.stderr).split())


@pytest.mark.parametrize("command", ["probe", "exec", "kuberay", "kuberay lint", "kuberay design"])
def test_only_the_program_offers_to_install_completion(command):
    assert "--install-completion" in run("--help").stdout
    assert "completion" not in run(*command.split(), "--help").stdout
