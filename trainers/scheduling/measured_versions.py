"""Checks that a measurement used the installed package versions."""

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from tune_policies.values.errors import InvalidResourcesError


def check_versions(measured_with: Mapping[str, str]) -> None:
    """Check that a measurement used the installed package versions.

    Packages that are not installed where the driver runs are not checked.

    Args:
        measured_with: The version of each package in the measurement, keyed by package name.

    Raises:
        InvalidResourcesError: The installed version of a package differs from the version in the measurement.
    """
    others = []
    for name, measured in sorted(measured_with.items()):
        found = _installed(name)
        if found not in (None, measured):
            others.append(f"{name} {measured} ({found} is installed)")
    if others:
        raise InvalidResourcesError(
            f"the plan uses a decision based on benchmarks with {', '.join(others)}. Measure again with the installed "
            "versions, or pass accept_other_versions=True to BenchmarkedPolicy"
        )


def _installed(name: str) -> str | None:
    for build in (name, f"{name}-cpu"):  # TensorFlow and XGBoost publish CPU-only builds with this suffix
        with suppress(PackageNotFoundError):
            return version(build)
    return None
