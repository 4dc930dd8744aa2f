"""Amounts of memory as people write them: ``"6GiB"``, ``"500 MB"``, or a number of bytes.

Parsing is pydantic's ``ByteSize``: decimal units (kB, MB, GB, TB) are powers of 1000, binary ones
(KiB, MiB, GiB, TiB) powers of 1024.
"""

from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from tune_policies.errors import InvalidResourcesError

MIB: Final = 2**20
GIB: Final = 2**30

_BYTE_SIZE: Final = TypeAdapter(ByteSize)


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
        "(B, kB, MB, GB, TB, KiB, MiB, GiB, TiB) as in '6GiB'"
    )
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        raise InvalidResourcesError(f"{hint}; got {amount!r}")
    try:
        parsed = int(_BYTE_SIZE.validate_python(amount))
    except (ValidationError, OverflowError):  # pydantic lets infinity through to int()
        raise InvalidResourcesError(f"{hint}; got {amount!r}") from None
    if parsed <= 0:
        raise InvalidResourcesError(f"{hint}; got {amount!r}")
    return parsed


def format_request(amount: int) -> str:
    """Return a text that :func:`parse_bytes` reads as ``amount``, or as a little less: ``"40537MiB"``."""
    if amount < MIB:
        return str(amount)
    return f"{amount // GIB}GiB" if amount % GIB == 0 else f"{amount // MIB}MiB"


def format_bytes(amount: int) -> str:
    """Return ``amount`` bytes for people: ``"6 GiB"``, ``"1.5 GiB"``, ``"500 MiB"``."""
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if amount >= size:
            return f"{round(amount / size, 1):g} {unit}"
    return f"{amount} B"
