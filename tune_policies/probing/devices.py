"""Reads the GPUs of the machine it runs on, through NVML.

NVML makes no CUDA context, so reading takes no GPU memory. ``read_gpus`` runs on other nodes, where this package
may be missing: it imports all that it needs itself, and returns plain data.
"""


def read_gpus() -> list[dict[str, object]]:
    """Return the GPUs that Ray may hand out here, as the fields of a ``GpuDevice``.

    The node's ``CUDA_VISIBLE_DEVICES`` selects, as it does for Ray.

    Raises:
        ImportError: There is no NVML binding.
        LookupError: The node's ``CUDA_VISIBLE_DEVICES`` names no whole GPU, but a MIG device, say.
        pynvml.NVMLError: There is no driver, or it does not answer.
    """
    import os

    try:
        import pynvml  # package nvidia-ml-py
    except ImportError:
        # Every Ray wheel carries a copy; without it a node would have to install the package to be read.
        from ray._private.thirdparty import pynvml

    def text(value: object) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus: list[dict[str, object]] = [
            {
                "index": index,
                "name": text(pynvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
            }
            for index, handle in enumerate(handles)
        ]
    finally:
        pynvml.nvmlShutdown()
    # Empty is what Ray sets where it hides the GPUs from a task that asks for none: it selects nothing here.
    wanted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not wanted:
        return gpus
    chosen = [
        gpu
        for gpu in gpus
        # CUDA takes the beginning of a UUID, too.
        if any(name == str(gpu["index"]) or str(gpu["uuid"]).startswith(name) for name in wanted if name)
    ]
    if not chosen:
        raise LookupError(f"CUDA_VISIBLE_DEVICES={','.join(wanted)} names none of the GPUs that NVML lists")
    return chosen
