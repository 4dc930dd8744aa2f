"""Whether a framework that has not been imported yet could see the GPU; none is imported to find out."""

import os
from collections.abc import Container
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tune_policies.probing.devices import read_gpus

_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "cupy")
_AMD_DEVICE: Final = Path("/dev/kfd")


def could_see_gpu(imported: Container[str]) -> list[str]:
    """Return the frameworks outside ``imported`` that are installed and could see this process's GPU.

    Whether PyTorch and TensorFlow are builds for the CPU only shows when they are imported.
    """
    absent = [name for name in _FRAMEWORKS if name not in imported and find_spec(name) is not None]
    if not absent or not _is_gpu_in_sight():
        return []
    return [name for name in absent if name != "jax" or has_gpu_plugin()]


def has_gpu_plugin() -> bool:
    """Return whether a back end of JAX for a GPU is installed."""
    return any(plugin.name.startswith(("xla_cuda", "xla_rocm")) for plugin in entry_points(group="jax_plugins"))


def _is_gpu_in_sight() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):  # CUDA then shows none
        return False
    try:
        return bool(read_gpus())
    except Exception:  # noqa: BLE001 - NVML's errors have no base that can be named without NVML
        return _AMD_DEVICE.exists()
