"""The device of a run as each framework names it, or an error where the framework does not see it.

A framework that sees no GPU computes on the CPU without a word, and the time would be the CPU's under the GPU's name.
"""

from typing import Any, Final

from tune_policies.errors import ProbeError

_TORCH_MODULES: Final = {"GPU": ("cuda", "xpu", "mps"), "HPU": ("hpu",), "NPU": ("npu",)}
"""By Ray's resource, the parts of torch that can stand for it: Intel's and Apple's GPUs are GPUs for Ray, too."""


def torch_device(device: str) -> Any:
    """Return the ``torch.device`` of a device by Ray's name, the first that the process sees.

    Raises:
        ProbeError: PyTorch sees no such device.
    """
    import torch

    if device == "cpu":
        return torch.device("cpu")
    for name in _TORCH_MODULES.get(device.upper(), ()):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return torch.device(name, 0) if name != "mps" else torch.device(name)
    raise no_device(f"PyTorch {torch.__version__}", device)


def tensorflow_device(device: str) -> str:
    """Return TensorFlow's name of a device by Ray's name, the first that the process sees.

    Raises:
        ProbeError: TensorFlow sees no such device.
    """
    import tensorflow as tf

    kind = device.upper()
    if kind == "CPU" or tf.config.list_physical_devices(kind):
        return f"/{kind}:0"
    raise no_device(f"TensorFlow {tf.__version__}", device)


def jax_device(device: str) -> Any:
    """Return JAX's device of a device by Ray's name, the first that the process sees.

    Raises:
        ProbeError: JAX sees no such device.
    """
    import jax

    try:
        return jax.devices(device.lower())[0]
    except RuntimeError as error:  # JAX's way to say that it has no back end of this name
        raise no_device(f"JAX {jax.__version__}", device) from error


def no_device(framework: str, device: str) -> ProbeError:
    """Return the error that a framework sees no such device."""
    return ProbeError(
        f"{framework} sees no {device!r} in this process, and would work on the CPU instead: install a build of it for "
        "this device and look for what `tune-policies doctor` says, or leave the device out"
    )
