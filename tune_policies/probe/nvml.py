"""Reads the GPUs of the machine it runs on, through NVML.

NVML makes no CUDA context, so reading takes no GPU memory. ``read_gpus`` runs on other nodes, where this package
may be missing: it imports all that it needs itself, and returns plain data.
"""


def read_gpus() -> list[dict[str, object]]:
    """Return the GPUs that Ray may hand out here, as the fields of a ``GpuDevice``.

    Where MIG is on, each MIG device of a GPU is listed with its own size, name and UUID, and the GPU is not. The
    node's ``CUDA_VISIBLE_DEVICES`` selects, as it does for Ray; a number in it is that of a physical GPU.

    Raises:
        ImportError: There is no NVML binding.
        LookupError: The node's ``CUDA_VISIBLE_DEVICES`` names none of them.
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

    def mig_devices(handle: object) -> list[object] | None:
        """Return the MIG devices of a GPU; ``None``: MIG is off, or the GPU or its driver knows none."""
        try:
            if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
                return None
        except (pynvml.NVMLError, AttributeError):
            return None
        found = []
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            except pynvml.NVMLError:  # no device is there: they need not be numbered without gaps
                continue
        return found

    def usable_bytes(handle: object) -> int:
        """Return a GPU's memory without what the driver keeps of it, which no process can have."""
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            return int(memory.total - memory.reserved)
        except (pynvml.NVMLError, AttributeError, TypeError):  # an older driver or binding does not tell
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)

    pynvml.nvmlInit()
    try:
        listed: list[tuple[str, object]] = []  # the number of the physical GPU, and what stands for it
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            parts = mig_devices(handle)
            listed += [(str(number), part) for part in ([handle] if parts is None else parts)]
        numbers = [number for number, _ in listed]
        gpus: list[dict[str, object]] = [
            {
                "index": index,
                "name": text(pynvml.nvmlDeviceGetName(handle)),
                "memory_bytes": usable_bytes(handle),
                "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
            }
            for index, (_, handle) in enumerate(listed)
        ]
    finally:
        pynvml.nvmlShutdown()
    # Empty is what Ray sets where it hides the GPUs from a task that asks for none: it selects nothing here.
    wanted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not wanted:
        return gpus
    chosen = [
        gpu
        for number, gpu in zip(numbers, gpus, strict=True)
        # CUDA takes the beginning of a UUID, too.
        if any(name == number or str(gpu["uuid"]).startswith(name) for name in wanted)
    ]
    if not chosen:
        raise LookupError(f"CUDA_VISIBLE_DEVICES={','.join(wanted)} names none of the GPUs that NVML lists")
    return chosen
