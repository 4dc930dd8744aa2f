"""Tests of the page of a run in a real browser on narrow and wide screens in light and dark mode."""

import json

import pytest
from typer.testing import CliRunner

from tests.package.browser import PROBLEMS, SCREENS, Browser, look_at, needs_chromium
from tune_policies.cli.main import app
from tune_policies.files.html_page import colour_variable, html_page
from tune_policies.files.svg import COLORS
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, RunUsage, TrialGpuMemory
from tune_policies.trainers.usage.resource_usage import (
    USAGE_FILE,
    IdleHours,
    OutOfMemoryCounts,
    PlanInUse,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
    TrialSpan,
)
from tune_policies.trainers.usage.run_page import build_run_page
from tune_policies.trainers.usage.usage_pictures import plot_usage

GIB = 2**30
HOSTILE = '<script>alert(1)</script>&"$x_$ |`*[a](b)\n\x1b[31m'
PLAN = "3 trials at once, limited by GPU\n  2 with 1 CPU, 0.5 GPU\n  1 with 2 CPUs\n  - CPUs are what the GPUs leave"


def memory(gib, share_gib=8, **fields):
    return GpuMemoryUsage(gpus=0.5, share_bytes=share_gib * GIB, peak_reserved_bytes=int(gib * GIB), **fields)


def span(number, slot, place, began_s, ended_s, end, name="train_ab12c", **fields):
    ends = {"ended_s": ended_s, "end": end}
    return TrialSpan(trial=f"{name}_{number:05}", slot=slot, place=place, began_s=began_s, **ends, **fields)


def a_run(name="train_ab12c"):
    """Return a run of 30 minutes in slots with half a GPU or only CPUs, with failures and a retry with more memory."""
    gpu, cpu, whole = "1 CPU, 0.5 GPU", "2 CPUs", "2 CPUs, 1 GPU"
    oom = {"out_of_memory": True, "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."}
    spans = (
        span(0, gpu, 0, 6, 290, "finished", name),
        span(1, gpu, 1, 6, 130, "tried_again", name, **oom),
        span(2, cpu, 0, 7, 800, "stopped_early", name),
        span(1, whole, 0, 140, 560, "finished", name),
        span(3, gpu, 0, 570, 700, "failed", name, error=f"ValueError: {name} has no luck"),
        span(4, gpu, 1, 575, 1200, "paused", name),
        span(5, gpu, 0, 705, 1790, "cut_off", name),
        span(6, cpu, 0, 803, None, None, name),
    )
    idle = (IdleHours(reason="trials were starting, or waited for Ray to place them", hours=0.1),)
    usage = ResourceUsage(
        is_final=True,
        elapsed_s=1800,
        resources=(ResourceHours(resource="GPU", total_hours=0.5, used_hours=0.4, idle=idle),),
        trials=TrialCounts(num_finished=2, num_stopped_early=1, num_failed=1, num_cut_off=2, num_retries=1),
        out_of_memory=OutOfMemoryCounts(num_gpu_errors=1, num_raised=1),
        max_trials_at_once=3,
        num_rounds=3,
        plans=(PlanInUse(at_s=0, why="", text=PLAN), PlanInUse(at_s=900, why="1 node added", text=f"{PLAN}\n{name}")),
        spans=spans,
    )
    trials = (
        TrialGpuMemory(name=f"{name}_00000_0_lr=0.1", usage=memory(3)),
        TrialGpuMemory(
            name=f"{name}_00001_1_lr=0.2",
            usage=memory(9.4, share_gib=16),
            of_smaller_shares=(memory(7.9, num_ooms=1),),
        ),
        TrialGpuMemory(name=f"{name}_00005_5_lr=0.5", usage=memory(8.3, share_kept=False)),
        TrialGpuMemory(name=f"{name}_00002_2_on_cpus"),
    )
    return RunUsage(trials=trials), usage


