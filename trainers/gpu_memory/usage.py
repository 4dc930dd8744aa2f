"""How much GPU memory the frameworks of this process have used."""

import sys


def peak_gpu_memory_bytes() -> int | None:
    """Return the most GPU memory that this process's PyTorch and TensorFlow have held, over all its devices.

    What a framework uses outside its allocator is not in it. PyTorch's figure is what its allocator reserved,
    TensorFlow's what its tensors took. ``None``: neither has used a GPU.
    """
    peaks = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks += [torch.cuda.max_memory_reserved(i) for i in range(torch.cuda.device_count())]
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and _tensorflow_has_started():
        for device in tensorflow.config.list_logical_devices("GPU"):
            peaks.append(tensorflow.config.experimental.get_memory_info(device.name)["peak"])
    return sum(peaks) if peaks else None


def _tensorflow_has_started() -> bool:
    # Every public question about devices in use starts the runtime, which then takes GPU memory and refuses settings.
    eager = sys.modules["tensorflow.python.eager.context"]
    context = eager.context_safe()
    return context is not None and bool(context._initialized)
