"""A Python that this project starts runs no file of the working folder."""

import ast
import subprocess
from pathlib import Path

import pytest

from tune_policies.files.child_python import child_python

ROOT = Path(__file__).parents[2]
STARTS = "tune_policies/files/child_python.py"


@pytest.mark.parametrize("arguments", [("-c", "import random, json"), ("-m", "json.tool", "--help")])
def test_a_child_imports_nothing_of_the_working_folder(tmp_path, arguments):
    for name in ("random", "json", "argparse"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n")

    done = subprocess.run(child_python(*arguments), cwd=tmp_path, capture_output=True, check=False)

    assert (done.returncode, list(tmp_path.glob("ran-*"))) == (0, [])


@pytest.mark.parametrize("package", ["tune_policies", "trainers", "benchmarks"])
def test_every_child_is_started_in_this_way(package):
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }

    assert found <= {STARTS}
