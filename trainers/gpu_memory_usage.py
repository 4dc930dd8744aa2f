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
    if tensorflow is not None:
        for device in tensorflow.config.list_logical_devices("GPU"):
            peaks.append(tensorflow.config.experimental.get_memory_info(device.name)["peak"])
    return sum(peaks) if peaks else None
