"""The numbers in a message about memory: what was asked for, the limit, and who had taken the rest.

Every unit is binary: PyTorch on Apple, Ray and XLA write ``GB`` or ``G`` for 2^30 bytes.
"""

import math
import re
from typing import Final, Literal

Cause = Literal["own_limit", "neighbour"]

_SIZE: Final = r"(\d[\d,]{0,30}(?:\.\d{0,9})?) ?(bytes\b|[KMGTPE]i?B\b|[KMGTPE]\b|B\b)"
_UNITS: Final = {unit: 1024**power for power, unit in enumerate("BKMGTPE")}
_MAX_BYTES: Final = 2**60
"""More than any device has; without a limit, PyTorch's asynchronous allocator names one of 2^64 bytes."""
_MAX_ROUNDING_BYTES: Final = 2**24
"""Three numbers, each rounded to 0.01 GiB, are off by 15.4 MiB together at most; small ones by 0.5 %."""


def _pattern(*sentences: str) -> re.Pattern[str]:
    """Return a pattern that matches any of ``sentences``, in which ``#`` stands for an amount."""
    return re.compile("|".join(sentence.replace("#", _SIZE) for sentence in sentences), re.IGNORECASE)


_ASKED: Final = _pattern(
    r"(?:tried|trying) to allocate #",  # PyTorch, XLA
    r"allocating #",  # CuPy; XLA on a CPU
    r"unable to (?:allocate|mmap) #",  # NumPy; PyTorch's shared memory
    r"Requested +: #",  # PyTorch, cudaMallocAsync
    r"allocate request for #",  # XLA's stream executor
    r"Attempting to (?:allocate|reserve) #",  # TPU runtime
    r"memory space hbm\. Used #",  # TPU compiler
    r"memory used=#",  # Ray's memory monitor: of the task that it killed
)
_LIMIT: Final = _pattern(
    r"# allowed; ",  # PyTorch, where a fraction is set
    r"PyTorch limit \(set by user-supplied memory fraction\)\s*: #",
    r"max allowed: #",  # PyTorch on Apple
    r"limit set to: #",  # CuPy
)
_HELD: Final = (
    _pattern(r"Of the allocated memory #"),
    _pattern(r"and # is reserved by PyTorch but unallocated"),
    _pattern(r"# reserved in total by PyTorch"),  # up to PyTorch 2.0, and on NPU
    _pattern(r"Currently allocated +: #"),
    _pattern(r"MPS allocated: #"),
    _pattern(r"other allocations: #"),  # of the same process, outside PyTorch's pools
    _pattern(r"allocated so far: #"),  # CuPy
)
_FREE: Final = _pattern(r"of which # ?is free", r"; # free;", r"Free \(according to \w+\): #")
_TOTAL: Final = _pattern(r"total capaci?ty of #")  # "capacty" up to PyTorch 2.2
_IN_USE: Final = _pattern(r"this process has # memory in use")

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
"""Bytes of an element by TensorFlow's name for its type (``DataTypeString``)."""


def requested_bytes(text: str) -> int | None:
    """Return how many bytes were asked for, or ``None`` if ``text`` does not say."""
    if found := _SHAPE.search(text):
        sizes = [int(size) for size in re.findall(r"\d{1,18}", found[1])]
        item_bytes = _ITEM_BYTES.get(found[2])
        return None if item_bytes is None else _plausible(math.prod(sizes) * item_bytes) or None
    return _amount(_ASKED, text) or None


def limit_bytes(text: str) -> int | None:
    """Return the process's own limit, or ``None`` if ``text`` names none."""
    return _amount(_LIMIT, text) or None


def cause(text: str) -> Cause | None:
    """Return who had taken the memory, by the numbers in ``text``; ``None`` if they do not tell.

    Where the process has a limit, what it holds and what it asked for together may pass the limit: then the limit is
    the cause. If they do not, others had filled the device. Without a limit, others had filled the device if the
    process alone would have fitted into it.
    """
    asked, limit, free = requested_bytes(text), limit_bytes(text), _amount(_FREE, text)
    if asked is None:
        return None
    if limit is not None:
        held = sum(_amount(pattern, text) or 0 for pattern in _HELD)
        if held + asked + min(_MAX_ROUNDING_BYTES, limit // 200) > limit or (free is not None and free >= asked):
            return "own_limit"
        return "neighbour"
    total, in_use = _amount(_TOTAL, text), _amount(_IN_USE, text)
    if free is None or total is None or in_use is None:
        return None
    return "neighbour" if free < asked and in_use + asked <= total else None


def _amount(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = (value for value in found.groups() if value is not None)
    return _plausible(float(number.replace(",", "")) * _UNITS[unit[0].upper()])


def _plausible(amount: float) -> int | None:
    return int(amount) if amount < _MAX_BYTES else None
