"""Tests of reports on narrow and wide screens in light and dark mode, and of the command that writes them."""

import itertools
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from tests.package.browser import PROBLEMS, SCREENS, Browser, look_at, needs_chromium
from tests.reports import a_decision, a_packing_record
from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.compare.compare_devices import verdicts
from tune_policies.benchmarks.record.run_set import Failure, Phase
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.benchmarks.report.content import build_content
from tune_policies.benchmarks.report.figures import (
    STROKES,
    cost_figure,
    crossover_figure,
    packing_figure,
    speedup_figure,
)
from tune_policies.benchmarks.report.page import html_page
from tune_policies.files.html_page import ON_DARK

HOSTILE = '<script>alert(1)</script>&"$x_$ |`*[a](b)'
LONG = "my_own_package.training_loops.vision:resnet50_with_a_name_that_is_too_long"


def hostile_run_set():
    named = {"workloads": (HOSTILE, LONG), "missing": (HOSTILE,), "command": f"tune-policies bench run {HOSTILE}\n```"}
    run_set = a_run_set(**named, sizes=(16, 64, 256), num_rounds=3)
    failure = Failure(
        configuration=run_set.configurations[0], round=0, kind="raised", message=f"ValueError: {HOSTILE}\n# no heading"
    )
    environment = run_set.environment.model_copy(update={"cpu_model": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    return run_set.model_copy(update={"failures": (failure,), "environment": environment})


def small(**fields):
    return a_run_set(**{"workloads": ("mlp",), "sizes": (16,), "num_rounds": 2, **fields})


def without_runs(**fields):
    return small().model_copy(update={"runs": (), **fields})


def with_times_that_lie_far_apart():
    run_set = small(has_failure=False)
    first, *others = run_set.runs
    slow = tuple(block.model_copy(update={"seconds": block.seconds * 500}) for block in first.blocks)
    return run_set.model_copy(update={"runs": (first.model_copy(update={"blocks": slow}), *others)})


def without_blocks():
    run_set = small(sizes=(16, 64))
    bare = {"blocks": (), "peak_host_bytes": None, "peak_gpu_bytes": None}
    return run_set.model_copy(update={"runs": tuple(run.model_copy(update=bare) for run in run_set.runs)})


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    """Return the problems, messages and requests of each page on each screen."""
    contents = {
        "full": build_content(a_run_set(), a_decision(), a_packing_record()),
        "hostile": build_content(hostile_run_set(), a_decision(HOSTILE), a_packing_record(HOSTILE)),
        "sweep": build_content(small(sizes=[2**power for power in range(14)])),
    }
    folder = tmp_path_factory.mktemp("pages")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(html_page(content))
    yield {
        (page, *screen): look_at(browser, folder / f"{page}.html", *screen)
        for page, screen in itertools.product(contents, SCREENS)
    }
    browser.close()


@needs_chromium
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_page_has_no_problem_on_any_screen(looks, problem):
    assert {screen: look[problem] for screen, look in looks.items() if look[problem]} == {}


@needs_chromium
def test_a_page_supports_dark_mode_and_has_every_kind_of_figure(looks):
    assert {screen[2] for screen, look in looks.items() if look["dark"]} == {"dark"}
    assert {screen[2] for screen, look in looks.items() if not look["dark"]} == {"light"}
    # Each of the two workloads has three figures of times and one of the speed-up. One workload also has one figure of
    # the cost and one of the packing.
    assert looks["full", 1280, "light"]["num_figures"] == 2 * (3 + 1) + 1 + 1


FLAWED = """<!DOCTYPE html><link rel="icon" href="data:,"><body style="background: white">
<p id="a" style="color: #999">faint</p><p id="a" style="font-size: 6px">small</p><p style="width: 2000px">wide</p>
<figure><svg viewBox="0 0 100 100" width="100" aria-label="flawed"><text x="10" y="40">one</text>
<text x="12" y="42">two</text><text x="90" y="90">cut off</text><use xlink:href="#none"/></svg></figure>
<script>console.error("printed")</script><img src="missing.png" alt="">"""


@needs_chromium
def test_every_problem_of_a_flawed_page_is_detected(tmp_path):
    (tmp_path / "flawed.html").write_text(FLAWED)
    browser = Browser(tmp_path / "chromium")

    look = look_at(browser, tmp_path / "flawed.html", 1280, "light")

    browser.close()
    assert [problem for problem in PROBLEMS if not look[problem]] == []


def test_unprintable_characters_of_a_name_are_replaced_in_a_figure():
    record = a_packing_record("mlp\x00\x1b[31m")

    assert "mlp\N{REPLACEMENT CHARACTER}" in html_page(build_content(small(), packing=record))


@pytest.mark.parametrize(
    ("run_set", "text"),
    [
        (small(devices=("cpu",), missing=("gpu",)), "GPU was not measured, so the report does not cover it"),
        (without_runs(failures=(), devices=(), noise=()), "Nothing was measured."),
        (without_blocks(), "No times with transfers were measured, so these are times of the phase first-epoch."),
        (with_times_that_lie_far_apart(), "All measurements"),
        (small(is_complete=False), "The run was interrupted before it was complete, so the intervals are wider"),
        (small(has_control=False, is_interleaved=False), "interleaved by process"),
    ],
    ids=[
        *("no GPU", "no measurements", "only first epochs", "outliers", "an incomplete run", "not interleaved"),
    ],
)
def test_the_page_of_an_unusual_run_describes_the_available_measurements(run_set, text):
    assert text in html_page(build_content(run_set))


def test_a_section_shows_only_its_first_figures_if_there_are_many_workloads():
    many = a_run_set(workloads=[f"w{number}" for number in range(10)], sizes=(16, 64), num_rounds=2)

    content = build_content(many)

    assert max(len(section.pictures) for section in content.sections) == 18
    assert "Each section shows its first 18 figures." in " ".join(content.sections[0].texts)


def contrast(color, ground):
    def luminance(text):
        parts = (int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(color), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


def test_every_line_contrasts_with_its_background_in_light_and_dark_mode():
    assert {stroke.color for stroke in STROKES} == set(ON_DARK)
    assert min(contrast(light, "#f6f7f9") for light in ON_DARK) > 3
    assert min(contrast(dark, "#1b2129") for dark in ON_DARK.values()) > 3


def test_every_log_axis_is_labeled_as_such():
    run_set, decision = small(), a_decision()
    figures = [
        crossover_figure(run_set, ["mlp"], Phase.COMPUTE),
        speedup_figure(verdicts(run_set, Phase.COMPUTE)),
        cost_figure(decision.workloads[0], decision.currency),
        packing_figure(a_packing_record(), "mlp"),
    ]

    axes = [axis for figure in figures for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    assert [axis.get_scale() == "log" for axis in axes] == ["log scale" in axis.get_label_text() for axis in axes]


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.json"
    write_run_set(small(), file)
    return file


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_command_prints_the_path_of_the_file_that_it_wrote(run_file, tmp_path):
    (tmp_path / "decision.json").write_text(a_decision().to_json())
    (tmp_path / "packing.json").write_text(a_packing_record().to_json())
    beside = ("--decision", tmp_path / "decision.json", "--packing", tmp_path / "packing.json")

    done = report(run_file, *beside, "--output", tmp_path / "report.html")

    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'report.html'}\n")
    assert "Trials per GPU" in (tmp_path / "report.html").read_text()


def test_the_command_refuses_invalid_arguments_with_a_hint(run_file, tmp_path):
    wrong, page = tmp_path / "wrong.json", tmp_path / "report.html"
    wrong.write_text("{}")
    cases = {
        "cannot read the run set": (tmp_path / "none.json", "--output", page),
        "it is a folder": (run_file, "--output", tmp_path),
        "is not a decision": (run_file, "--decision", wrong, "--output", page),
        "is not a record of throughput": (run_file, "--packing", wrong, "--output", page),
        "cannot be written": (run_file, "--output", tmp_path / "missing" / "report.html"),
    }

    done = {message: report(*arguments) for message, arguments in cases.items()}

    assert {message: (each.exit_code, message in each.stderr) for message, each in done.items()} == dict.fromkeys(
        cases, (2, True)
    )


def test_a_decision_from_another_run_is_mentioned():
    decision = a_decision().model_copy(update={"measured_at": datetime(2025, 12, 1, tzinfo=UTC)})

    verdict, *_ = build_content(small(), decision).sections

    note = "The decision is based on another run, measured at 2025-12-01 00:00 UTC on Example CPU and H200"
    assert any(note in text for text in verdict.texts)
