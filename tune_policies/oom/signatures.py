"""The errors that each framework raises when memory runs out, as opposed to errors that only mention memory.

An error is recognized by its type, if the type has no other meaning, or by a sentence that only an allocator or a
driver writes. For PyTorch 1.13 to 2.13, the sentences come from ``c10/cuda/CUDACachingAllocator.cpp``, its counterparts
for XPU, NPU, MPS and cudaMallocAsync, and ``c10/core/impl/alloc_cpu.cpp``. Other sentences come from TensorFlow's
``bfc_allocator.cc`` and ``op_kernel.cc``, XLA's ``pjrt`` and ``stream_executor``, and CuPy's ``memory.pyx``. The
numbers in a sentence are the requested size, the memory limit and the memory use.
"""

import math
import re
from collections.abc import Sequence
from typing import Final, Literal

from tune_policies.oom.memory_monitor import KilledWorker, NodeProcess, killed_workers, other_processes
from tune_policies.values.resources import Bytes
from tune_policies.values.value import Value


class OutOfMemory(Value):
    """An out-of-memory error. Unknown fields are ``None``.

    Attributes:
        kind: The kind of memory that ran out, or ``"none"`` if the error is not an out-of-memory error.
        framework: The origin of the error: ``"torch"``, ``"tensorflow"``, ``"jax"``, ``"cupy"``, ``"ray"`` (its memory
            monitor) or ``"python"`` (including NumPy).
        requested_bytes: The size of the failed request, in bytes.
        used_bytes: The host memory that the process used, in bytes. For a kill by Ray's memory monitor, this is the
            memory of the killed worker without its child processes, and of the largest one if several were killed.
        limit_bytes: The memory limit of the process, in bytes.
        cause: ``"own_limit"`` if the process reached its own limit, or ``"neighbour"`` if it was within its limit, but
            other processes used the rest of the device.
        needed_share: The fraction of the device that a process without a limit needed at least, for
            :meth:`cause_with`.
        killed_workers: The workers that Ray's memory monitor killed at the same time.
        other_processes: The largest processes of the node that are not Ray's workers, according to the memory monitor.
            The child processes of a trial are among them.
    """

    kind: Literal["accelerator", "host", "none"]
    framework: str | None = None
    requested_bytes: Bytes | None = None
    used_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    cause: Literal["own_limit", "neighbour"] | None = None
    needed_share: float | None = None
    killed_workers: tuple[KilledWorker, ...] = ()
    other_processes: tuple[NodeProcess, ...] = ()

    def cause_with(self, gpus: float) -> Literal["own_limit", "neighbour"] | None:
        """Return the cause of the error of a process that reserved ``gpus`` GPUs.

        The error of a process without a limit does not contain its GPU fraction. If it needed more than this fraction,
        other processes are not the cause.
        """
        if self.cause == "neighbour" and self.needed_share is not None and self.needed_share > gpus:
            return "own_limit"
        return self.cause

    def of_actor(self, actor_id: str | None) -> "OutOfMemory":
        """Return the error with the memory of the worker that ran this actor.

        The memory monitor lists an actor that is still starting without its ID. If the actor is not listed, its worker
        is one of those without an ID, or any worker if all of them have one. The largest of them is assumed.
        """
        candidates = [worker for worker in self.killed_workers if worker.actor_id == actor_id]
        candidates = candidates or [worker for worker in self.killed_workers if worker.actor_id is None]
        used_bytes = max((worker.used_bytes for worker in candidates or self.killed_workers), default=0)
        if used_bytes:
            return self.model_copy(update={"used_bytes": used_bytes})
        return self


MemoryKind = Literal["accelerator", "host"]

_PROGRAM_ERRORS: Final = frozenset(
    {"AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError"}
    | {"NotImplementedError", "SyntaxError", "TypeError", "ValueError", "ZeroDivisionError"}
)
"""Errors in the program itself. They are never out-of-memory errors, even if their messages mention memory."""

_FRAMEWORKS: Final = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"} | {
    "cupy_backends": "cupy",
    "torch_npu": "torch",
}
"""The framework of an error type, keyed by the top-level package of the type."""

_FRAMEWORK_OOM: Final = re.compile(r"(torch|cupy)(?:_\w+)?(?:\.\w+)*\.OutOfMemoryError")
_HOST_OOM: Final = re.compile(r"MemoryError|(?:numpy|pyarrow)(?:\.\w+)*\.\w*MemoryError")

