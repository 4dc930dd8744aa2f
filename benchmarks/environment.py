"""The machine and the versions, to stand beside a figure."""

from .record.environment_reader import read_environment


def describe_machine(*packages: str) -> str:
    """Return CPU, cores, Python and package versions in one line; ``packages`` beside those that all figures need."""
    named = ("tune-policies", "pydantic", "ray", *packages)
    machine = read_environment(named)
    versions = ", ".join(f"{name} {machine.versions.get(name, 'not installed')}" for name in named)
    return f"{machine.cpu_model}, {machine.num_cpus} cores; Python {machine.python}, {versions}"
