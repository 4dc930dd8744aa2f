"""The oldest NVIDIA driver with which a CUDA version runs.

Source: NVIDIA, "CUDA Compatibility", tables 1 and 2 (Linux):
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html. From CUDA 11 on, a driver that runs
one release of a major version runs them all.
"""

import re
from typing import Final

_MINIMUM: Final = {
    "13": "580",
    "12": "525",
    "11": "450",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
}


def minimum_driver(cuda: str) -> str | None:
    """Return the oldest driver for a CUDA version such as ``"12.8"``; ``None``: not in the table."""
    major, _, rest = cuda.partition(".")
    return _MINIMUM.get(major) or _MINIMUM.get(f"{major}.{rest.partition('.')[0]}")


def is_older(version: str, than: str) -> bool:
    """Return whether one version of dotted numbers is older than another; what follows the numbers does not count."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))