def many():
    """Return a run with more trials and slots than the page shows."""
    spans = tuple(span(n, "0.01 GPU", n % 400, n // 400 * 50, n // 400 * 50 + 45, "finished") for n in range(2000))
    trials = tuple(TrialGpuMemory(name=f"train_ab12c_{n:05}", usage=memory(1 + n % 70 / 10)) for n in range(200))
    return RunUsage(trials=trials), ResourceUsage(elapsed_s=250, spans=spans)


def short():
    """Return a run with an empty record."""
    return RunUsage(trials=(TrialGpuMemory(name="train_ab12c_00000"),)), ResourceUsage()


RUNS = {"full": a_run(), "hostile": a_run(HOSTILE), "many": many(), "short": short(), "no record": (a_run()[0], None)}


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, run in RUNS.items():
        (folder / f"{name}.html").write_text(html_page(build_run_page(name, *run)))
    browser = Browser(folder / "chromium")
    try:
        return {(name, *each): look_at(browser, folder / f"{name}.html", *each) for name in RUNS for each in SCREENS}
    finally:
        browser.close()


@needs_chromium
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_page_has_no_problem_on_any_screen(looks, problem):
    assert {screen: look[problem] for screen, look in looks.items() if look[problem]} == {}


def sections(content):
    return {section.title: section for section in content.sections}


def test_the_page_starts_with_the_advice():
    content = build_run_page("tuned", *a_run())

    assert [section.title for section in content.sections] == [
        *("Advice", "Plan", "Slots", "Failures and retries", "GPU memory"),
    ]
    assert content.sections[0].texts[-1].startswith("20% of the GPU time was idle while trials started")
    assert content.summary == "LearningPolicy() would run 1 of these trials at once on a GPU of 16 GiB."


@pytest.mark.parametrize(
    ("hours", "advice"),
    [
        pytest.param(
            {"not in the plan: reserved for others by the policy": 2},
            "There is nothing to change.",
            id="only resources that the policy reserves",
        ),
        pytest.param(
            {"not in the plan: reserved for others by the policy": 2, "no trial was waiting": 1},
            "25% of the CPU time was idle for one reason: no trial was waiting.",
            id="also waiting for trials",
        ),
    ],
)
def test_resources_that_the_policy_leaves_free_cause_no_advice(hours, advice):
    idle = tuple(IdleHours(reason=reason, hours=each) for reason, each in hours.items())
    usage = ResourceUsage(resources=(ResourceHours(resource="CPU", total_hours=4, used_hours=1, idle=idle),))
    run = RunUsage(trials=(TrialGpuMemory(name="a", usage=memory(0)),))

    assert build_run_page("run", run, usage).summary == advice


def test_the_title_of_each_bar_contains_the_trial_its_times_and_its_end():
    (picture,) = sections(build_run_page("tuned", *a_run()))["Slots"].pictures

    assert picture.figure.count("<title>train_ab12c_0000") == 8
    assert "train_ab12c_00001: 6.0 s to 2.2 min, out of memory torch.OutOfMemoryError" in picture.figure


def test_the_plot_of_a_run_has_the_colors_of_the_page(tmp_path):
    (picture,) = sections(build_run_page("tuned", *a_run()))["Slots"].pictures

    plot_usage(RunUsage(trials=()), tmp_path / "slots.svg", a_run()[1])

    plot = (tmp_path / "slots.svg").read_text()
    on_page = {color for color in COLORS if colour_variable(color) in picture.figure}
    assert {color for color in COLORS if color.lower() in plot} == on_page


def test_the_table_of_failures_shows_which_trials_were_retried():
    (table,) = sections(build_run_page("tuned", *a_run()))["Failures and retries"].tables

    assert [(row[0], row[3]) for row in table.rows] == [
        ("train_ab12c_00001", "retried"),
        ("train_ab12c_00003", "failed"),
    ]


@pytest.mark.parametrize(("num_ooms", "num_rows"), [(0, 0), (1, 2)], ids=["no trial has facts", "a trial failed"])
def test_trials_without_known_peaks_are_in_the_table_only_if_a_trial_ran_out_of_memory(num_ooms, num_rows):
    known = {
        "0.5 GPU": GpuMemoryUsage(gpus=0.5),
        "8 GiB": GpuMemoryUsage(gpus=0.5, share_bytes=8 * GIB, num_ooms=num_ooms),
    }
    run = RunUsage(trials=tuple(TrialGpuMemory(name=name, usage=usage) for name, usage in known.items()))

    memory_section = sections(build_run_page("rehearsed", run, None))["GPU memory"]

    assert memory_section.pictures == ()
    assert sum(len(table.rows) for table in memory_section.tables) == num_rows
    assert "are not known" in memory_section.texts[0]


def test_the_page_of_a_run_without_gpus_has_no_section_about_gpu_memory():
    record = ResourceUsage(is_final=True, slots=(SlotHours(slot="1 CPU", hours={"CPU": 1.0}),))

    page = build_run_page("on-cpus", RunUsage(trials=(TrialGpuMemory(name="a"),)), record)

    assert "GPU memory" not in sections(page)


def usage(*arguments):
    return CliRunner().invoke(app, ["usage", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files that Tune and PolicyCallback write."""
    trial = tmp_path / "run" / "train_ab12c_00000_0_lr=0.1_2026-01-01_00-00-00"
    trial.mkdir(parents=True)
    (trial / "result.json").write_text(json.dumps({"gpu_memory": memory(3).to_result()}))
    (tmp_path / "run" / USAGE_FILE).write_text(a_run()[1].to_json())
    return tmp_path / "run"


def test_an_invalid_record_is_an_error(folder, tmp_path):
    (folder / USAGE_FILE).write_text("{}[")

    done = usage(folder, "--html", tmp_path / "run.html")

    assert done.exit_code == 2
    assert USAGE_FILE in done.stderr
