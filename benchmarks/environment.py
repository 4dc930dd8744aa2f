"""The machine and the versions, to stand beside a figure."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine(*packages: str) -> str:
    """Return CPU, cores, Python and package versions in one line; ``packages`` beside those that all figures need."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("tune-policies", "pydantic", "ray", *packages))
    return f"{_cpu_model()}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
