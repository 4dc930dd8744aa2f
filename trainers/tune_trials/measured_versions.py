"""Whether what was measured holds here: the versions with which it was measured are those that are installed."""

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from tune_policies.errors import InvalidResourcesError


def check_versions(measured_with: Mapping[str, str]) -> None:
    """Raise unless every package that is installed here has the version with which was measured.

    What is not installed where the program runs, such as on a laptop, is not compared.

    Args:
        measured_with: Versions by package.

    Raises:
        InvalidResourcesError: Some have another version.
    """
    others = [
        f"{name} {measured} ({found} is installed)"
        for name, measured in sorted(measured_with.items())
        if (found := _installed(name)) not in (None, measured)
    ]
    if others:
        raise InvalidResourcesError(
            f"the plan goes by a decision that was measured with {', '.join(others)}: measure again with what is "
            "installed, or give BenchmarkedPolicy accept_other_versions=True"
        )


def _installed(name: str) -> str | None:
    for build in (name, f"{name}-cpu"):  # as TensorFlow and XGBoost call theirs without CUDA
        with suppress(PackageNotFoundError):
            return version(build)
    return None
