"""Limits the frameworks of this process to its fraction of a GPU.

Frameworks that are already imported are limited immediately, and other frameworks after their import.
"""

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tune_policies.probe.nvml import NvmlError, are_gpus_hidden, read_gpus
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.wording import with_article

from .fraction_limits import FractionLimits, SharedDevice
from .framework_limiters import LIMITERS, has_jax_gpu_plugin
from .framework_settings import FRAMEWORKS
from .mps import is_mig, isolate_by_mps

_MUST_SEE_DEVICE: Final[dict[SharedDevice, tuple[str, ...]]] = {"GPU": ("torch", "tensorflow"), "NPU": ("torch_npu",)}
"""Frameworks that must detect the device. Other frameworks, such as JAX, may be imported without using the device."""

_NOT_ENFORCEABLE: Final = {
    "numba.cuda": "numba",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "habana_frameworks": "habana",
}
"""Modules that may use GPU memory without a limit, and their names in reports."""

MODULES: Final = (*LIMITERS, *_NOT_ENFORCEABLE)
"""The modules whose import can change limits."""

# The device of ROCm's kernel driver, because NVML reads only NVIDIA's GPUs.
_AMD_DEVICE: Final = Path("/dev/kfd")


def enforce(limits: FractionLimits) -> None:
    """Limit this process and each imported framework, unless the process has whole devices.

    A framework that detects no GPU is accepted if another framework detects the GPU, or may detect it after its import.

    Raises:
        MemoryLimitError: The limit cannot be applied.
    """
    if limits.share.is_whole:
        limits.by_driver = "mig" if is_mig() else None
        return
    if limits.options.isolation == "mps":  # MPS must be set up before CUDA starts
        isolate_by_mps(limits)
    limit_imported(limits, MODULES)


def limit_imported(limits: FractionLimits, modules: Iterable[str]) -> None:
    """Limit the imported frameworks among ``modules``, and report frameworks that have no limit.

    Raises:
        MemoryLimitError: A framework cannot be limited, or no framework can detect the device.
    """
    if limits.share.is_whole:
        return
    names = [name for name in modules if name in sys.modules]
    for name in names:
        if name in LIMITERS:
            _limit(limits, name)
    # After all frameworks, because it is enough if one of them detects the device.
    _require_visible_device(limits, names, may_come=True)
    for name in dict.fromkeys(_NOT_ENFORCEABLE[name] for name in names if name in _NOT_ENFORCEABLE):
        limits.note_not_enforceable(name)


def require_limit(limits: FractionLimits) -> None:
    """Raise a ``MemoryLimitError`` if a framework could not be limited, or no imported framework detects the device."""
    if limits.refusal is not None:
        # A new error each time. Raising the stored error again would extend its traceback, which keeps objects in
        # memory.
        raise type(limits.refusal)(str(limits.refusal))
    _require_visible_device(limits, sorted(limits.blind), may_come=False)


def recheck(limits: FractionLimits) -> None:
    """Remove limits that are no longer in force from ``limits``, and add a warning for each removed limit."""
    for name in list(limits.limit_bytes):
        try:
            is_in_force = LIMITERS[name].is_in_force(sys.modules[name], limits)
        except Exception:  # noqa: BLE001, S112 - after some errors, all calls to a device raise
            continue
        if not is_in_force:
            del limits.limit_bytes[name]
            limits.warn(f"the GPU memory limit of {name} was removed or replaced, so it is no longer enforced")


def _limit(limits: FractionLimits, name: str) -> None:
    limiter = LIMITERS[name]
    try:
        sees_device = limiter.limit(sys.modules[name], limits)
    except MemoryLimitError as error:
        limits.refusal = error
        limits.warn(str(error))
        raise
    if sees_device:
        limits.seeing.add(limiter.framework)
    # A framework that sees no device is only noted here, because another one may see it (``_require_visible_device``).
    elif name not in limits.blind:
        limits.blind.append(name)


def _require_visible_device(limits: FractionLimits, names: Iterable[str], *, may_come: bool) -> None:
    """Report an unenforced limit if no imported framework detects the device, but one of ``names`` should detect it.

    With ``may_come``, nothing is reported if a framework that is not imported yet may detect the device.
    """
    device = limits.share.device
    missing = [name for name in names if name in limits.blind and name in _MUST_SEE_DEVICE[device]]
    if limits.seeing or not missing or (may_come and device == "GPU" and _may_other_framework_see_gpu(limits)):
        return
    if limits.has_simulated_gpu:
        limits.warn("the GPU is simulated, so its memory limit is not enforced")
        return
    limits.report_unenforced(
        f"Ray assigned this process a fraction of {with_article(device)}, but {missing[0]} detects no {device}, so the "
        "memory limit cannot be enforced",
        f". Install a build of {missing[0]} for the {device} and its driver, or plan with CpuPolicy",
    )


def _may_other_framework_see_gpu(limits: FractionLimits) -> bool:
    """Return whether an installed framework that is not imported yet may detect this process's GPU.

    Only an import shows whether PyTorch and TensorFlow are CPU-only builds.
    """
    absent = [name for name in FRAMEWORKS if name not in limits.blind and find_spec(name) is not None]
    return any(name != "jax" or has_jax_gpu_plugin() for name in absent) and _is_gpu_visible()


def _is_gpu_visible() -> bool:
    if are_gpus_hidden():
        return False
    try:
        return bool(read_gpus())
    except NvmlError:
        return _AMD_DEVICE.exists()
