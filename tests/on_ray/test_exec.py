"""``tune-policies exec`` runs a program as Python would, with its Tune runs under a policy."""

import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "tune_policies", "exec"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "policy.yaml").write_text("kind: CpuPolicy\ncpus: 2\n")
    return tmp_path


def executed(folder, *arguments):
    command = [*COMMAND, "policy.yaml", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, check=False)


def test_a_script_has_its_arguments_its_streams_and_its_exit_status(folder):
    lines = ["import sys", "print(sys.argv)", "print('problem', file=sys.stderr)", "sys.exit(3)"]
    (folder / "script.py").write_text("\n".join(lines))

    done = executed(folder, "script.py", "--policy", "x", "--help")

    assert (done.returncode, done.stdout) == (3, "['script.py', '--policy', 'x', '--help']\n")
    assert done.stderr == "problem\n"


@pytest.mark.rest
def test_a_module_is_run_by_its_name(folder):
    (folder / "own").mkdir()
    (folder / "own" / "__main__.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")

    done = executed(folder, "-m", "own", "--fast")

    assert (done.returncode, done.stdout) == (0, "__main__ ['--fast']\n")


@pytest.mark.rest
def test_an_error_of_the_program_has_its_traceback_and_status_1(folder):
    (folder / "script.py").write_text("def own():\n    raise LookupError('mine')\n\n\nown()\n")

    done = executed(folder, "script.py")

    assert done.returncode == 1
    assert done.stderr.endswith("in own\n    raise LookupError('mine')\nLookupError: mine\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing.py"], "no such program 'missing.py'"), (["-m"], "-m requires the name of a module")],
)
def test_a_program_that_is_not_there_is_refused(folder, arguments, message):
    done = executed(folder, *arguments)

    assert done.returncode == 2
    assert message in done.stderr


TUNES = """
import ray
from ray import tune

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
found = tune.run(lambda config: {"loss": 1}, num_samples=2, storage_path=".", verbose=0)
print([trial.last_result["slot"] for trial in found.trials])
"""


@pytest.mark.rest
def test_the_runs_of_a_program_are_under_the_policy(folder):
    (folder / "script.py").write_text(TUNES.replace('"."', repr(str(folder))))

    done = executed(folder, "script.py")

    assert done.returncode == 0, done.stderr
    assert "['2 CPUs', '2 CPUs']" in done.stdout
    assert done.stdout.startswith("2 trials at once, limited by CPU\n  each trial: 2 CPUs\n")
