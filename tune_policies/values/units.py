"""Amounts of memory as users write them: ``"6GiB"``, ``"500 MB"``, or a number of bytes.

Pydantic's ``ByteSize`` parses the strings. Decimal units (kB, MB, GB, TB) are powers of 1000, and binary units (KiB,
MiB, GiB, TiB) are powers of 1024. Kubernetes writes the same units without the B (``"6Gi"``, ``"500M"``).
"""

import math
import re
from numbers import Integral, Real
from typing import Final, TypeGuard

from pydantic import ByteSize, ConfigDict, TypeAdapter, ValidationError

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import counted, shorten

MIB: Final = 2**20
GIB: Final = 2**30

MOST_BYTES: Final = 2**63 - 1
"""The maximum number of bytes that Ray can count."""

_BYTE_SIZE: Final = TypeAdapter(ByteSize, config=ConfigDict(defer_build=True))

_WHOLE_TEXT: Final = re.compile(r"(?:\d++(?:\.\d++)?|\.\d++)\s*+\w*+")
"""Matches strings that pydantic parses completely. Pydantic would read other strings in part: ``"50%"`` as 50 bytes.

The quantifiers do not backtrack (``++``), because a long string of digits would otherwise take very long.
"""

_NUMBER: Final = re.compile(r"\d++(?:\.\d++)?")

_BINARY_OF_KUBERNETES: Final = re.compile(r".*[\d.\s][KMGTPE]i")

_OF_DOCKER: Final = re.compile(r".*[\d.\s][Kmgtpe]")
"""Rejected units. They are decimal in pydantic but binary in Docker, and ``m`` is a thousandth in Kubernetes."""

_LONGEST: Final = 100
"""The maximum length of a string with an amount, in characters."""


def parse_bytes(amount: object, *, name: str = "memory") -> int:
    """Convert a number of bytes, or a string such as ``"6GiB"``, to a whole number of bytes.

    Raises:
        InvalidResourcesError: ``amount`` has another form, or is not above 0. The message contains ``name``.
    """
    try:
        given = _read_text(amount) if isinstance(amount, str) else amount
        number = to_python(given) if is_number(given) else 0
        if 1 <= number <= MOST_BYTES:
            return int(number)
    except (ValidationError, OverflowError, ValueError):
        pass
    raise InvalidResourcesError(
        f"{name} must be a number of bytes above 0 or a string such as '6GiB', got {shorten(amount)} "
        "(units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, or Ki, Mi, Gi, k, M, G as in Kubernetes)"
    )


def _read_text(text: str) -> int:
    stripped = text.strip()
    if len(text) > _LONGEST or not _WHOLE_TEXT.fullmatch(stripped) or _OF_DOCKER.fullmatch(stripped):
        raise ValueError
    if _BINARY_OF_KUBERNETES.fullmatch(stripped):
        stripped += "B"
    return _BYTE_SIZE.validate_python(stripped)


_MOST_GIB: Final = 1024
"""The largest number without a unit that probably means GiB. Larger numbers, such as 8192, mean MiB."""


def parse_memory(amount: object, *, name: str = "memory") -> int:
    """Return the memory that a user requests, in bytes.

    Raises:
        InvalidResourcesError: ``amount`` is not an amount of memory, or is below 1 MiB, usually because its unit is
            missing.
    """
    found = parse_bytes(amount, name=name)
    if found < MIB:
        message = f"{name}={amount!r} would be {counted(found, 'byte')}, but the minimum is 1 MiB"
        number = _number_without_unit(amount)
        if number is not None:
            unit = "GiB" if found <= _MOST_GIB else "MiB"
            message += f". Write '{number}{unit}'"
        raise InvalidResourcesError(message)
    return found


def _number_without_unit(amount: object) -> str | None:
    """Return the number that a user passed without a unit, as text, or ``None`` if the amount has a unit."""
    if not isinstance(amount, str):
        return f"{float(amount):.10g}"  # type: ignore[arg-type]  # not as in the repr of NumPy's numbers
    if _NUMBER.fullmatch(amount.strip()):
        return amount.strip()
    return None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a real number of Python or NumPy, but not a bool."""
    return isinstance(value, int | float | Real) and not isinstance(value, bool)


def to_python(number: float) -> float:
    """Return a number as an ``int`` or ``float``, because NumPy's ``float16`` overflows when it is compared."""
    if isinstance(number, int | float):
        return number
    if isinstance(number, Integral):
        return int(number)
    try:
        return float(number)
    except OverflowError:  # a Fraction
        return math.inf if number > 0 else -math.inf


def check_seconds(seconds: object, name: str) -> float:
    """Return ``seconds`` if it is a number above 0, else raise ``InvalidResourcesError``."""
    if not is_number(seconds) or not seconds > 0:
        raise InvalidResourcesError(f"{name} must be above 0 seconds, got {shorten(seconds)}")
    return float(seconds)


def format_request(amount: int) -> str:
    """Return ``amount`` bytes as a string for :func:`parse_bytes`, rounded down to whole MiB if it is above 1 MiB."""
    if amount < MIB:
        return str(amount)
    if amount % GIB == 0:
        return f"{amount // GIB}GiB"
    return f"{amount // MIB}MiB"


def exact_text(amount: int) -> int | str:
    """Return ``amount`` bytes as the shortest exact text for :func:`parse_bytes`, or as a number if no unit fits."""
    units = {"TiB": 2**40, "GiB": GIB, "MiB": MIB, "TB": 10**12, "GB": 10**9, "MB": 10**6, "KiB": 2**10}
    return next((f"{amount // size}{unit}" for unit, size in units.items() if amount % size == 0), amount)


def format_money(amount: float) -> str:
    """Return an amount of money with two decimals, or two significant digits if it is small."""
    if amount >= 0.1 or amount == 0:
        return f"{amount:.2f}"
    return f"{amount:.2g}"


def two_digits(number: float) -> str:
    """Return a number with two significant digits, or all digits before the point: ``"0.65"``, ``"7.9"``, ``"128"``."""
    if number >= 10:
        return f"{number:.0f}"
    return f"{number:.2g}"


def format_bytes(amount: int, digits: int = 1) -> str:
    """Return ``amount`` bytes as readable text: ``"6 GiB"``, ``"1.5 GiB"``, ``"500 MiB"``."""
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        rounds_up = round(1024 * amount / size, digits) >= 1024  # 1023.99 MiB is written as 1 GiB
        if amount >= size or rounds_up:
            return f"{round(amount / size, digits):g} {unit}"
    return f"{amount} B"
