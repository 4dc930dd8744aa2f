"""Reads this machine, and the versions of its installed distributions, without importing them."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tune_policies.files.child_python import program_path
from tune_policies.probe.node_facts import (
    cgroup_memory_bytes,
    host_memory_bytes,
    installed_versions,
    read_usable_cpus,
)
from tune_policies.probe.nvml import NvmlError, read_driver
from tune_policies.values.sanitize import redacted

from .run_set import Environment, GpuFacts

PACKAGES: Final = (
    "tune-policies",
    "ray",
    "torch",
    "tensorflow",
    "jax",
    "numba",
    "numpy",
    "xgboost",
    "lightgbm",
    "pyperf",
)
"""The packages that decide how fast a workload is, and the ones that measure it."""

_OTHER_BUILDS: Final = {"tensorflow": "tensorflow-cpu", "xgboost": "xgboost-cpu"}
"""Distributions that contain the same package under another name."""

_GIT_TIMEOUT_S: Final = 5


def read_environment(packages: Iterable[str] = PACKAGES) -> Environment:
    """Return the machine, and the versions of the ``packages`` that are installed."""
    installed = installed_versions()
    versions = {name: installed.get(name) or installed.get(_OTHER_BUILDS.get(name, "")) for name in packages}
    commit = _git("rev-parse", "--verify", "HEAD")
    # Untracked files do not change the commit: results are written beside the code.
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else ""
    return Environment(
        cpu_model=_cpu_model(),
        num_cpus=os.cpu_count() or 1,
        usable_cpus=read_usable_cpus(),
        host_memory_bytes=host_memory_bytes(),
        cgroup_memory_bytes=cgroup_memory_bytes(),
        gpus=_gpus(),
        platform=platform.platform(),
        python=platform.python_version(),
        versions={name: version for name, version in versions.items() if version},
        commit=commit or None,
        has_changes=changes != "",  # also if Git did not answer in time
    )


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Return Git's output for the working directory, or ``None`` without a repository or a Git that answers."""
    # Otherwise Git refreshes its index and takes a lock that the user's own Git may run into.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    program = program_path("git")
    if program is None:
        return None
    # A repository may name a program that reports changes, and Git would run it.
    command = [program, "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are those above
            command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S, env=environment
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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
    """Return CPU, cores, Python and versions in one line: of ``packages``, and of those that every figure needs."""
    named = ("tune-policies", "pydantic", "ray", *packages)
    machine = read_environment(named)
    versions = ", ".join(f"{name} {machine.versions.get(name, 'not installed')}" for name in named)
    return f"{machine.cpu_model}, {machine.num_cpus} cores; Python {machine.python}, {versions}"


def own_command() -> str:
    """Return the running command as it can be typed again, without its secrets."""
    package = sys.modules["__main__"].__package__  # None in a script, such as the command ``tune-policies``
    program = f"python -m {package}" if package else Path(sys.argv[0]).name
    return redacted(f"{program} {shlex.join(sys.argv[1:])}")
