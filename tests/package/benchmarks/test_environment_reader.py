"""Tests that the record of the machine is complete, and that reading it does not import frameworks."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.stand_ins import state_counts, write_stand_ins
from tune_policies.benchmarks.record.machine import describe_machine, read_environment
from tune_policies.benchmarks.record.run_set import Environment, GpuFacts

ROOT = Path(__file__).parents[3]
# Reading must not import a framework, because an import takes seconds and GPU memory.
READ = """
import sys
from tune_policies.benchmarks.record.machine import read_environment
print(read_environment().to_json())
assert not {"torch", "tensorflow", "jax", "numba", "ray"} & sys.modules.keys()
"""


def test_the_record_contains_the_python_version_the_cpus_and_the_package_versions():
    machine = read_environment()

    assert (machine.num_cpus, machine.python) == (os.cpu_count(), platform.python_version())
    assert machine.versions["ray"] == version("ray")
    assert machine.usable_cpus <= machine.num_cpus
    assert machine.host_memory_bytes > 2**28
    assert read_environment(["numpy", "nonsense"]).versions.keys() == {"numpy"}


def test_gpus_are_read_without_importing_a_framework_and_unreported_values_are_none(tmp_path):
    counts = write_stand_ins(tmp_path)

    def read():
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "STAND_IN_NVML": str(counts)}
        done = subprocess.run(
            [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return Environment.from_json(done.stdout).gpus

    without_driver = read()
    state_counts(counts, total=2**34, free=2**33, devices=2)

    assert without_driver == ()
    assert read() == (GpuFacts(name="Stand-in", memory_bytes=2**34),) * 2


def test_the_description_of_the_machine_lists_missing_packages():
    line = describe_machine("nonsense")

    assert line.endswith("nonsense not installed")
    assert f"{os.cpu_count()} cores; Python {platform.python_version()}, tune-policies " in line
