"""`tune-policies bench show`, `export` and `plot` as a user types them, and pyperf's own commands on their files."""

import csv
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set_file import write_run_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two run sets, of which the second took another course."""
    path = tmp_path_factory.mktemp("runs")
    for name, seed in (("a.json", 0), ("b.json", 1)):
        write_run_set(
            a_run_set(workloads=("mlp",), sizes=(16, 1024), num_rounds=3, seed=seed, has_failure=False), path / name
        )
    return path


def pyperf(*arguments, folder):
    command = [sys.executable, "-m", "pyperf", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture
def benchmarks(folder, monkeypatch):
    """The command, in this process: it takes seconds to import."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "140")
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("show", "a.json"), "mlp[16] cpu compute"),
        (("stats", "a.json"), "Number of benchmarks: 18"),
        (("hist", "a.json"), "mlp[1024] gpu with-transfers"),
        (("compare_to", "a.json", "b.json"), "Geometric mean"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_pyperf_reads_a_run_set(command, expected, folder):
    done = pyperf(*command, folder=folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


def test_pyperf_compares_the_devices_of_a_run_by_their_exports(folder, benchmarks, tmp_path):
    exported = benchmarks("export", "a.json", "--format", "pyperf", "--phase", "compute", "--output", tmp_path)
    compared = pyperf("compare_to", "cpu.json", "gpu.json", folder=tmp_path)

    assert (exported.exit_code, exported.stderr) == (0, "")
    lines = compared.stdout.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines if "[cpu]" in line] == [
        ("mlp[16]", "slower"),
        ("mlp[1024]", "faster"),
    ]
    assert "ERROR" not in compared.stdout


def test_show_prints_the_table_on_stdout(benchmarks):
    done = benchmarks("show", "a.json")

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:4] == ["Workload", "Device", "Size", "Compute"]


def test_show_prints_json_for_machines(benchmarks):
    said = json.loads(benchmarks("show", "a.json", "--json").stdout)

    assert [arm["arm"]["device"] for arm in said["arms"]] == ["cpu", "cpu", "gpu"] * 2
    assert said["problems"][0] == "TPU is not there: no node has a TPU"


def test_blocks_of_a_device_are_exported_to_csv(benchmarks):
    done = benchmarks("export", "a.json", "--format", "csv", "--device", "gpu", "--phase", "with-transfers")

    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert {(row["device"], row["phase"]) for row in rows} == {("gpu", "with-transfers")}


def test_the_run_set_alone_is_exported_to_json(benchmarks):
    assert json.loads(benchmarks("export", "a.json", "--format", "json").stdout)["schema_version"] == 1


@pytest.mark.parametrize(
    ("arguments", "written", "mine"),
    [
        (
            ("export", "a.json", "--format", "pyperf", "--output", "."),
            "gpu.json",
            '{"version": "1.0", "benchmarks": [], "metadata": {}}',
        ),
        (("plot", "a.json", "--output", "mine.svg"), "mine.svg", "<svg>mine</svg>"),
        (
            ("report", "a.json", "--output", "mine.html"),
            "mine.html",
            '<!DOCTYPE html><meta name="generator" content="tune-policies">',
        ),
        (("report", "a.json", "--format", "markdown", "--output", "."), "report.md", "# GPU against CPU\n"),
    ],
    ids=["export", "plot", "report", "report as markdown"],
)
def test_what_is_there_is_replaced_only_with_force(arguments, written, mine, benchmarks, folder, tmp_path, monkeypatch):
    """Where one of several files is in the way, none is written."""
    (tmp_path / "a.json").write_bytes((folder / "a.json").read_bytes())
    (tmp_path / written).write_text(mine)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())

    done = benchmarks(*arguments)
    kept = ((tmp_path / written).read_text(), sorted(tmp_path.iterdir()))
    forced = benchmarks(*arguments, "--force")

    assert (done.exit_code, kept) == (2, (mine, before))
    assert f"{written} exists already and would be lost: name another file, or add --force" in done.stderr
    assert (forced.exit_code, (tmp_path / written).read_text() != mine) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "none.json"), "cannot read the run set none.json: No such file or directory"),
        (("export", "a.json", "--format", "csv", "--device", "gpux"), "unknown device 'gpux'; did you mean 'gpu'?"),
        (("export", "a.json", "--format", "pyperf"), "holds one device, and there are cpu, gpu: choose with --device"),
        (("export", "a.json", "--format", "csv", "--output", "b.json"), "b.json exists already and would be lost"),
        (
            ("export", "a.json", "--format", "csv", "--output", "b.json", "--force"),
            "b.json is another kind of file than the one that would replace it",
        ),
        (("plot", "a.json", "--output", "plot.svgx"), "unknown ending '.svgx'; did you mean 'svg'? (known: "),
    ],
    ids=["no file", "unknown device", "several devices", "a record", "a record by force", "an unknown ending"],
)
def test_wrong_usage_is_explained_on_stderr(arguments, message, benchmarks):
    done = benchmarks(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.parametrize(("ending", "beginning"), [("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_times_against_sizes_are_drawn_to_a_file(ending, beginning, benchmarks, tmp_path):
    done = benchmarks("plot", "a.json", "--workload", "mlp", "--output", tmp_path / f"plot.{ending}")

    assert (done.exit_code, done.stderr) == (0, "")
    assert (tmp_path / f"plot.{ending}").read_bytes().startswith(beginning)
