"""Limits each framework to its share. A framework has a function that limits it, and one that checks the limit.

PyTorch is limited on CUDA, ROCm, XPU, NPU and MPS; TensorFlow by a logical device on each GPU; JAX by variables that
its back end reads when it starts; CuPy by the limit of its default memory pool.

Each ``limit_…`` function returns whether the framework sees a GPU. It raises a ``MemoryLimitError`` if the share is too
small, the framework already uses more, or its allocator has no limit.
"""

import os
from typing import Any, Final

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import MIB

from .limit import (
    CUPY_VARIABLE,
    JAX_COLLECTIVE_VARIABLE,
    PROCESS_ENVIRONMENT,
    cupy_own_limit,
    jax_fraction_variable,
    jax_variables,
    torch_own_fraction,
    why_jax_is_void,
)
from .share import LimiterContext, has_gpu_plugin, started_too_early

_BACK_ENDS: Final = ("cuda", "xpu", "npu")
"""Modules of ``torch`` with ``set_per_process_memory_fraction``; ROCm is ``cuda`` too."""

_ROUNDING_BYTES: Final = MIB
"""The tolerance of a fraction that is read back."""


def limit_torch(torch: Any, context: LimiterContext) -> bool:
    """Limit PyTorch to its share."""
    available = _available(torch)
    for name, module in available.items():
        if not hasattr(module, "set_per_process_memory_fraction"):  # XPU before PyTorch 2.10
            context.report.not_enforceable.append(f"torch.{name}")
            continue
        if name == "cuda" and not _has_limited_allocator(torch, context):
            continue
        for device in range(module.device_count()):
            _limit_torch_device(torch, module, device, context)
    return bool(available) or _limit_apple(torch, context)


def _available(torch: Any) -> dict[str, Any]:
    back_ends = {name: getattr(torch, name, None) for name in _BACK_ENDS}
    return {name: module for name, module in back_ends.items() if module is not None and module.is_available()}


def _limit_torch_device(torch: Any, module: Any, device: int, context: LimiterContext) -> None:
    properties = module.get_device_properties(device)
    total = int(properties.total_memory)
    limit = context.limit("torch", torch.__version__, total_bytes=total, gpu_model=properties.name)
    fraction = min(limit.torch_fraction(total), torch_own_fraction(torch.__version__, os.environ))
    budget = int(fraction * total)
    context.check_held("torch", device, module.memory_reserved(device), budget)
    module.set_per_process_memory_fraction(fraction, device)
    context.note_limit("torch", budget)


def _has_limited_allocator(torch: Any, context: LimiterContext) -> bool:
    backend = torch.cuda.get_allocator_backend()
    if backend in ("cudaMallocAsync", "hipMallocAsync"):
        # It rejects requests above the limit (CUDAMallocAsyncAllocator.cpp), but does not count freed memory, which the
        # driver's pool keeps.
        context.report.warn(
            f"torch's allocator {backend} limits what tensors use; what the driver's pool keeps may be more"
        )
    elif backend != "native":
        context.void(f"torch's allocator {backend!r} knows no limit: use the native one")
        return False
    return True


def _limit_apple(torch: Any, context: LimiterContext) -> bool:
    back_end = getattr(torch.backends, "mps", None)
    if back_end is None or not back_end.is_available():
        return False
    total = int(torch.mps.recommended_max_memory())
    limit = context.limit("torch", torch.__version__, total_bytes=total, gpu_model=None)
    fraction = limit.torch_mps_fraction(total)
    torch.mps.set_per_process_memory_fraction(fraction)
    context.note_limit("torch", int(fraction * total))
    return True


def torch_still_holds(torch: Any, limit_bytes: int) -> bool:
    """Return whether PyTorch is still limited to the fraction that was set. Assume so if it cannot be read."""
    for module in _available(torch).values():
        fraction_now = getattr(module, "get_per_process_memory_fraction", None)  # of CUDA, since PyTorch 2.8
        if fraction_now is None:
            continue
        for device in range(module.device_count()):
            total = int(module.get_device_properties(device).total_memory)
            if int(fraction_now(device) * total) > limit_bytes + _ROUNDING_BYTES:
                return False
    return True


def limit_tensorflow(tensorflow: Any, context: LimiterContext) -> bool:
    """Limit TensorFlow to its share, which is too late once its runtime has started."""
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices and os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        context.void("TF_GPU_ALLOCATOR=cuda_malloc_async switches TensorFlow's memory limit off: unset it")
        return True
    for device in devices:
        _limit_tensorflow_device(tensorflow, device, context)
    return bool(devices)


