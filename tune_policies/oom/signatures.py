"""Knows what each framework raises when memory runs out, and tells that from errors that only mention memory.

An error counts by its type, where the type has no other meaning, or by a sentence that only an allocator or a driver
writes. The sentences are those of PyTorch 1.13 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp`` and its like for XPU,
NPU, MPS and cudaMallocAsync, ``c10/core/impl/alloc_cpu.cpp``), TensorFlow's ``bfc_allocator.cc`` and ``op_kernel.cc``,
XLA's ``pjrt`` and ``stream_executor``, and CuPy's ``memory.pyx``.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

from tune_policies.oom.amounts import cause, limit_bytes, requested_bytes
from tune_policies.oom.out_of_memory import OutOfMemory

MemoryKind = Literal["accelerator", "host"]

_PROGRAM_ERRORS: Final = frozenset(
    {"AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError"}
    | {"NotImplementedError", "SyntaxError", "TypeError", "ValueError", "ZeroDivisionError"}
)
"""Errors of the program itself. A person wrote what they say about memory, so it proves nothing."""

_FRAMEWORKS: Final = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"} | {
    "cupy_backends": "cupy",
    "torch_npu": "torch",
}
"""The framework of a type by the package that it comes from."""

_TORCH_OOM: Final = re.compile(r"torch(?:_\w+)?(?:\.\w+)*\.OutOfMemoryError")
_CUPY_OOM: Final = re.compile(r"cupy(?:\.\w+)*\.OutOfMemoryError")
_HOST_OOM: Final = re.compile(r"MemoryError|(?:numpy|pyarrow)(?:\.\w+)*\.\w*MemoryError")

KILLED_BY_RAY: Final = "ray.exceptions.OutOfMemoryError"
KILLED_BY_RAY_SENTENCE: Final = (
    r"^(?:(?:Task was|\d+ worker\(s\) were) killed due to the node running low on memory"
    r"|\S.*Worker exit type: NODE_OUT_OF_MEMORY)"
)
"""Ray's memory monitor, up to 2.55 and since. The kernel's own killer leaves no such trace: Ray then only lists what
may have happened."""

_DEVICES: Final = r"(?:CUDA|HIP|XPU|NPU|MLU|GCU|MPS backend)"
_NO_SENTENCE_BEFORE: Final = r"(?:^|[^\w\s]\s+|[^\w\s])"
"""What may stand before a quoted message: a colon or a bracket, but no words of another sentence."""
_RESOURCE_EXHAUSTED: Final = r"(?:RESOURCE_EXHAUSTED|Resource exhausted): "

_SENTENCES: Final[tuple[tuple[str, MemoryKind, str | None], ...]] = (
    (rf"{_DEVICES} out of memory(?:[.,]? (?:\w+ )?[Tt]ried to allocate| \()", "accelerator", "torch"),
    (rf"{_NO_SENTENCE_BEFORE}{_DEVICES} out of memory\.?$", "accelerator", "torch"),
    (r"Allocation on device \S+ would exceed allowed memory\. \(out of memory\)", "accelerator", "torch"),
    (rf"{_DEVICES} (?:driver )?error: out of memory", "accelerator", "torch"),
    (r"\bCUDNN_STATUS_\w*HOST_ALLOCATION_FAILED\b", "host", "torch"),
    (r"(?:CUDA|HIP|cuDNN|cuFFT|cusolver) error: \w+_ALLOC(?:ATION)?_FAILED", "accelerator", "torch"),
    (r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA calloc async \d+ bytes", "accelerator", "torch"),  # NCCL
    (r"CUDA Error: out of memory at line \d+", "accelerator", None),  # bitsandbytes
    (r"^\[CUDA\] out of memory\b", "accelerator", None),  # LightGBM
    (r"Out of memory allocating [\d,]+ bytes \(allocated so far", "accelerator", "cupy"),
    (rf"{_RESOURCE_EXHAUSTED}Out of memory allocating \d+ bytes", "host", "jax"),  # XLA's client for CPUs
    (rf"{_RESOURCE_EXHAUSTED}Out of memory while trying to allocate", "accelerator", "jax"),
    (rf"{_RESOURCE_EXHAUSTED}Failed to allocate request for", "accelerator", "jax"),
    (r"Ran out of memory in memory space hbm", "accelerator", "jax"),  # TPU, compiling
    (r"Attempting to (?:allocate|reserve) [\d.]++\w.{0,200}\. That was not possible", "accelerator", "jax"),  # TPU
    (r"\b(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory|hipErrorMemoryAllocation)\b", "accelerator", None),
    (r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\b\w+_OUT_OF_DEVICE_MEMORY\b", "accelerator", None),
    (r"\bUR_RESULT_ERROR_OUT_OF_RESOURCES\b", "accelerator", None),  # Intel's runtime, out of device memory mostly
    (r"\b(?:CU|HIP)[A-Z]+_(?:STATUS_)?(?:\w+_)?ALLOC(?:ATION)?_FAILED\b", "accelerator", None),
    (r"DefaultCPUAllocator: (?:can't allocate|not enough) memory", "host", "torch"),
    (r"unable to mmap \d+ bytes from .{0,1000}: Cannot allocate memory", "host", "torch"),
    (KILLED_BY_RAY_SENTENCE, "host", "ray"),
    (r"^\[Errno 12\] ", "host", "python"),
    (r"^std::bad_alloc$", "host", None),
)
"""Sentences that nothing else writes, the memory that ran out, and the framework where the type does not tell."""

_TENSORFLOW_OOM: Final = re.compile(
    r"OOM when allocating tensor|[Ff]ailed to allocate memory|[Oo]ut of memory|[Rr]an out of (?:GPU )?memory"
    r"|_ALLOC_FAILED|Dst tensor is not initialized"  # a copy to a GPU that has no room
)
_XLA_OOM: Final = re.compile(r"[Oo]ut of memory|OUT_OF_MEMORY|[Ff]ailed to allocate|[Rr]an out of memory in")
_TENSORFLOW_HOST: Final = re.compile(r"by allocator (?:\w*cpu\b|\w*host)")
_TENSORFLOW_DEVICE: Final = re.compile(r"by allocator|device:(?:GPU|TPU|XPU):")
_CPU_DEVICE: Final = re.compile(r"device:CPU:")
_ACCELERATOR_TEXT: Final = re.compile(r"\bCUDA|cudaError|\bHIP\b|hipError|\bRMM failure\b")


def match_signature(types: Sequence[str], text: str) -> OutOfMemory | None:
    """Return what an error says about memory that ran out; ``None`` if it means something else.

    Args:
        types: The full names of its type and of that type's bases, built-in ones without a module.
        text: Its message.
    """
    found = _by_type(types, text) or _by_text(types, text)
    if found is None:
        return None
    kind, framework = found
    accelerator = kind == "accelerator"
    return OutOfMemory(
        kind=kind,
        framework=framework,
        requested_bytes=requested_bytes(text),
        limit_bytes=limit_bytes(text) if accelerator else None,
        cause=cause(text) if accelerator else None,
    )


def _by_type(types: Sequence[str], text: str) -> tuple[MemoryKind, str | None] | None:
    if any(_TORCH_OOM.fullmatch(name) for name in types):
        return "accelerator", "torch"
    if any(_CUPY_OOM.fullmatch(name) for name in types):
        return "accelerator", "cupy"
    if KILLED_BY_RAY in types:
        return "host", "ray"
    if any(_HOST_OOM.fullmatch(name) for name in types):
        # RAPIDS and others raise a plain MemoryError for memory of the device.
        return ("accelerator", None) if _ACCELERATOR_TEXT.search(text) else ("host", "python")
    return None


def _by_text(types: Sequence[str], text: str) -> tuple[MemoryKind, str | None] | None:
    if not types or types[0] in _PROGRAM_ERRORS:
        return None
    framework = next((_FRAMEWORKS[package] for name in types if (package := name.split(".")[0]) in _FRAMEWORKS), None)
    if framework == "tensorflow":
        return _tensorflow(types, text)
    for sentence, kind, writer in _SENTENCES:
        if re.search(sentence, text, re.MULTILINE):
            return kind, framework or writer
    if framework == "jax" and _XLA_OOM.search(text):
        return ("host" if "host memory" in text else "accelerator"), "jax"
    return None


def _tensorflow(types: Sequence[str], text: str) -> tuple[MemoryKind, str] | None:
    """Classify an error of TensorFlow. Its ResourceExhaustedError also means files, disks and messages."""
    exhausted = any(name.endswith(("ResourceExhaustedError", "InternalError")) for name in types)
    if not exhausted or not _TENSORFLOW_OOM.search(text):
        return None
    if _TENSORFLOW_HOST.search(text):
        return "host", "tensorflow"
    on_cpu = _CPU_DEVICE.search(text) and not _TENSORFLOW_DEVICE.search(text)
    return ("host" if on_cpu else "accelerator"), "tensorflow"
