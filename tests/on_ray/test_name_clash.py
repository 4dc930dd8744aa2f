"""A user's project can contain packages named ``trainers`` and ``benchmarks``, in the driver and on Ray's workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tune_policies

pytestmark = pytest.mark.rest

INSTALLED = Path(tune_policies.__file__).parents[1]

SCRIPT = """
import os, sys
import ray
import trainers
import tune_policies
from ray import tune
from tune_policies import CpuPolicy, PolicyScheduler

assert trainers.OWNER == "user", trainers.__file__

def train_fn(config):
    import trainers, tune_policies  # the user's package, and this project
    tune.report({"owner": trainers.OWNER, "from": tune_policies.__file__, "gpus": os.environ["CUDA_VISIBLE_DEVICES"]})

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, runtime_env=RUNTIME_ENV, logging_level="ERROR", log_to_driver=False)
    scheduler = PolicyScheduler(CpuPolicy(cpus=1))
    trial, = tune.run(train_fn, scheduler=scheduler, storage_path=sys.argv[1], verbose=0).trials
    print("owner", trial.last_result["owner"], "from", trial.last_result["from"], "gpus", [trial.last_result["gpus"]])
    ray.shutdown()
"""

SHIPPED = '{"py_modules": [tune_policies]}'


@pytest.fixture
def project(tmp_path):
    for name in ("trainers", "benchmarks"):
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('OWNER = "user"\n')
    (tmp_path / "project" / "benchmarks" / "__main__.py").write_text('print("the user\'s own")\n')
    return tmp_path / "project"


def run(project, *arguments):
    # Put the user's project first on sys.path, as Python does for a script in that folder, and tune-policies second.
    environment = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{INSTALLED}"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_users_package_named_trainers_works_in_the_driver_and_in_trials(project, tmp_path):
    """Ray ships the source code of tune-policies to its workers."""
    (project / "tune_it.py").write_text(SCRIPT.replace("RUNTIME_ENV", SHIPPED))

    done = run(project, "tune_it.py", tmp_path / "results")

    assert "owner user from " in done.stdout, done.stderr
    assert "py_modules" in done.stdout
    assert "gpus ['']" in done.stdout


@pytest.mark.slow
def test_ray_can_ship_a_wheel_of_this_project_to_workers(project, tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, INSTALLED]
    subprocess.run(command, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    (project / "tune_it.py").write_text(SCRIPT.replace("RUNTIME_ENV", repr({"py_modules": [str(wheel)]})))

    done = run(project, "tune_it.py", tmp_path / "results")

    assert "owner user from " in done.stdout, done.stderr
    assert "py_modules" in done.stdout


ONE_COPY = """
import sys
import ray
import trainers.process.process_setup as short
import tune_policies.trainers.process.process_setup as long

def look(sent):
    import trainers.process.process_setup as short
    import tune_policies.trainers.process.process_setup as long
    return short is long, sent is short.ProcessSetup, long.ProcessSetup

if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, logging_level="ERROR", log_to_driver=False)
    one, same_there, came_back = ray.get(ray.remote(look).remote(short.ProcessSetup))
    print(short is long, one, same_there, came_back is short.ProcessSetup)
    ray.shutdown()
"""


def test_trainers_and_tune_policies_trainers_are_the_same_module_in_the_driver_and_in_workers(tmp_path):
    (tmp_path / "one_copy.py").write_text(ONE_COPY)

    done = run(tmp_path, "one_copy.py")

    assert done.stdout == "True True True True\n", done.stderr


def test_a_users_package_named_benchmarks_does_not_hide_tune_policies_benchmarks(project):
    theirs = run(project, "-m", "benchmarks")
    ours = run(project, "-m", "tune_policies.benchmarks", "show", "--help")

    assert theirs.stdout == "the user's own\n"
    assert "Show the results of a run" in ours.stdout, ours.stderr
