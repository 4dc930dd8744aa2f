"""Tests of the command ``tune-policies usage``."""

import html
import json
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tune_policies import CpuPolicy, LearningPolicy, PolicyCallback, load_usage
from tune_policies.cli.main import app
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.resource_usage import USAGE_FILE, ResourceHours, ResourceUsage, SlotHours, TrialSpan

GIB = 2**30
MIB = 2**20


@pytest.fixture
def run_folder(tmp_path):
    for index, peak in enumerate((2, 2.9)):
        trial = tmp_path / "run" / f"train_{index}_lr=0.1_2026-01-02_03-04-05"
        trial.mkdir(parents=True)
        usage = GpuMemoryUsage(gpus=0.5, share_bytes=8 * GIB, peak_reserved_bytes=int(peak * GIB), share_kept=True)
        (trial / "result.json").write_text(json.dumps({"gpu_memory": usage.model_dump(mode="json")}) + "\n")
    return tmp_path / "run"


def usage(*arguments):
    return CliRunner().invoke(app, ["usage", *map(str, arguments)], env={"COLUMNS": "80"})


def test_the_command_prints_a_line_per_trial_and_advice(run_folder):
    done = usage(run_folder)

    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.exit_code, done.stderr, lines[0]) == (0, "", "2 trials")
    assert [line.split()[0] for line in lines[3:5]] == ["train_0_lr=0.1", "train_1_lr=0.1"]
    assert " ".join(lines[-5:]) == (
        "- the peak was 2.9 of 8.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead of 2 "
        "- the run had no PolicyCallback, so the use of CPUs, devices and slots is not known. Run again with "
        "run(train_fn, policy, callbacks=[PolicyCallback()]), or set RAY_TUNE_CALLBACKS=tune_policies.PolicyCallback "
        "for any program"
    )


def record_in(run_folder, **hours):
    parts = tuple(ResourceHours(resource=name, total_hours=4, used_hours=used) for name, used in hours.items())
    slots = (SlotHours(slot="1 CPU", hours=hours),)
    (run_folder / USAGE_FILE).write_text(ResourceUsage(is_final=True, resources=parts, slots=slots).to_json())


@pytest.fixture
def cpu_folder(tmp_path):
    """Return the folder of a run on CPUs with a record of its resource use."""
    trial = tmp_path / "cpu-run" / "train_0_lr=0.1_2026-01-02_03-04-05"
    trial.mkdir(parents=True)
    (trial / "result.json").write_text('{"loss": 1}\n')
    record_in(trial.parent, CPU=1)
    return trial.parent


def test_the_resource_use_of_a_run_on_cpus_is_printed_without_gpu_memory(cpu_folder):
    done = usage(cpu_folder)

    lines = done.stdout.splitlines()
    assert (done.exit_code, done.stderr, lines[0].strip()) == (0, "", "Resources used in 0.0 s")
    assert ["CPU", "4.0", "h", "1.0", "h", "75%"] in [line.split() for line in lines]
    assert "OOMs" not in done.stdout
    assert lines[-1].startswith("- rounds:")


def test_the_command_prints_that_trials_with_gpus_reported_no_gpu_memory(cpu_folder):
    record_in(cpu_folder, GPU=1)

    assert "- no trial reported its GPU memory" in usage(cpu_folder).stdout


def test_json_contains_the_gpu_memory_usage_the_advice_and_the_resource_use(cpu_folder, run_folder):
    of_cpus, of_gpus = (json.loads(usage(folder, "--json").stdout) for folder in (cpu_folder, run_folder))

    assert (of_cpus["resource_usage"]["slots"][0]["hours"], of_cpus["advice"]) == ({"CPU": 1.0}, [])
    assert of_gpus["resource_usage"] is None
    assert [trial["usage"]["peak_reserved_bytes"] for trial in of_gpus["trials"]] == [2 * GIB, int(2.9 * GIB)]
    assert of_gpus["advice"] == [
        "the peak was 2.9 of 8.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead of 2",
        "the run had no PolicyCallback, so the use of CPUs, devices and slots is not known. Run again with "
        "run(train_fn, policy, callbacks=[PolicyCallback()]), or set RAY_TUNE_CALLBACKS=tune_policies.PolicyCallback "
        "for any program",
    ]


