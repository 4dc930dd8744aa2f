"""Tests the display of this project's objects in a notebook that nbconvert executes and a browser renders."""

import json
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor

from tests.package.browser import CHROMIUM, Browser

CELLS = [
    """
from tests.decisions import a_decision
from tests.unit.planner.test_value_tables import a_run_usage, a_usage
from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, MixedPolicy, Resources

capacity = ClusterCapacity.of(*[Resources(cpus=32, gpus=2)] * 3, Resources(cpus=18))
plan = MixedPolicy(GpuPolicy(gpus=0.25), CpuPolicy(cpus=4)).plan(capacity)
""",
    *("capacity", "plan", "plan.plot(capacity)", "a_run_usage()", "a_usage()", "a_decision()"),
]


@pytest.mark.rest
@pytest.mark.filterwarnings("default")  # Jupyter itself causes warnings
def test_a_notebook_shows_values_as_tables_and_a_plan_as_a_picture(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    ExecutePreprocessor(timeout=120).preprocess(notebook, {"metadata": {"path": str(Path(__file__).parents[2])}})
    page = tmp_path / "notebook.html"
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0])

    shown = [cell.outputs[0].data for cell in notebook.cells[1:]]
    assert ["text/html" in data for data in shown] == [True, True, False, True, True, True]
    assert shown[2]["image/svg+xml"].startswith("<svg")
    assert json.dumps(shown).count("<table>") == 1 + 1 + 3 + 2 + 1
    if CHROMIUM:
        assert in_browser(page, tmp_path) == {"tables": 8, "rows": True, "picture": 360}


@pytest.mark.rest
@pytest.mark.filterwarnings("default")  # Jupyter itself causes warnings
def test_the_file_of_a_notebook_contains_no_color_codes_of_what_was_printed():
    code = "\n".join(
        [
            "from tests.unit.planner.test_value_tables import a_run_usage",
            "from tune_policies.files.terminal import TextConsole",
            "TextConsole().print(a_run_usage())",
            "print(a_run_usage())",
        ]
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    ExecutePreprocessor(timeout=120).preprocess(notebook, {"metadata": {"path": str(Path(__file__).parents[2])}})

    printed = [output.text for output in notebook.cells[0].outputs if output.get("name") == "stdout"]
    assert "Trial" in "".join(printed)
    assert r"\u001b" not in json.dumps(notebook.cells[0].outputs)


def in_browser(page, folder):
    browser = Browser(folder / "chromium")
    try:
        browser.open(page, width=1000, scheme="light")
        browser.screenshot(folder / "notebook.png")
        return browser.evaluate("""({
            tables: document.querySelectorAll(".jp-OutputArea table").length,
            rows: [...document.querySelectorAll(".jp-OutputArea tbody")].every((each) => each.offsetHeight > 10),
            picture: document.querySelector(".jp-OutputArea svg, .jp-OutputArea img").getBoundingClientRect().width,
        })""")
    finally:
        browser.close()
