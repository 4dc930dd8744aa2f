"""Tests of the output, exit status and errors of ``tune-policies bench`` commands that do not require Ray."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.run_sets import a_run_set
from tests.unit.benchmarks.timed_runs import processes, run_set
from tune_policies import ClusterCapacity, Resources
from tune_policies.benchmarks.cli import Commands, app
from tune_policies.benchmarks.record.run_set import DeviceFound, NoiseReading
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return a function that runs a command in a folder with the files of several runs."""
    run = a_run_set(workloads=("mlp",), sizes=(16, 1024), num_rounds=3, has_failure=False)
    timed = run_set(processes("cpu", 3), processes("gpu", 1), processes("gpu@0.5", 2.99))
    missing = (DeviceFound(device="gpu", why_missing="no node has a GPU"),)
    on_cpus = run_set(processes("cpu", 1), devices=missing, is_complete=True)
    for name, each in (("a", run), ("b", run), ("timed", timed), ("cpu", on_cpus)):
        write_run_set(each, tmp_path / f"{name}.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return lambda line: CliRunner().invoke(app, line.split())


def ended_by(error):
    app = typer.Typer(cls=Commands)

    @app.callback()
    def all_commands():
        """Make the app a command group, because Typer does not create a group for a single command."""

    @app.command()
    def fail():
        raise error

    return CliRunner().invoke(app, ["fail"])


class InterruptedWhenDeleted:
    """Receives Ctrl-C in its destructor, where Python ignores the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_destructor_ends_the_command():
    app = typer.Typer(cls=Commands)
    waited_for = threading.Event()

    @app.callback()
    def all_commands():
        """Make the app a command group, because Typer does not create a group for a single command."""

    @app.command()
    def wait():
        InterruptedWhenDeleted()
        waited_for.wait(60)

    # Tune's handler, which another test may have left behind, ignores the first Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exit_code = CliRunner().invoke(app, ["wait"]).exit_code
    finally:
        signal.signal(signal.SIGINT, handler)

    assert exit_code == 130


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InvalidResourcesError("no such size"), 2, "error: no such size\n"),
        (ResourcePolicyError("no answer"), 1, "error: no answer\n"),
        (
            ModuleNotFoundError(name="matplotlib.figure"),
            2,
            "error: fail requires matplotlib. Run pip install 'tune-policies[bench]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["invalid usage", "an infeasible request", "a missing package", "Ctrl-C"],
)
def test_an_error_is_printed_as_a_message_and_sets_the_exit_status(error, status, message):
    done = ended_by(error)

    assert (done.exit_code, done.stdout, done.stderr) == (status, "", message)


def test_a_command_is_recorded_as_typed(tmp_path):
    """The user can copy the recorded command and run it again, because its arguments are quoted."""
    (tmp_path / "named.py").write_text(
        "from tune_policies.benchmarks.record.machine import own_command\nprint(own_command())\n"
    )
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import named\n")

    def recorded_by(*program):
        command = [sys.executable, *program, "run", "my steps:product"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert recorded_by("-m", "pack") == "python -m pack run 'my steps:product'\n"
    assert recorded_by("named.py") == "named.py run 'my steps:product'\n"


@pytest.mark.parametrize("program", [["tune_policies", "bench"], ["benchmarks"]], ids=" ".join)
def test_every_entry_point_runs_the_same_commands(program):
    command = [sys.executable, "-m", *program, "show", "missing.json"]

    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot read the run set missing.json: No such file or directory. ")


def test_show_prints_a_table_or_json_on_stdout(bench):
    table, found = bench("show a.json"), json.loads(bench("show a.json --json").stdout)

    assert (table.exit_code, table.stderr) == (0, "")
    assert table.stdout.splitlines()[1].split()[:4] == ["Workload", "Device", "Size", "Compute"]
    assert [each["configuration"]["device"] for each in found["configurations"]] == ["cpu", "cpu", "gpu"] * 2
    assert found["problems"][0] == "TPU was not measured: no node has a TPU"


def test_json_contains_the_warnings_of_processes_and_the_noise_that_the_table_shows(bench, tmp_path):
    run = read_run_set(tmp_path / "a.json")
    first, *others = run.runs
    warned = first.model_copy(update={"warnings": ("the losses are not finite",)})
    noise = (NoiseReading(round=0, load=1.5, throttled_s=0.2),)
    write_run_set(run.model_copy(update={"runs": (warned, *others), "noise": noise}), tmp_path / "noisy.json")

    table, found = bench("show noisy.json").stdout, json.loads(bench("show noisy.json --json").stdout)

    (warning,) = found["warnings"]
    assert warning == f"{first.configuration}, round 1: the losses are not finite"
    assert f"- {warning}" in table
    assert found["noise"] == [{"round": 0, "load": 1.5, "throttled_s": 0.2, "gpu_throttled": []}]


def test_export_writes_csv_or_a_redacted_run_set(bench, tmp_path):
    rows = list(csv.DictReader(bench("export a.json --format csv").stdout.splitlines()))
    done = bench("export a.json --format json --redact --output public.json")

    assert {row["device"] for row in rows} == {"cpu", "gpu"}
    assert (done.exit_code, done.stdout) == (0, "")
    assert read_run_set(tmp_path / "public.json") == read_run_set(tmp_path / "a.json").redacted()


@pytest.mark.parametrize(("ending", "beginning"), [("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_plot_writes_a_figure_of_times_by_size_to_a_file(ending, beginning, bench, tmp_path):
    done = bench(f"plot a.json --output plot.{ending}")

    assert (done.exit_code, done.stderr) == (0, "")
    assert (tmp_path / f"plot.{ending}").read_bytes().startswith(beginning)


def test_compare_prints_a_row_or_json_for_each_device_other_than_the_cpu(bench):
    table, found = bench("compare timed.json"), json.loads(bench("compare timed.json --json").stdout)

    assert (table.exit_code, table.stdout.count("compute")) == (0, 2)
    assert [(each["second"], each["word"]) for each in found] == [("gpu", "GPU"), ("gpu@0.5", "same")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare timed.json --phase with-transfers", "needs two devices with times of the same workload and size"),
        ("compare cpu.json", "the run measured cpu, but a comparison needs two devices"),
        ("compare cpu.json", "--device cpu --device gpu --cpus 1 --output gpu.json"),
    ],
)
def test_compare_exits_with_1_if_nothing_can_be_compared(line, message, bench):
    done = bench(line)

    assert (done.exit_code, done.stdout) == (1, "")
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("line", ["compare cpu.json", "decide cpu.json --steps-per-trial 10 --cluster nodes.json"])
def test_the_advised_command_is_complete_and_writes_its_record(line, bench, tmp_path):
    (tmp_path / "nodes.json").write_text(ClusterCapacity.of(Resources(cpus=4)).to_json())

    (advised,) = re.findall(r"^ *tune-policies bench run (.+)$", bench(line).stderr, re.MULTILINE)

    command = typer.main.get_command(app).commands["run"].make_context("run", shlex.split(advised))
    assert command.params["device"] == ["cpu", "gpu"]
    assert command.params["output"] == Path("gpu.json")


def test_the_advised_command_never_names_a_file_that_exists(bench, tmp_path):
    (tmp_path / "gpu.json").write_text("mine")

    (advised,) = re.findall(r"^ *tune-policies bench run (.+)$", bench("compare cpu.json").stderr, re.MULTILINE)

    assert advised.endswith(" --output gpu-2.json")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export a.json --format csv --output b.json --force", "b.json is another kind of file"),
        ("plot a.json --output plot.svgx", "unknown file type '.svgx'; did you mean 'svg'? (known: "),
        ("compare timed.json --same-within 5", "same_within must be between 0 and 1"),
        ("packing --output a.json", "Choose another file"),
        ("packing --mps", "--mps requires an MPS daemon, but "),
        ("packing mpl", "unknown workload 'mpl'; did you mean 'mlp'?"),
        (
            "packing tf-mlp",
            "tf-mlp: pass a size and --steps, such as tune-policies bench packing tf-mlp@64 --steps 1000",
        ),
        ("packing tests.models:mlp@64", "tests.models:mlp: pass --steps"),
        ("packing --steps 100", "--steps has no effect without a workload"),
        ("packing --size 64", "--size has no effect, because no workload without its own sizes is given"),
        ("packing mlp@64 --size 32", "--size has no effect"),
        ("run --resume a.json --no-control", "Omit --no-control"),
        ("packing tests.models:mlp --size 64", "tests.models:mlp: pass --steps"),
    ],
)
def test_invalid_usage_is_explained_on_stderr_and_changes_no_file(line, message, bench, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    done = bench(line)

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