def _limit_tensorflow_device(tensorflow: Any, device: Any, context: LimiterContext) -> None:
    config = tensorflow.config
    details = config.experimental.get_device_details(device)
    capability = details.get("compute_capability")
    limit = context.limit(
        "tensorflow",
        tensorflow.__version__,
        total_bytes=context.read_device()[0],
        gpu_model=details.get("device_name"),
        compute_capability=capability,
    )
    megabytes = limit.tensorflow_memory_limit_mb(capability)
    if config.experimental.get_memory_growth(device):
        # The limit holds. TensorFlow applies growth only if there is no logical device (eager/context.py).
        context.report.warn(
            "TensorFlow drops set_memory_growth beside a memory limit, and takes its budget at once: "
            "set TF_FORCE_GPU_ALLOW_GROWTH=true instead"
        )
    now = config.get_logical_device_configuration(device) or []
    # They are equal if the previous trial in this process had the same share.
    if [each.memory_limit for each in now] != [megabytes]:
        try:
            config.set_logical_device_configuration(device, [config.LogicalDeviceConfiguration(memory_limit=megabytes)])
        except RuntimeError as error:
            raise started_too_early("tensorflow's runtime") from error
    context.note_limit("tensorflow", megabytes * MIB)


def tensorflow_still_holds(tensorflow: Any, limit_bytes: int) -> bool:
    """Return whether TensorFlow's logical devices still have the limit that was set."""
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


_TOLERANCE: Final = 1.05
"""XLA applies the fraction to CUDA's total, which may differ from NVML's by the memory that the driver reserves."""


def limit_jax(jax: Any, context: LimiterContext) -> bool:
    """Limit JAX to its share, which is too late once its back end has started."""
    has_started = _has_started()
    if not (any(device.platform == "gpu" for device in jax.devices()) if has_started else _expects_gpu(jax)):
        return False
    void = _why_void(jax)
    if void is not None:
        context.void(void)
        return True
    total, model = context.read_device()
    limit = context.limit("jax", jax.__version__, total_bytes=total, gpu_model=model)
    variables = jax_variables(limit.jax_fraction(total), PROCESS_ENVIRONMENT.of_user())
    # They are equal if the previous trial in this process had the same share.
    if has_started and any(os.environ.get(name) != value for name, value in variables.items()):
        raise started_too_early("JAX's back end")
    if os.environ.get(JAX_COLLECTIVE_VARIABLE):
        context.report.warn(f"{JAX_COLLECTIVE_VARIABLE} sets memory aside that JAX's limit does not count")
    PROCESS_ENVIRONMENT.write(variables)
    context.note_limit("jax", int(float(variables[jax_fraction_variable(variables)]) * total))
    return True


def jax_still_holds(jax: Any, limit_bytes: int) -> bool:
    """Return whether JAX has the limit that was set, or will have it when its back end starts."""
    if _has_started():
        # Without a GPU there is nothing to limit. An allocator without a limit reports none.
        stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform == "gpu"]
        return all(0 < each.get("bytes_limit", 0) <= limit_bytes * _TOLERANCE for each in stats)
    return _why_void(jax) is None and PROCESS_ENVIRONMENT.is_as_written(jax_fraction_variable(os.environ))


def _why_void(jax: Any) -> str | None:
    return why_jax_is_void(os.environ, getattr(jax.config, "jax_pjrt_client_create_options", None))


def _has_started() -> bool:
    # Every public question about devices starts the back end, which then reads its limit.
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _expects_gpu(jax: Any) -> bool:
    """Return whether a GPU back end is installed and allowed. Whether it finds a device shows only when it starts."""
    allowed = {name.strip() for name in (jax.config.jax_platforms or "").split(",") if name.strip()}
    return (not allowed or bool(allowed & {"gpu", "cuda", "rocm"})) and has_gpu_plugin()


def limit_cupy(cupy: Any, context: LimiterContext) -> bool:
    """Limit CuPy to its share."""
    if not cupy.cuda.is_available():
        return False
    if cupy.cuda.get_allocator() != cupy.get_default_memory_pool().malloc:
        context.void("CuPy's default memory pool was replaced, and with it its limit: keep the default allocator")
        return True
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        _limit_cupy_device(cupy, device, context)
    return True


def _limit_cupy_device(cupy: Any, device: int, context: LimiterContext) -> None:
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    total = int(properties["totalGlobalMem"])
    limit = context.limit("cupy", cupy.__version__, total_bytes=total, gpu_model=properties["name"].decode())
    budget = limit.cupy_limit_bytes()
    budget = min(budget, cupy_own_limit(total, os.environ) or budget)  # `set_limit` below overrides the user's variable
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(device):
        try:
            held = pool.total_bytes()  # the first use of a device's pool reads the variable
        except ValueError as error:
            raise MemoryLimitError(
                f"CuPy cannot read {CUPY_VARIABLE}={os.environ.get(CUPY_VARIABLE)}: "
                "unset it, or give a number of bytes or a percentage up to 100%"
            ) from error
        context.check_held("cupy", device, held, budget)
        pool.set_limit(size=budget)
    context.note_limit("cupy", budget)


def cupy_still_holds(cupy: Any, limit_bytes: int) -> bool:
    """Return whether CuPy still uses its default pool with the limit that was set."""
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        return False
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            if not 0 < pool.get_limit() <= limit_bytes:  # 0: no limit
                return False
    return True
