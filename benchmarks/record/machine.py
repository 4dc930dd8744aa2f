"""Reads the hardware of this machine, and the versions of installed distributions without importing them."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tune_policies.probe.node_facts import (
    cgroup_memory_bytes,
    host_memory_bytes,
    installed_versions,
    read_usable_cpus,
)
from tune_policies.probe.nvml import NvmlError, read_driver
from tune_policies.values.sanitize import without_secrets

from .run_set import Environment, GpuFacts

FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "numba", "numpy", "xgboost", "lightgbm")
"""Packages whose version affects the speed of workloads."""

_OTHER_BUILDS: Final = {"tensorflow": "tensorflow-cpu", "xgboost": "xgboost-cpu"}
"""Another distribution that contains the same package, by package name."""


def read_environment(packages: Iterable[str] = ("tune-policies", "ray", *FRAMEWORKS)) -> Environment:
    """Return the hardware of this machine, and the versions of the ``packages`` that are installed."""
    installed = installed_versions()
    # Imports could use GPU memory, so only the metadata of the distributions is read.
    versions = {}
    for name in packages:
        version = installed.get(name) or installed.get(_OTHER_BUILDS.get(name, ""))
        if version:
            versions[name] = version
    return Environment(
        cpu_model=_cpu_model(),
        num_cpus=os.cpu_count() or 1,
        usable_cpus=read_usable_cpus(),
        host_memory_bytes=host_memory_bytes(),
        cgroup_memory_bytes=cgroup_memory_bytes(),
        gpus=_gpus(),
        platform=platform.platform(),
        python=platform.python_version(),
        versions=versions,
    )


def _cpu_model() -> str:
    # On Linux, ``platform.processor()`` is often empty or only the architecture.
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> tuple[GpuFacts, ...]:
    try:
        found = read_driver()
    except NvmlError:  # no driver
        return ()
    fields = ("name", "memory_bytes", "max_clock_mhz", "power_limit_w")
    return tuple(
        GpuFacts(driver=found["driver_version"], **{field: gpu[field] for field in fields}) for gpu in found["gpus"]
    )


def describe_machine(*packages: str) -> str:
    """Return one line with the CPU, its number of cores, and the versions of Python, Ray and other packages."""
    named = ("tune-policies", "pydantic", "ray", *packages)
    machine = read_environment(named)
    versions = ", ".join(f"{name} {machine.versions.get(name, 'not installed')}" for name in named)
    return f"{machine.cpu_model}, {machine.num_cpus} cores; Python {machine.python}, {versions}"


def own_command() -> str:
    """Return the command line of this process without secrets."""
    package = sys.modules["__main__"].__package__  # None in a script, such as the command ``tune-policies``
    program = f"python -m {package}" if package else Path(sys.argv[0]).name
    return without_secrets(f"{program} {shlex.join(sys.argv[1:])}")
