"""``tune-policies exec`` runs a program like Python, and applies a policy to its Tune runs."""

import socket
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "tune_policies", "exec"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "policy.yaml").write_text("kind: CpuPolicy\ncpus: 2\n")
    return tmp_path


def execute(folder, *arguments):
    command = [*COMMAND, "policy.yaml", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, check=False)


def test_a_script_keeps_its_arguments_output_streams_and_exit_status(folder):
    lines = ["import sys", "print(sys.argv)", "print('problem', file=sys.stderr)", "sys.exit(3)"]
    (folder / "script.py").write_text("\n".join(lines))

    done = execute(folder, "script.py", "--policy", "x", "--help")

    assert (done.returncode, done.stdout) == (3, "['script.py', '--policy', 'x', '--help']\n")
    assert done.stderr == "problem\n"


@pytest.mark.rest
def test_the_option_m_runs_a_module(folder):
    (folder / "own").mkdir()
    (folder / "own" / "__main__.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")

    done = execute(folder, "-m", "own", "--fast")

    assert (done.returncode, done.stdout) == (0, "__main__ ['--fast']\n")


@pytest.mark.rest
def test_an_error_in_the_program_prints_its_traceback_and_exits_with_1(folder):
    (folder / "script.py").write_text("def own():\n    raise LookupError('mine')\n\n\nown()\n")

    done = execute(folder, "script.py")

    assert done.returncode == 1
    assert done.stderr.endswith("in own\n    raise LookupError('mine')\nLookupError: mine\n")


def test_a_run_fails_immediately_if_the_cluster_in_ray_address_is_gone(folder, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    (folder / "script.py").write_text("from ray import tune\n\ntune.run(lambda config: {'loss': 1})\n")

    done = execute(folder, "script.py")

    assert done.returncode == 1
    assert f"ProbeError: no Ray cluster responds at '{address}'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing.py"], "program 'missing.py' does not exist"), (["-m"], "-m requires the name of a module")],
)
def test_a_missing_program_is_an_error(folder, arguments, message):
    done = execute(folder, *arguments)

    assert done.returncode == 2
    assert message in done.stderr


TUNE_SCRIPT = """
import ray
from ray import tune

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
found = tune.run(lambda config: {"loss": 1}, num_samples=2, storage_path=".", verbose=0)
print([trial.last_result["slot"] for trial in found.trials])
"""


@pytest.mark.rest
def test_the_policy_applies_to_the_tune_runs_of_a_program(folder):
    (folder / "script.py").write_text(TUNE_SCRIPT.replace('"."', repr(str(folder))))

    done = execute(folder, "script.py")

    assert done.returncode == 0, done.stderr
    assert "['2 CPUs', '2 CPUs']" in done.stdout
    assert done.stdout.startswith("2 trials at once, limited by CPU\n  each trial: 2 CPUs\n")
