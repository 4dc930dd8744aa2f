"""Tests that the Python code on every page runs.

The tests are not in ``test_pages.py``, so that both files can run in parallel.
"""

import subprocess
import sys

import pytest

from tests.package.test_pages import PAGES, SLOW_PROGRAMS, files, is_slow, name, page_environment, program

WITH_PROGRAMS = [page for page in PAGES if program(page)]
README = [page for page in WITH_PROGRAMS if page.name == "README.md"]
SLOW = [page for page in WITH_PROGRAMS if is_slow(page, SLOW_PROGRAMS)]
# Programs with their own ray.init are last, so that the other programs share one Ray instance.
OTHERS = sorted(set(WITH_PROGRAMS) - {*README, *SLOW}, key=lambda page: ("ray.init" in program(page), page))

RUN_ALL = """
import os, pathlib, runpy, sys
import ray
for folder in sys.argv[1:]:
    if "ray.init" in pathlib.Path(folder, "page.py").read_text():
        ray.shutdown()
    print("the program of", folder, flush=True)
    os.chdir(folder)
    sys.path[0] = folder
    runpy.run_path("page.py", run_name="__main__")
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(README, id="README.md", marks=pytest.mark.rest),
        pytest.param(OTHERS, id="other pages", marks=pytest.mark.rest),
        *(pytest.param([page], id=name(page), marks=pytest.mark.slow) for page in SLOW),
    ],
)
def test_the_python_code_of_a_page_runs(pages, tmp_path, isolated_environment):
    folders = [tmp_path / name(page).replace("/", "-") for page in pages]
    for folder, page in zip(folders, pages, strict=True):
        folder.mkdir()
        for file, content in files(page):
            (folder / file).write_text(content)
        (folder / "page.py").write_text(program(page))

    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *map(str, folders)],
        cwd=tmp_path,
        env=page_environment(isolated_environment),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
