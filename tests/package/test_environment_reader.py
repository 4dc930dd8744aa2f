"""Tests that the record of the machine is complete, and that reading it does not import frameworks."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.stand_ins import state_counts, write_stand_ins
from tune_policies.benchmarks.record.machine import describe_machine, read_environment
from tune_policies.benchmarks.record.run_set import Environment

ROOT = Path(__file__).parents[2]
# Reading must not import a framework, because an import takes seconds and GPU memory.
READ = """
import sys
from tune_policies.benchmarks.record.machine import read_environment
print(read_environment().to_json())
assert not {"torch", "tensorflow", "jax", "numba", "ray"} & sys.modules.keys()
"""


def test_the_machine_has_the_python_the_cpus_and_the_versions_of_this_process():
    machine = read_environment()

    assert (machine.num_cpus, machine.python) == (os.cpu_count(), platform.python_version())
    assert machine.versions["ray"] == version("ray")
    assert machine.usable_cpus <= machine.num_cpus
    assert machine.host_memory_bytes > 2**28


def test_a_package_that_is_not_installed_has_no_version():
    assert read_environment(["numpy", "nonsense"]).versions.keys() == {"numpy"}


def read_in_a_process(folder, **environment):
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Environment.from_json(done.stdout)


def test_gpus_are_read_without_importing_a_framework_and_unreported_values_are_none(tmp_path):
    counts = write_stand_ins(tmp_path)
    state_counts(counts, total=2**34, free=2**33, devices=2)

    machine = read_in_a_process(tmp_path, STAND_IN_NVML=str(counts))

    assert [json.loads(gpu.to_json()) for gpu in machine.gpus] == [
        {
            "name": "Stand-in",
            "memory_bytes": 2**34,
            "driver": None,
            "max_clock_mhz": None,
            "power_limit_w": None,
        }
    ] * 2


def test_without_a_driver_there_is_no_gpu(tmp_path):
    write_stand_ins(tmp_path)

    assert read_in_a_process(tmp_path, STAND_IN_NVML=str(tmp_path / "none")).gpus == ()


def test_the_description_of_the_machine_lists_missing_packages():
    line = describe_machine("nonsense")

    assert line.endswith("nonsense not installed")
    assert f"{os.cpu_count()} cores; Python {platform.python_version()}, tune-policies " in line
