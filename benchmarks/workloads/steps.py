"""The interface of workloads, checks of their results, and functions that find a framework's device."""

import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.wording import shorten


class Steps(NamedTuple):
    """A prepared workload with steps that can be timed.

    A workload is a function ``(size, device) -> Steps``. It is called in a fresh process that can use only the devices
    of the family ``device``: ``"cpu"``, ``"gpu"`` or a Ray resource name, such as ``"TPU"``. The workload must seed all
    random numbers, so that each device does the same work.

    Attributes:
        with_transfers: A function that does one step with data in host memory. It returns ``None``, the
            loss, or another number to compare between devices.
        compute: A function that does one step with data on the device, or ``None`` if the workload has no such step.
        steps_per_epoch: The number of steps of an epoch. The time of the first epoch includes all preparation.
        synchronize: A function that waits until the device has finished its work. By default, the framework's
            function is used.
        dtype: The type of the numbers, such as ``"float32"``.
        samples_per_step: The number of samples per step, used to compute the throughput.
        tolerance: The allowed relative difference between the losses on two devices.
    """

    with_transfers: Callable[[], Any]
    compute: Callable[[], Any] | None = None
    steps_per_epoch: int = 16
    synchronize: Callable[[], None] | None = None
    dtype: str | None = None
    samples_per_step: int | None = None
    tolerance: float = 0.02


_FUNCTIONS: Final = {"with_transfers": True, "compute": False, "synchronize": False}
"""The fields of ``Steps`` that are functions without arguments, and whether they are required."""

Workload = Callable[[int, str], Steps]


def checked_steps(steps: Any, workload: str) -> Steps:
    """Check the result of a workload, and return it with fields converted to ``int``, ``float`` and ``str``.

    Raises:
        InvalidResourcesError: The result is not ``Steps``, or a field is not valid.
    """
    # A workload is the user's code, so all fields are checked before the first measurement.
    if not isinstance(steps, Steps) or not callable(steps.with_transfers):
        raise InvalidResourcesError(
            f"{workload} returned {shorten(steps)}, but must return Steps(with_transfers=…). Import "
            "Steps from tune_policies.benchmarks.workloads.steps"
        )
    for field, required in _FUNCTIONS.items():
        _check_function(getattr(steps, field), f"{workload}: {field}", is_required=required)
    tolerance = steps.tolerance
    if not (isinstance(tolerance, Real) and 0 <= float(tolerance) < math.inf):
        raise InvalidResourcesError(
            f"{workload}: tolerance must be a finite fraction of the loss, such as 0.02, got {shorten(tolerance)}"
        )
    dtype, samples = steps.dtype, steps.samples_per_step
    if dtype is not None:
        dtype = str(dtype).removeprefix("torch.")
    if samples is not None:
        samples = _count(samples, "samples_per_step", workload)
    return steps._replace(
        steps_per_epoch=_count(steps.steps_per_epoch, "steps_per_epoch", workload),
        dtype=dtype,
        samples_per_step=samples,
        tolerance=float(tolerance),
    )


def _check_function(function: Any, name: str, *, is_required: bool) -> None:
    """Raise ``InvalidResourcesError`` unless ``function`` can be called without arguments, or is optional and omitted.

    ``name`` is the workload and the field, for the message.
    """
    if function is None and not is_required:
        return
    if not callable(function):
        raise InvalidResourcesError(f"{name} must be a function, got {shorten(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of extension modules have no signature
        return
    try:
        signature.bind()
    except TypeError:
        raise InvalidResourcesError(
            f"{name} must be a function without arguments, but takes {signature}. Write a function without arguments "
            "inside the workload, which uses the model and the data of the workload"
        ) from None


def checked_loss(result: Any, workload: str, step: int) -> float:
    """Return the result of a step as a finite number, or raise ``InvalidResourcesError``."""
    try:
        number = float(result)
    except (TypeError, ValueError) as error:
        raise InvalidResourcesError(
            f"a step of {workload} returned {type(result).__name__}, but must return its loss as a number, or None"
        ) from error
    if not math.isfinite(number):
        raise InvalidResourcesError(
            f"step {step} of {workload} returned {number}, so its time does not show the speed of the device. "
            "Lower the learning rate, or check the data"
        )
    return number


def _count(count: Any, name: str, workload: str) -> int:
    if not isinstance(count, Integral) or int(count) < 1:
        raise InvalidResourcesError(f"{workload}: {name} must be a whole number, 1 or above, got {shorten(count)}")
    return int(count)


def torch_device(device: str) -> Any:
    """Return PyTorch's device for ``"cpu"``, ``"gpu"`` or a Ray resource name, or raise ``ProbeError``."""
    import torch

    if device == "cpu":
        return torch.device("cpu")
    if device == "gpu":
        for name in ("cuda", "xpu", "mps"):  # PyTorch also calls ROCm "cuda"
            api = getattr(torch, name, None)
            if api is not None and api.is_available():
                return torch.device(name)
        raise unseen("PyTorch", device, f"PyTorch {torch.__version__} is built for {_built_for(torch)}")
    # The packages of the vendors, and the names under which they register their devices with PyTorch.
    names = {"NPU": ("torch_npu", "npu"), "HPU": ("habana_frameworks.torch", "hpu"), "TPU": ("torch_xla", "xla")}
    if device not in names:
        raise unseen("PyTorch", device, f"the supported devices are cpu, gpu, {', '.join(names)}")
    package, name = names[device]
    try:
        __import__(package)  # registers the device with PyTorch
        return torch.zeros(1, device=name).device
    except Exception as error:  # a vendor's package may raise anything if it finds no device
        raise unseen("PyTorch", device, f"with {package}: {error}") from error


def tensorflow_device(device: str) -> str:
    """Return TensorFlow's name of the first device of the family, such as ``"/GPU:0"``, or raise ``ProbeError``."""
    import tensorflow as tf

    kind = {"cpu": "CPU", "gpu": "GPU"}.get(device, device)
    if not tf.config.list_logical_devices(kind):
        kinds = ", ".join(sorted({device.device_type for device in tf.config.list_logical_devices()}))
        raise unseen("TensorFlow", device, f"TensorFlow {tf.__version__} detects only {kinds}")
    return f"/{kind}:0"


def jax_device(device: str) -> Any:
    """Return JAX's first device of the family, or raise ``ProbeError``."""
    import jax

    try:
        return jax.devices(device.lower())[0]
    except RuntimeError as error:
        raise unseen("JAX", device, f"JAX {jax.__version__}: {error}") from error


def _built_for(torch: Any) -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return "no GPU"


def unseen(library: str, device: str, why: str = "") -> ProbeError:
    """Return the error for a library that does not detect a device and would use the CPU instead."""
    reason = f" ({why})" if why else ""
    return ProbeError(
        f"{library} detects no {device} in this process, and CPU times would be misleading{reason}. "
        f"Install a build of {library} for the device, check its driver, or omit the device"
    )