KILLED_BY_RAY: Final = "ray.exceptions.OutOfMemoryError"
KILLED_BY_RAY_SENTENCE: Final = (
    r"^(?:(?:Task was|\d+ worker\(s\) were) killed due to the node running low on memory"
    r"|\S.*Worker exit type: NODE_OUT_OF_MEMORY)"
)
"""The messages of Ray's memory monitor, up to Ray 2.55 and in later versions.

If the kernel's OOM killer kills a worker, Ray only lists possible causes, so that message is not included.
"""

_DEVICES: Final = r"(?:CUDA|HIP|XPU|NPU|MLU|GCU|MPS backend)"
_NO_SENTENCE_BEFORE: Final = r"(?:^|[^\w\s]\s+|[^\w\s])"
"""Matches the text before a quoted message: a colon or a bracket, but no words of another sentence."""
_RESOURCE_EXHAUSTED: Final = r"(?:RESOURCE_EXHAUSTED|Resource exhausted): "

_SENTENCES: Final[tuple[tuple[str, MemoryKind, str | None], ...]] = (
    (rf"{_DEVICES} out of memory(?:[.,]? (?:\w+ )?[Tt]ried to allocate| \()", "accelerator", "torch"),
    (rf"{_NO_SENTENCE_BEFORE}{_DEVICES} out of memory\.?$", "accelerator", "torch"),
    (r"Allocation on device \S+ would exceed allowed memory\. \(out of memory\)", "accelerator", "torch"),
    (rf"{_DEVICES} (?:driver )?error: out of memory", "accelerator", "torch"),
    (r"\bCUDNN_STATUS_\w*HOST_ALLOCATION_FAILED\b", "host", "torch"),
    (r"(?:CUDA|HIP|cuDNN|cuFFT|cusolver) error: \w+_ALLOC(?:ATION)?_FAILED", "accelerator", "torch"),
    (r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA calloc async \d+ bytes", "accelerator", "torch"),  # NCCL
    (r"MODULE:PT_DEVMEM Allocation failed for size::\d+", "accelerator", "torch"),  # Gaudi
    (r"CUDA Error: out of memory at line \d+", "accelerator", None),  # bitsandbytes
    (r"CUDA (?:error|failure) 2: out of memory\b", "accelerator", None),  # CatBoost, Warp; ONNX Runtime
    (r"\bOut of memory\. Requested [\d.]+(?: MB)?; Free [\d.]+", "accelerator", None),  # CatBoost's memory pool
    (r"Memory allocation error on worker \d+: ", "accelerator", None),  # XGBoost
    (r"Triton Error \[(?:CUDA|HIP)\]:.{0,40}(?<!not) out of memory\b", "accelerator", None),
    (r"Unexpected error from cudaGetDeviceCount.{0,200}Error 2: out of memory", "accelerator", "torch"),
    (r"^\[CUDA\] out of memory\b", "accelerator", None),  # LightGBM
    (r"Out of memory allocating [\d,]+ bytes \(allocated so far", "accelerator", "cupy"),
    (rf"{_RESOURCE_EXHAUSTED}Out of memory allocating \d+ bytes", "host", "jax"),  # XLA's client for CPUs
    (rf"{_RESOURCE_EXHAUSTED}Out of host memory while trying to allocate", "host", "jax"),  # pinned memory
    (rf"{_RESOURCE_EXHAUSTED}Out of memory while trying to allocate", "accelerator", "jax"),
    (rf"{_RESOURCE_EXHAUSTED}Failed to allocate request for", "accelerator", "jax"),
    (r"Ran out of memory in memory space hbm", "accelerator", "jax"),  # TPU, compiling
    (r"Attempting to (?:allocate|reserve) [\d.]++\w.{0,200}\. That was not possible", "accelerator", "jax"),  # TPU
    (r"\b(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory|hipErrorMemoryAllocation)\b", "accelerator", None),
    (r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\b\w+_OUT_OF_DEVICE_MEMORY\b", "accelerator", None),
    # Intel's runtime, usually for device memory. The second name is the older one.
    (r"\b(?:UR_RESULT|PI)_ERROR_OUT_OF_RESOURCES\b", "accelerator", None),
    (r"\b(?:CU|HIP)[A-Z]+_(?:STATUS_)?(?:\w+_)?ALLOC(?:ATION)?_FAILED\b", "accelerator", None),
    (r"DefaultCPUAllocator: (?:can't allocate|not enough) memory", "host", "torch"),
    (r"unable to mmap \d+ bytes from .{0,1000}: Cannot allocate memory", "host", "torch"),
    # Normally, only the kernel kills a process of a data loader, and only because host memory runs out.
    (r"DataLoader worker \(pid \d+\) is killed by signal: Killed\b", "host", "torch"),
    (KILLED_BY_RAY_SENTENCE, "host", "ray"),
    (r"^\[Errno 12\] ", "host", "python"),
    (r"^std::bad_alloc$", "host", None),
)
"""Sentences that occur only in out-of-memory errors, with the kind of memory, and the framework or ``None``."""

_TENSORFLOW_OOM: Final = re.compile(
    r"OOM when allocating tensor|[Ff]ailed to allocate (?:memory|request for)|[Oo]ut of memory"
    r"|[Rr]an out of (?:GPU )?memory"
    r"|_ALLOC_FAILED|Dst tensor is not initialized"  # a failed copy to a full GPU
)
_XLA_OOM: Final = re.compile(r"[Oo]ut of memory|OUT_OF_MEMORY|[Ff]ailed to allocate|[Rr]an out of memory in")
_TENSORFLOW_HOST: Final = re.compile(r"by allocator (?:\w*cpu\b|\w*host)")
_TENSORFLOW_DEVICE: Final = re.compile(r"by allocator|device:(?:GPU|TPU|XPU):")
_CPU_DEVICE: Final = re.compile(r"device:CPU:")
_ACCELERATOR_TEXT: Final = re.compile(
    r"\bCUDA|cudaError|\bHIP\b|hipError|\bRMM failure\b|\bmemory error on GPU\b"  # the last one is Paddle's
)


def match_signature(types: Sequence[str], text: str) -> OutOfMemory | None:
    """Return the out-of-memory error with these ``ChainedError`` types and text, or ``None`` for any other error."""
    found = _by_type(types, text) or _by_text(types, text)
    if found is None:
        return None
    kind, framework = found
    if framework == "ray":
        killed = killed_workers(text)
        return OutOfMemory(
            kind=kind,
            framework=framework,
            used_bytes=max((worker.used_bytes for worker in killed), default=0) or None,
            killed_workers=killed,
            other_processes=other_processes(text),
        )
    if kind != "accelerator":
        return OutOfMemory(kind=kind, framework=framework, requested_bytes=requested_bytes(text))
    return OutOfMemory(
        kind=kind,
        framework=framework,
        requested_bytes=requested_bytes(text),
        limit_bytes=limit_bytes(text),
        cause=cause(text),
        needed_share=needed_share(text),
    )


def _by_type(types: Sequence[str], text: str) -> tuple[MemoryKind, str | None] | None:
    for name in types:
        if name == KILLED_BY_RAY:
            return "host", "ray"
        found = _FRAMEWORK_OOM.fullmatch(name)
        if found:
            return "accelerator", found[1]
    if any(_HOST_OOM.fullmatch(name) for name in types):
        # Some libraries, such as RAPIDS and Paddle, raise a plain MemoryError for device memory.
        if _ACCELERATOR_TEXT.search(text):
            return ("accelerator", None)
        return ("host", "python")
    return None


def _by_text(types: Sequence[str], text: str) -> tuple[MemoryKind, str | None] | None:
    if not types or types[0] in _PROGRAM_ERRORS:
        return None
    packages = [name.partition(".")[0] for name in types]
    framework = next((_FRAMEWORKS[package] for package in packages if package in _FRAMEWORKS), None)
    if framework == "tensorflow":
        return _tensorflow(types, text)
    for sentence, kind, writer in _SENTENCES:
        if re.search(sentence, text, re.MULTILINE):
            return kind, framework or writer
    if framework == "jax" and _XLA_OOM.search(text):
        if "host memory" in text:
            return "host", "jax"
        return "accelerator", "jax"
    return None


def _tensorflow(types: Sequence[str], text: str) -> tuple[MemoryKind, str] | None:
    """Classify a TensorFlow error. TensorFlow also raises ResourceExhaustedError for files, disks and messages."""
    exhausted = any(name.endswith(("ResourceExhaustedError", "InternalError")) for name in types)
    if not exhausted or not _TENSORFLOW_OOM.search(text):
        return None
    if _TENSORFLOW_HOST.search(text):
        return "host", "tensorflow"
    if _CPU_DEVICE.search(text) and not _TENSORFLOW_DEVICE.search(text):
        return "host", "tensorflow"
    return "accelerator", "tensorflow"


Cause = Literal["own_limit", "neighbour"]

_SIZE: Final = r"(\d[\d,]{0,30}(?:\.\d{0,9})?) ?(bytes\b|[KMGTPE]i?B\b|[KMGTPE]\b|B\b)"
_UNITS: Final = {unit: 1024**power for power, unit in enumerate("BKMGTPE")}
"""The size of each unit in bytes. PyTorch on Apple, Ray and XLA write ``GB`` for 2^30 bytes."""
_MAX_BYTES: Final = 2**60
"""A size above the memory of any device. PyTorch's asynchronous allocator writes 2^64 bytes for "no limit"."""
_MAX_ROUNDING_BYTES: Final = 2**24
"""The maximum total error of three numbers rounded to 0.01 GiB. For limits below 3.1 GiB, it is 0.5 % of the limit."""


def _pattern(*sentences: str) -> re.Pattern[str]:
    """Return a pattern that matches any of ``sentences``, in which ``#`` stands for an amount."""
    return re.compile("|".join(sentence.replace("#", _SIZE) for sentence in sentences), re.IGNORECASE)


_REQUESTED: Final = _pattern(
    r"(?:tried|trying) to allocate #",  # PyTorch, XLA
    r"allocating #",  # CuPy; XLA on a CPU
    r"unable to (?:allocate|mmap) #",  # NumPy; PyTorch's shared memory
    r"Requested +: #",  # PyTorch, cudaMallocAsync
    r"allocate request for #",  # XLA's stream executor
    r"Requested memory: #",  # XGBoost
    r"Attempting to (?:allocate|reserve) #",  # TPU runtime
    r"memory space hbm\. Used #",  # TPU compiler
    r"\bOut of memory\. Requested #",  # CatBoost's memory pool
    r"Cannot allocate # memory on GPU",  # Paddle
)
_LIMIT: Final = _pattern(
    r"# allowed; ",  # PyTorch, if a memory fraction is set
    r"PyTorch limit \(set by user-supplied memory fraction\)\s*: #",
    r"max allowed: #",  # PyTorch on Apple
    r"limit set to: #",  # CuPy
)
_ALLOCATED: Final = (
    _pattern(r"Of the allocated memory #"),
    _pattern(r"and # is reserved by PyTorch but unallocated"),
    _pattern(r"# reserved in total by PyTorch"),  # up to PyTorch 2.0, and on NPU
    _pattern(r"Currently allocated +: #"),
    _pattern(r"MPS allocated: #"),
    _pattern(r"allocated so far: #"),  # CuPy
)
"""The parts of the memory that the allocator of a framework reserved. A text contains some of them."""
_OUTSIDE_ALLOCATOR: Final = _pattern(r"other allocations: #")  # of the same process, outside PyTorch's pools on Apple
_FREE: Final = _pattern(r"of which # ?is free", r"; # free;", r"Free \(according to \w+\): #")
_TOTAL: Final = _pattern(
    r"total capaci?ty of #",  # "capacty" up to PyTorch 2.2
    r"; # total capacity",  # up to PyTorch 2.0, and on NPU
    r"Device limit +: #",  # PyTorch, cudaMallocAsync
)
_IN_USE: Final = _pattern(r"this process has # memory in use")
_DRIVER_PART: Final = 0.02
"""An assumed maximum of the memory that belongs to no process, as a fraction of the total. The driver reserves it."""
_PROGRAM: Final = _pattern(
    r"total allocation: +#",  # XLA, with its statistics of the program's buffers
    r"memory space hbm\. Used #",  # TPU compiler
)
"""The memory that a compiled program needs in total, including its arguments and results."""

_OTHER_DEVICES: Final = (
    (re.compile(r"\b(NPU|MLU|GCU) out of memory"), None),
    (re.compile(r"Ran out of memory in memory space hbm|Attempting to (?:allocate|reserve) [\d.]"), "TPU"),
    (re.compile(r"MODULE:PT_DEVMEM Allocation failed"), "HPU"),
)
"""Sentences of devices that are not GPUs, with the device, or ``None`` if the sentence contains it."""

_SHAPE: Final = re.compile(r"allocating tensor (?:with|of) shape ?\[([\d, ]{0,500})\] and type (\w+)")
_ITEM_BYTES: Final = {
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
    "complex64": 8,
    "complex128": 16,
    "bool": 1,
} | {f"{sign}{bits}": bits // 8 for sign in ("int", "uint", "qint", "quint") for bits in (8, 16, 32, 64)}
"""The size of an element in bytes, keyed by TensorFlow's name of the element type (``DataTypeString``)."""


def requested_bytes(text: str) -> int | None:
    """Return the number of requested bytes according to ``text``, or ``None`` if it does not contain the number."""
    found = _SHAPE.search(text)
    if found:
        sizes = [int(size) for size in re.findall(r"\d{1,18}", found[1])]
        item_bytes = _ITEM_BYTES.get(found[2])
        if item_bytes is None:
            return None
        return _plausible(math.prod(sizes) * item_bytes) or None
    return _amount(_REQUESTED, text) or None


def limit_bytes(text: str) -> int | None:
    """Return the memory limit of the process in bytes according to ``text``, or ``None`` if it is missing."""
    return _amount(_LIMIT, text) or None


def in_use_bytes(text: str) -> int | None:
    """Return the device memory that the process used in bytes according to ``text``, or ``None`` if it is missing.

    If only the memory of the framework's allocator is known, the result is this memory, which is a lower bound.
    """
    held = held_bytes(text)
    if held is not None:
        held += _amount(_OUTSIDE_ALLOCATOR, text) or 0
    amounts = [amount for amount in (_amount(_IN_USE, text), held) if amount is not None]
    return max(amounts, default=None)


def held_bytes(text: str) -> int | None:
    """Return the memory that the framework's allocator reserved, in bytes, or ``None`` if ``text`` does not contain it.

    It includes memory that the allocator reserved, but did not give to tensors, because an allocator that runs out of
    memory has already released the blocks that it can release.
    """
    parts = [_amount(pattern, text) for pattern in _ALLOCATED]
    known = [part for part in parts if part is not None]
    if known:
        return sum(known)
    return None


def fills_device(text: str, overhead_bytes: int) -> bool:
    """Return whether an allocation failed because the process alone filled its device.

    Args:
        text: The error.
        overhead_bytes: The memory that a process may use outside the allocator, in bytes, for errors that contain only
            the memory of the allocator.
    """
    asked, free, total = requested_bytes(text), _amount(_FREE, text), total_bytes(text)
    if asked is None or free is None or total is None or free >= asked:
        return False
    in_use = _amount(_IN_USE, text)
    if in_use is not None:
        return total - in_use - free <= _DRIVER_PART * total
    held = held_bytes(text)
    return held is not None and total - held - free <= overhead_bytes


def program_bytes(text: str) -> int | None:
    """Return the memory that a compiled program needs in bytes according to ``text``, or ``None`` if it is missing."""
    return _amount(_PROGRAM, text) or None


def device_kind(text: str) -> str:
    """Return the kind of the device whose memory ran out, such as ``"GPU"`` or ``"NPU"``."""
    for sentence, kind in _OTHER_DEVICES:
        found = sentence.search(text)
        if found:
            return kind or found[1]
    return "GPU"


def total_bytes(text: str) -> int | None:
    """Return the memory of the device in bytes according to ``text``, or ``None`` if it is missing.

    The number in ``text`` is rounded, so the result is the least amount that is rounded to it.
    """
    found = _TOTAL.search(text)
    rounded = _amount(_TOTAL, text)
    if found is None or not rounded:
        return None
    number, unit = (value for value in found.groups() if value is not None)
    num_decimals = len(number.partition(".")[2])
    if not num_decimals:
        return rounded
    half_digit: float = _UNITS[unit[0].upper()] / 10**num_decimals / 2
    return math.ceil(rounded - half_digit)


def cause(text: str) -> Cause | None:
    """Return the cause of the error according to the numbers in ``text``, or ``None`` if the cause is unknown.

    A memory limit is the cause if the memory of the process plus its request exceeds the limit, or if the device has
    enough free memory. Otherwise, other processes are the cause. If the process has no limit, other processes are the
    cause if the request would have succeeded without them.
    """
    asked, limit, free = requested_bytes(text), limit_bytes(text), _amount(_FREE, text)
    if asked is None:
        return None
    if limit is not None:
        held = (held_bytes(text) or 0) + (_amount(_OUTSIDE_ALLOCATOR, text) or 0)
        if held + asked + min(_MAX_ROUNDING_BYTES, limit // 200) > limit or (free is not None and free >= asked):
            return "own_limit"
        return "neighbour"
    total, in_use = _amount(_TOTAL, text), _amount(_IN_USE, text)
    if free is None or total is None or in_use is None:
        return None
    if free < asked and in_use + asked <= total:
        return "neighbour"
    return None


def needed_share(text: str) -> float | None:
    """Return the part of its device that a process needed at least, or ``None`` if it has a limit or is unknown."""
    asked, total, in_use = requested_bytes(text), _amount(_TOTAL, text), _amount(_IN_USE, text)
    if asked is None or not total or in_use is None or limit_bytes(text) is not None:
        return None
    return (in_use + asked) / total


def _amount(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = (value for value in found.groups() if value is not None)
    return _plausible(float(number.replace(",", "")) * _UNITS[unit[0].upper()])


def _plausible(amount: float) -> int | None:
    if amount < _MAX_BYTES:
        return int(amount)
    return None
