"""Tests that every command and snippet on every page runs.

A ``console`` block contains commands after ``$``, each followed by its output. A ``yaml`` or ``json`` block starts with
a comment that contains the file name, and a ``python`` block may also start with such a comment. The other ``python``
blocks of a page form one program, in their order on the page. In an output, a line that contains only an ellipsis
matches any number of lines.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.evidence.__main__ import app as evidence
from tune_policies import ClusterCapacity, CpuPolicy, GpuDevice, GpuMemoryPolicy, NodeCapacity, Resources
from tune_policies.benchmarks.cli import app as benchmarks

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Run these targets with ``--dry-run``. Each of them runs this test, runs separately in continuous integration, creates
# or deletes an environment, needs a GPU, or has its own test.
DRY_RUN = {
    *("make check", "make docs", "make test", "make test-rest", "make test-all", "make clean", "make test-gpu"),
    *("make demo", "make test-ray RAY=2.50.0"),
}
SHOWN = {"tune-policies bench": benchmarks, ".venv/bin/python -m tests.evidence": evidence}
FENCE = re.compile(r"^```(\w*|\{eval-rst\})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# \w+\.py\n")
IN_ITS_ENVIRONMENT = Path(sys.prefix) == ROOT / ".venv"


def blocks(page, language):
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def files(page):
    named = [body for body in blocks(page, "python") if NAMED.match(body)]
    for body in blocks(page, "yaml") + blocks(page, "json") + named:
        first, _, _ = body.partition("\n")
        yield first.lstrip("# "), body


def program(page):
    return "\n".join(body for body in blocks(page, "python") if not NAMED.match(body))


def matches(shown, output):
    """Return whether the output is equal to ``shown``. Trailing blanks are ignored, because editors remove them."""
    without_padding = re.sub(r" +$", "", output, flags=re.MULTILINE)
    return re.fullmatch(re.escape(shown).replace("…\\\n", "(?:.*\n)*"), without_padding)


def commands(page):
    """Yield each command with the output below it."""
    for body in blocks(page, "console"):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def shown_commands(page):
    """Yield the app and the arguments of each command that the tests do not run, because it is slow or needs a GPU."""
    for body in blocks(page, ""):
        for program, app in SHOWN.items():
            for arguments in re.findall(rf"^(?:\$ )?{re.escape(program)} (.+)$", body, re.MULTILINE):
                yield app, shlex.split(arguments)


def name(page):
    return page.relative_to(ROOT).as_posix()


# Programs that start Ray instances. Other tests in `make test` and `make test-rest` cover the topics of these pages.
SLOW_PROGRAMS = {
    *("autoscaling", "data-and-serve", "index", "migrate", "mixed-clusters", "notebooks", "out-of-memory", "pbt"),
    *("right-size", "rllib", "shared-gpus", "trackers", "train", "train-in-tune", "usage"),
}
SLOW_COMMANDS = {
    "benchmarks",
    "cost",
    "gpu-memory",
    "index",
    "libraries",
    "plain-tune-failures",
    "pbt",
    "plans",
    "sizing",
}


def is_slow(page, slow):
    return page.stem in slow or page.parent.name == "benchmarks"


def marked(page, slow):
    """Return the page as a parameter that only `make test-rest` or `make test-all` runs."""
    return pytest.param(page, marks=pytest.mark.slow if is_slow(page, slow) else pytest.mark.rest)


@pytest.fixture
def environment(isolated_environment):
    return page_environment(isolated_environment)


def page_environment(environment):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**environment, "PATH": path, "COLUMNS": "120"}


def run_command(command, folder, environment):
    if command.startswith("make"):
        folder = ROOT
        if command in DRY_RUN:
            command = command.replace("make", "make --dry-run", 1)
    elif command.startswith(".venv/bin/"):
        folder, command = ROOT, command.removeprefix(".venv/bin/")
    elif command.startswith("pip install"):
        folder, command = ROOT, f"python -m {command} --dry-run --no-deps --no-build-isolation --quiet"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("page", [marked(page, SLOW_COMMANDS) for page in PAGES if any(commands(page))], ids=name)
@pytest.mark.timeout(600)
def test_the_commands_of_a_page_run_and_print_the_shown_output(page, tmp_path, environment):
    if not IN_ITS_ENVIRONMENT and any(command.startswith("make") for command, _ in commands(page)):
        pytest.skip("make uses .venv, but this is another environment")
    for file, content in files(page):
        (tmp_path / file).write_text(content)

    for command, output in commands(page):
        done = run_command(command, tmp_path, environment)

        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert not output.strip() or matches(output, done.stdout), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(shown_commands(page))], ids=name)
def test_commands_and_options_that_a_page_shows_but_the_tests_do_not_run_exist(page):
    for app, arguments in shown_commands(page):
        context = typer.main.get_command(app).make_context("", [*arguments])
        while hasattr(context.command, "resolve_command"):
            found, command, arguments = context.command.resolve_command(context, arguments)
            context = command.make_context(found, [*arguments], parent=context)


def test_every_relative_link_on_a_page_points_to_a_file():
    links = {page: re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()) for page in PAGES}

    assert [
        (name(page), link)
        for page, found in links.items()
        for link in found
        if "://" not in link and not (page.parent / link).exists()
    ] == []


def anchors(page):
    """Return the anchors of a page: its headings as GitHub and MyST write them, and its explicit targets."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


# Sphinx checks the anchors of the pages in docs.
@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=name)
def test_every_anchor_in_a_link_of_a_page_outside_the_site_exists(page):
    links = re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", page.read_text())

    assert [link for link in links if link[1] not in anchors(page.parent / link[0])] == []


def test_every_code_block_has_a_language_that_the_tests_support():
    languages = {language for page in PAGES for language, _ in FENCE.findall(page.read_text())}

    assert languages <= {"", "console", "python", "yaml", "json", "diff", "{eval-rst}"}


H100 = GpuDevice(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=81_559 * 2**20)
MACHINE = NodeCapacity(node_id="gpu", resources=Resources(cpus=8, gpus=1), accelerator_type="H100", devices=(H100,))
FRONT_PAGE_CLUSTER = ClusterCapacity(nodes=(MACHINE,))
FRONT_PAGE_PLAN = (GpuMemoryPolicy(gpu_memory="18GiB") | CpuPolicy(cpus=1)).plan(FRONT_PAGE_CLUSTER)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=name)
def test_a_front_page_shows_the_plan_of_its_policy(page):
    (call,) = re.findall(
        r"`(GpuMemoryPolicy\(.*?\) \| CpuPolicy\(.*?\))`: a GPU fraction with 18 GiB", page.read_text()
    )
    (shown,) = [body for body in blocks(page, "") if "trials at once" in body]

    assert call == 'GpuMemoryPolicy(gpu_memory="18GiB") | CpuPolicy(cpus=1)'
    assert matches(shown, FRONT_PAGE_PLAN.explain() + "\n")


def test_the_front_pages_have_the_same_first_program():
    readme, index = (program(ROOT / page) for page in ("README.md", "docs/index.md"))

    assert readme == index
