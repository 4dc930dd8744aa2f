"""What each framework calls a device; an error where it does not see one, as the CPU must not be measured in its place.

Frameworks are imported when they are asked for: a process has one of them as a rule.
"""

from typing import Any

from tune_policies.values.errors import ProbeError


def torch_device(device: str) -> Any:
    """Return PyTorch's ``torch.device`` for ``"cpu"``, ``"gpu"`` or a family by Ray's name.

    Raises:
        ProbeError: PyTorch sees no such device in this process.
    """
    import torch

    if device == "cpu":
        return torch.device("cpu")
    if device == "gpu":
        for name in ("cuda", "xpu", "mps"):  # ROCm is PyTorch's "cuda", too
            api = getattr(torch, name, None)
            if api is not None and api.is_available():
                return torch.device(name)
        raise _unseen("PyTorch", device, f"PyTorch {torch.__version__} is built for {_built_for(torch)}")
    names = {"NPU": ("torch_npu", "npu"), "HPU": ("habana_frameworks.torch", "hpu"), "TPU": ("torch_xla", "xla")}
    if device not in names:
        raise _unseen("PyTorch", device, f"its devices here are cpu, gpu, {', '.join(names)}")
    package, name = names[device]
    try:
        __import__(package)  # it adds its device to PyTorch
        return torch.zeros(1, device=name).device
    except Exception as error:  # a package of the vendor's may raise anything where it finds no device
        raise _unseen("PyTorch", device, f"with {package}: {error}") from error


def tensorflow_device(device: str) -> str:
    """Return TensorFlow's name of the first such device, such as ``"/GPU:0"``.

    Raises:
        ProbeError: TensorFlow sees no such device in this process.
    """
    import tensorflow as tf

    kind = {"cpu": "CPU", "gpu": "GPU"}.get(device, device)
    if not tf.config.list_logical_devices(kind):
        kinds = ", ".join(sorted({each.device_type for each in tf.config.list_logical_devices()}))
        raise _unseen("TensorFlow", device, f"TensorFlow {tf.__version__} sees {kinds}")
    return f"/{kind}:0"


def jax_device(device: str) -> Any:
    """Return JAX's first such device.

    Raises:
        ProbeError: JAX sees no such device in this process.
    """
    import jax

    try:
        return jax.devices(device.lower())[0]
    except RuntimeError as error:
        raise _unseen("JAX", device, f"JAX {jax.__version__} says: {error}") from error


def _built_for(torch: Any) -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "no GPU"


def _unseen(framework: str, device: str, why: str) -> ProbeError:
    return ProbeError(
        f"{framework} sees no {device} in this process, and the CPU is not measured in its place ({why}): install a "
        f"build of {framework} for the device, check its driver, or leave the device out"
    )
