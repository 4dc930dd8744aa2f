"""Tests that the Python code on every page runs.

The tests are not in ``test_pages.py``, so that both files can run in parallel.
"""

import subprocess
import sys

import pytest

from tests.package.test_pages import PAGES, SLOW_PROGRAMS, files, marked, name, page_environment, program

WITH_PROGRAMS = [page for page in PAGES if program(page)]
# `make test` runs the README.
PROGRAMS = [page if page.name == "README.md" else marked(page, SLOW_PROGRAMS) for page in WITH_PROGRAMS]


@pytest.mark.ray
@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_the_python_of_a_page_runs(page, tmp_path, isolated_environment):
    for file, content in files(page):
        (tmp_path / file).write_text(content)
    (tmp_path / "page.py").write_text(program(page))

    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=page_environment(isolated_environment),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
