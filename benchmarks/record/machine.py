"""Reads the machine that it runs on, and the versions that are installed there.

It imports no framework, which would cost seconds: versions are those of installed distributions. What cannot be read is
left out.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tune_policies.files.child_python import program_path
from tune_policies.probe.doctor.node_reader import cgroup_memory_bytes, host_memory_bytes, installed_versions
from tune_policies.probe.node_facts import read_usable_cpus
from tune_policies.probe.nvml import NvmlError, read_driver
from tune_policies.values.sanitize import redacted

from .run_set import Environment, GpuFacts

PACKAGES: Final = (
    *("tune-policies", "ray", "torch", "tensorflow", "jax", "numba", "numpy", "xgboost", "lightgbm", "pyperf"),
)
"""What decides how fast something is, and what measures it."""

_OTHER_BUILDS: Final = {"tensorflow": ("tensorflow-cpu",), "xgboost": ("xgboost-cpu",)}
"""Distributions that hold the same package under another name."""

_GIT_TIMEOUT_S: Final = 5


def read_environment(packages: Iterable[str] = PACKAGES) -> Environment:
    """Return the machine, and the versions of those of ``packages`` that are installed."""
    installed = installed_versions()
    versions = {}
    for package in packages:
        if found := [installed[name] for name in (package, *_OTHER_BUILDS.get(package, ())) if name in installed]:
            versions[package] = found[0]
    commit = _git("rev-parse", "--verify", "HEAD")
    # Files that Git does not follow are none of the commit: results are written beside the code.
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
        versions=versions,
        commit=commit or None,
        has_changes=changes is None or changes != "",  # where it was not told in time, nobody can vouch for it
    )


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Return what Git says of the working directory; ``None``: there is no repository, or no Git that answers."""
    # It would else refresh its index, for which it takes a lock that the user's own Git may meet.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    program = program_path("git")
    if program is None:
        return None
    # A repository may name a program that tells Git of changes, which Git would run.
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
    except NvmlError:  # there is no driver
        return ()
    fields = ("name", "memory_bytes", "max_clock_mhz", "power_limit_w")
    return tuple(
        GpuFacts(driver=found["driver_version"], **{field: gpu[field] for field in fields}) for gpu in found["gpus"]
    )


def describe_machine(*packages: str) -> str:
    """Return CPU, cores, Python and package versions in one line; ``packages`` beside those that all figures need."""
    named = ("tune-policies", "pydantic", "ray", *packages)
    machine = read_environment(named)
    versions = ", ".join(f"{name} {machine.versions.get(name, 'not installed')}" for name in named)
    return f"{machine.cpu_model}, {machine.num_cpus} cores; Python {machine.python}, {versions}"


def own_command() -> str:
    """Return the command that runs, as it can be typed again but for its secrets."""
    package = sys.modules["__main__"].__package__  # None in a script, as the command ``tune-policies`` is one
    program = f"python -m {package}" if package else Path(sys.argv[0]).name
    return redacted(f"{program} {shlex.join(sys.argv[1:])}")
