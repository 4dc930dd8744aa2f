"""Holds TensorFlow to its share, by a logical device on each GPU."""

import os
from typing import Any

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import MIB

from ..share import LimiterContext


def limit_tensorflow(tensorflow: Any, context: LimiterContext) -> bool:
    """Hold TensorFlow to its share; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, TensorFlow's runtime has started, or its allocator has no limit.
    """
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices and os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        context.void("TF_GPU_ALLOCATOR=cuda_malloc_async turns TensorFlow's memory limit into none: unset it")
        return True
    for device in devices:
        _limit_device(tensorflow, device, context)
    return bool(devices)


def _limit_device(tensorflow: Any, device: Any, context: LimiterContext) -> None:
    config = tensorflow.config
    details = config.experimental.get_device_details(device)
    capability = details.get("compute_capability")
    limit = context.limit(
        "tensorflow",
        tensorflow.__version__,
        total_bytes=lambda: context.read_device()[0],
        gpu_model=details.get("device_name"),
        compute_capability=capability,
    )
    megabytes = limit.tensorflow_memory_limit_mb(capability)
    if config.experimental.get_memory_growth(device):
        # The limit holds; TensorFlow works out the growth only where there is no logical device (eager/context.py).
        context.report.warn(
            "TensorFlow drops set_memory_growth beside a memory limit, and takes its budget at once: "
            "set TF_FORCE_GPU_ALLOW_GROWTH=true instead"
        )
    now = config.get_logical_device_configuration(device) or []
    # Equal where the trial before this one, in the same process, had the same share.
    if [each.memory_limit for each in now] != [megabytes]:
        try:
            config.set_logical_device_configuration(device, [config.LogicalDeviceConfiguration(memory_limit=megabytes)])
        except RuntimeError as error:
            raise MemoryLimitError(
                "tensorflow's runtime has started, so its memory can no longer be limited: "
                "touch no GPU before the trial starts, and do not reuse actors"
            ) from error
    context.note_limit("tensorflow", megabytes * MIB)


def tensorflow_still_holds(tensorflow: Any, limit_bytes: int) -> bool:
    """Return whether TensorFlow's logical devices are still within the limit that was set."""
    if os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        return False
    config = tensorflow.config
    limits = [config.get_logical_device_configuration(device) for device in config.list_physical_devices("GPU")]
    return all(
        each
        and all(part.memory_limit for part in each)
        and sum(part.memory_limit for part in each) * MIB <= limit_bytes
        for each in limits
    )