def learned_in(folder):
    """Write what a run has learned from four trials to its folder, and return the file."""
    used = TrialNeed(cpus=0.09, host_memory_bytes=300 * MIB)
    seen = [TrialObservation(trial_id=str(number), used=used, ended=True) for number in range(4)]
    file = folder / "learned_policy.json"
    file.write_text(LearningPolicy(CpuPolicy()).learn(seen).to_json())
    return file


def test_the_command_prints_what_the_policy_of_the_run_has_learned_and_how_to_use_it(cpu_folder):
    file = learned_in(cpu_folder)

    learned = 'learned from 4 trials: CpuPolicy(cpus=0.1, memory="336MiB"). Next time, write load_policy('
    assert load_usage(cpu_folder).advice[-1] == f'{learned}"{file}"), or tune-policies exec {file} program.py'
    page = cpu_folder / "page.html"
    usage(cpu_folder, "--html", page)
    assert f"L{learned[1:]}" in html.unescape(page.read_text())


@pytest.mark.parametrize("has_learned", [False, True], ids=["without a LearningPolicy", "with a LearningPolicy"])
def test_the_usage_of_a_callback_contains_what_the_run_has_learned_like_load_usage(has_learned, cpu_folder):
    if has_learned:
        learned_in(cpu_folder)
    callback = PolicyCallback()
    callback._storage = SimpleNamespace(experiment_fs_path=str(cpu_folder))
    callback._final = load_usage(cpu_folder).resource_usage

    assert callback.usage == load_usage(cpu_folder)
    assert (callback.usage.learned is not None) == has_learned


def test_a_policy_file_that_cannot_be_read_does_not_stop_the_command(cpu_folder):
    (cpu_folder / "learned_policy.json").write_text("{}")

    assert usage(cpu_folder).exit_code == 0


def test_the_command_writes_a_plot_to_a_file(run_folder, tmp_path):
    plot = tmp_path / "usage.svg"

    done = usage(run_folder, "--plot", plot)

    assert done.exit_code == 0, done.stderr
    assert "<svg" in plot.read_text()


def test_without_gpu_memory_the_plot_shows_the_trials_in_each_slot(cpu_folder, tmp_path):
    spans = [
        TrialSpan(trial=name, slot="1 CPU", place=0, began_s=at, ended_s=at + 2, end="failed") for name, at in BARS
    ]
    (cpu_folder / USAGE_FILE).write_text(ResourceUsage(is_final=True, elapsed_s=9, spans=tuple(spans)).to_json())

    done = usage(cpu_folder, "--html", tmp_path / "page.html", "--plot", tmp_path / "usage.svg")

    assert done.exit_code == 0, done.stderr
    assert "<svg" in (tmp_path / "usage.svg").read_text()
    assert (tmp_path / "page.html").exists()


BARS = [("a", 0), ("b", 3)]


def test_without_anything_to_plot_the_error_contains_what_to_pass_to_the_run(cpu_folder, tmp_path):
    (cpu_folder / USAGE_FILE).unlink()

    done = usage(cpu_folder, "--plot", tmp_path / "usage.svg")

    assert done.exit_code == 2
    assert "run again with callbacks=[PolicyCallback()]" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "error: /nowhere is not a folder. Pass the results folder of a Tune or Train run"),
        (
            ["RUN", "--plot", "/nowhere/plot.png"],
            "error: /nowhere/plot.png cannot be written: its folder does not exist",
        ),
        (["RUN", "--plot", "/tmp/plot.nonsense"], "error: cannot write the plot to /tmp/plot.nonsense"),
    ],
)
def test_invalid_usage_causes_exit_status_2_and_a_message(run_folder, arguments, message):
    done = usage(*(run_folder if argument == "RUN" else argument for argument in arguments))

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_the_error_for_missing_matplotlib_contains_the_install_command(run_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)

    done = usage(run_folder, "--plot", tmp_path / "usage.png")

    assert done.exit_code == 2
    assert done.stderr == "error: a plot requires matplotlib. Run: pip install 'tune-policies[bench]'\n"


def test_with_html_the_command_writes_the_page_and_prints_only_its_name(run_folder, tmp_path):
    done = usage(run_folder, "--html", tmp_path / "page.html")

    assert (done.exit_code, done.stdout.replace("\n", "")) == (0, str(tmp_path / "page.html"))
    assert "train_1" in (tmp_path / "page.html").read_text()
