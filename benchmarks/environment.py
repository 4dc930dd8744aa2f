"""The machine, the versions and the command, to stand beside a figure."""

import shlex
import sys
from pathlib import Path

from tune_policies.values.sanitize import redacted

from .record.environment_reader import read_environment


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
