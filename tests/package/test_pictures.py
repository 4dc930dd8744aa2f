"""Tests the picture of a plan on small and large screens in light and dark mode, and the pictures in docs."""

import shlex

import pytest
from typer.testing import CliRunner

from tests.clusters import gpu_node
from tests.package.benchmarks.test_report import look_at
from tests.package.browser import CHROMIUM, Browser
from tests.package.test_pages import FRONT_PAGE_CLUSTER, FRONT_PAGE_PLAN, ROOT, commands, files
from tune_policies import AutoscalingPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, MixedPolicy, Resources
from tune_policies.cli.main import app
from tune_policies.cluster.node import NodeTypeCapacity

LONG = "a-node-with-a-name-that-is-far-too-long-for-a-phone.example.internal"
SCREENS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
PAGE = (
    '<!DOCTYPE html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<link rel="icon" href="data:,">'
    "<style>body {{ background: #fff }} @media (prefers-color-scheme: dark) {{ body {{ background: #12161b }} }}"
    "figure {{ margin: 0 }}</style><figure>{}</figure>"
)


def plan_and_capacity():
    nodes = tuple(gpu_node(f"{LONG}-{i}", gpus=8, cpus=64, accelerator_type="A100") for i in range(3))
    kind = NodeTypeCapacity(name=LONG, resources=Resources(cpus=16, gpus=16), max_nodes_to_add=3)
    capacity = ClusterCapacity(nodes=(*nodes, gpu_node("c", gpus=0, cpus=18)), node_types=(kind,))
    policies = [GpuPolicy(gpus=0.05, accelerator_type="A100"), GpuPolicy(gpus=2), CpuPolicy(cpus=4)]
    return AutoscalingPolicy(MixedPolicy(*policies)).plan(capacity), capacity


@pytest.mark.rest
@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium, and there is none on the PATH")
def test_a_picture_is_readable_on_small_and_large_screens_in_light_and_dark_mode(tmp_path):
    plan, capacity = plan_and_capacity()
    page = tmp_path / "plan.html"
    page.write_text(PAGE.format(plan.plot(capacity).svg))
    browser = Browser(tmp_path / "chromium")
    try:
        looks = {screen: look_at(browser, page, *screen) for screen in SCREENS}
        browser.open(page, width=360, scheme="dark")
        size = "(each) => each.getAttribute('font-size') * each.getScreenCTM().d"
        smallest = browser.evaluate(f"Math.min(...[...document.querySelectorAll('text')].map({size}))")
        browser.screenshot(tmp_path / "plan.png")
    finally:
        browser.close()

    problems = ("printed", "requested", "scrolls_sideways", "wide", "faint", "small", "cut_off", "overlaps", "twice")
    assert {(screen, each): look[each] for screen, look in looks.items() for each in problems if look[each]} == {}
    assert smallest >= 11


@pytest.mark.parametrize("page", ["how-to/policies.md", "concepts.md"])
def test_the_picture_in_the_docs_equals_the_output_of_its_command(page, tmp_path, monkeypatch):
    page = ROOT / "docs" / page
    for name, content in files(page):
        (tmp_path / name).write_text(content)
    (command,) = [shlex.split(command) for command, _ in commands(page) if "--plot" in command]
    picture = command[command.index("--plot") + 1]
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(app, command[1 : command.index("--plot") + 2])

    assert done.exit_code == 0, done.output
    assert (tmp_path / picture).read_text() == page.with_name(picture).read_text()


def test_the_picture_of_the_front_pages_shows_the_plan_of_their_policy():
    picture = ROOT / "docs" / "first-plan.svg"

    assert picture.read_text() == FRONT_PAGE_PLAN.plot(FRONT_PAGE_CLUSTER).svg
