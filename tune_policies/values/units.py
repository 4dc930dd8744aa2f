"""Amounts of memory as people write them: ``"6GiB"``, ``"500 MB"``, or a number of bytes.

Parsing is pydantic's ``ByteSize``: decimal units (kB, MB, GB, TB) are powers of 1000, binary ones
(KiB, MiB, GiB, TiB) powers of 1024. Without the B (``"6Gi"``, ``"500M"``) they are as Kubernetes writes them, and mean
the same.
"""

import re
from numbers import Real
from typing import Final, TypeGuard

from pydantic import ByteSize, TypeAdapter, ValidationError

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

MIB: Final = 2**20
GIB: Final = 2**30

MOST_BYTES: Final = 2**63 - 1
"""What Ray can count."""

_BYTE_SIZE: Final = TypeAdapter(ByteSize)

_WHOLE_TEXT: Final = re.compile(r"(?:\d++(?:\.\d++)?|\.\d++)\s*+\w*+")
"""What pydantic reads of a text. It lets be what follows, and would take ``"50%"`` for 50 bytes.

Nothing is given back here (``++``): a word character may be a digit, and a long text would take for ever.
"""

_BINARY_OF_KUBERNETES: Final = re.compile(r".*[\d.\s][KMGTPE]i")

_OF_DOCKER: Final = re.compile(r".*[\d.\s][Kmgtpe]")
"""What pydantic reads as decimal is binary in Docker, and ``m`` is a thousandth in Kubernetes: so it is not read."""

_LONGEST: Final = 100
"""Characters of an amount: more than any has."""


def parse_bytes(amount: object, *, name: str = "memory") -> int:
    """Return ``amount`` in bytes.

    Args:
        amount: A number of bytes, or a text with a unit such as ``"6GiB"``.
        name: What is being read, for the message.

    Raises:
        InvalidResourcesError: ``amount`` cannot be read, or is not above 0.
    """
    hint = (
        f"{name} must be above 0: a number of bytes, or a number with a unit "
        "(B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, or Ki, Mi, Gi, k, M, G as in Kubernetes) as in '6GiB'"
    )
    if isinstance(amount, str):
        try:
            text = amount.strip()
            if len(amount) > _LONGEST or not _WHOLE_TEXT.fullmatch(text) or _OF_DOCKER.fullmatch(text):
                raise ValueError
            amount = _BYTE_SIZE.validate_python(f"{text}B" if _BINARY_OF_KUBERNETES.fullmatch(text) else text)
        except (ValidationError, OverflowError, ValueError):
            raise InvalidResourcesError(f"{hint}; got {shorten(amount)}") from None
    if not is_number(amount) or not 1 <= amount <= MOST_BYTES:
        raise InvalidResourcesError(f"{hint}; got {shorten(amount)}")
    return int(amount)


def parse_memory(amount: object, *, name: str = "memory") -> int:
    """Return the bytes of memory that somebody asks for, 1 MiB or more.

    Raises:
        InvalidResourcesError: ``amount`` cannot be read, or is so little that a unit was forgotten.
    """
    found = parse_bytes(amount, name=name)
    if found < MIB:
        number = amount.strip() if isinstance(amount, str) else shorten(amount)
        meant = f": write '{number}GiB'" if is_number(amount) or number.isdecimal() else ""
        raise InvalidResourcesError(
            f"{name}={amount!r} would be {found} {'byte' if found == 1 else 'bytes'}, and the least is 1 MiB{meant}"
        )
    return found


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a real number, of Python or of NumPy; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def format_request(amount: int) -> str:
    """Return a text that :func:`parse_bytes` reads as ``amount``, or as a little less: ``"40537MiB"``."""
    if amount < MIB:
        return str(amount)
    return f"{amount // GIB}GiB" if amount % GIB == 0 else f"{amount // MIB}MiB"


def format_money(amount: float) -> str:
    """Return an amount of money with two decimals, or two significant digits if it is small."""
    return f"{amount:.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"


def format_bytes(amount: int, digits: int = 1) -> str:
    """Return ``amount`` bytes for people: ``"6 GiB"``, ``"1.5 GiB"``, ``"500 MiB"``."""
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if amount >= size:
            return f"{round(amount / size, digits):g} {unit}"
    return f"{amount} B"
