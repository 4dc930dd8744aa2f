"""Tests that ``trainers`` and ``benchmarks`` in a checkout are aliases of the packages in ``tune_policies``."""

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tune_policies.trainers.process.process_setup import ProcessSetup

ROOT = Path(__file__).parents[2]


def run(code, *path):
    """Run a program in which ``sys.path`` lists the folders of ``path`` before the checkout, and return its output."""
    program = f"import sys; sys.path[:0] = {[*map(str, path), str(ROOT)]}\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("short", ["trainers", "trainers.gpu_memory.fraction_limits", "benchmarks.record.run_set"])
def test_the_short_and_the_long_name_import_the_same_module(short):
    module = import_module(short)

    assert module is import_module(f"tune_policies.{short}")
    assert module.__name__ == module.__spec__.name == f"tune_policies.{short}"


def test_only_one_copy_of_a_module_is_loaded_if_the_short_name_is_imported_first():
    code = """
import trainers.gpu_memory.fraction_limits as one
import tune_policies.trainers.gpu_memory.fraction_limits as other
loaded = {id(module) for name, module in sys.modules.items() if name.endswith(".gpu_memory.fraction_limits")}
print(one is other, len(loaded), sum(name.endswith("trainers") for name in sys.modules))
"""

    assert run(code) == "True 1 2\n"


def test_an_object_that_was_pickled_under_a_short_name_has_the_same_class():
    assert pickle.loads(b"ctrainers.process.process_setup\nProcessSetup\n.") is ProcessSetup


def test_the_error_for_a_missing_module_contains_its_short_name():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'trainers.nothing'$"):
        import_module("trainers.nothing")


def test_a_users_own_package_with_a_short_name_has_precedence(tmp_path):
    folder = tmp_path / "trainers" / "process"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "process_setup.py").write_text("OWNER = 'user'")
    first = """
import tune_policies.trainers.process.process_setup
import trainers.process.process_setup
print(trainers.process.process_setup.OWNER)
"""
    later = f"""
import trainers.process.process_setup
for name in [name for name in sys.modules if name.split(".")[0] == "trainers"]:
    del sys.modules[name]
sys.path.insert(0, {str(tmp_path)!r})
import trainers.process.process_setup
print(trainers.process.process_setup.OWNER)
"""

    assert (run(first, tmp_path), run(later)) == ("user\n", "user\n")
