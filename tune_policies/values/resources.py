"""Amounts of schedulable hardware in ticks of 1/10,000, the unit in which Ray counts them.

Amounts are compared and divided in ticks. With floats, ``1.0 // 0.1`` is 9, so a trial would lose its tenth slice of a
GPU.
"""

import math
from collections.abc import Mapping
from functools import cached_property, partial
from numbers import Integral
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import MIB, MOST_BYTES, format_bytes, is_number, parse_bytes, parse_memory
from tune_policies.values.value import Checked, Value, shorten

TICKS: Final = 10_000
"""Ticks in one whole CPU, GPU or custom resource (``RESOURCE_UNIT_SCALING`` in Ray)."""

Amounts = dict[str, int]
"""Ticks by Ray's name of the resource, and ``memory`` in bytes."""

MOST_AT_ONCE: Final = 100_000
"""The most trials, or bundles, for which nodes are designed or requested, because the work grows with their number."""

MOST: Final = 10**11
"""Floats above this number do not distinguish adjacent ticks."""

_FIELDS: Final = {
    "CPU": "use cpus=",
    "GPU": "use gpus=",
    "memory": "use memory=, in Resources memory_bytes=",
}
"""Names that no custom resource may have, and what to do instead."""


def to_ticks(amount: float) -> int:
    """Return ``amount`` in whole ticks, rounded down as in Ray.

    0.57 is 5700 ticks, although ``0.57 * 10_000`` is slightly less in floats.
    """
    return math.floor(round(amount * TICKS, 4))


def from_ticks(ticks: int) -> float:
    """Return the amount that Ray reads as exactly ``ticks``; an ``int`` if it is whole."""
    if ticks % TICKS == 0:
        return ticks // TICKS
    amount = ticks / TICKS
    # Ray truncates `amount * 10_000`, so 0.0384 would lose a tick, and a 27th trial would fit.
    return amount if int(amount * TICKS) == ticks else math.nextafter(amount, math.inf)


def ray_ticks(amounts: Mapping[str, float]) -> Amounts:
    """Return in ticks the amounts by Ray's names, which are in units, and ``memory`` in bytes."""
    return {name: int(amount) if name == "memory" else to_ticks(amount) for name, amount in amounts.items()}


def check_amount(amount: object, *, name: str) -> float:
    """Return ``amount`` in whole ticks, as a number.

    Raises:
        InvalidResourcesError: It is not a number, negative, not finite, or finer than a tick.
    """
    if type(amount) is float and amount.is_integer() and 0 < amount <= MOST:  # most amounts of large clusters
        return amount
    if not is_number(amount):
        raise InvalidResourcesError(f"{name} must be a number, got {amount!r}")
    if not 0 <= amount <= MOST:  # also true of nan
        raise InvalidResourcesError(f"{name} must be a finite number from 0 to {MOST:.0e}, got {shorten(amount)}")
    amount = float(amount)
    ticks = to_ticks(amount)
    if amount > 0 and ticks == 0:
        raise InvalidResourcesError(f"{name} must be 0.0001 or more, as Ray counts in such steps: got {amount!r}")
    return ticks / TICKS


def check_gpus(amount: object, *, name: str = "gpus") -> float:
    """Return ``amount`` if Ray can allocate it: a fraction of one GPU, or whole GPUs.

    Raises:
        InvalidResourcesError: It is not an amount, or above 1 and not whole.
    """
    checked = check_amount(amount, name=name)
    if checked > 1 and not float(checked).is_integer():
        raise InvalidResourcesError(
            f"{name} above 1 must be whole, got {amount!r}: ask for {math.floor(checked)} or {math.ceil(checked)}"
        )
    return checked


def check_count(value: object, *, least: int, name: str, most: int = MOST) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``.

    Raises:
        InvalidResourcesError: It is not.
    """
    if not is_number(value) or not isinstance(value, int | Integral) or value < least:
        raise InvalidResourcesError(f"{name} must be a whole number, {least} or above, got {shorten(value)}")
    if value > most:
        raise InvalidResourcesError(f"{name} must be at most {most:,}, got {shorten(value)}")
    return int(value)


def _workers(value: object, *, name: str) -> int | tuple[int, int]:
    if not isinstance(value, list | tuple):
        return check_count(value, least=0, name=name)
    if len(value) != 2:
        raise InvalidResourcesError(
            f"{name} must be a whole number, or the fewest and the most such as (2, 8): got {shorten(value)}"
        )
    fewest, most = (check_count(number, least=1, name=f"each of {name}") for number in value)
    if fewest > most:
        raise InvalidResourcesError(f"{name} must name the fewest first, got {shorten(value)}")
    return fewest if fewest == most else (fewest, most)


def fewest_workers(num_workers: int | tuple[int, int]) -> int:
    """Return the number of Train workers with which a trial starts."""
    return num_workers if isinstance(num_workers, int) else num_workers[0]


def _speed(value: object, *, name: str) -> float:
    if not is_number(value) or not 0 < value <= MOST:
        raise InvalidResourcesError(f"{name} must be a number above 0, at most {MOST:.0e}, got {shorten(value)}")
    return float(value)


def _custom(value: object, *, name: str) -> object:
    if value == {}:
        return value
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidResourcesError(f"{name} must map names of Ray resources to amounts, got {value!r}")
    for reserved in sorted(value.keys() & _FIELDS.keys()):
        raise InvalidResourcesError(f"custom resource {reserved!r} has a field of its own: {_FIELDS[reserved]}")
    if "object_store_memory" in value:
        raise InvalidResourcesError(
            "custom resource 'object_store_memory' is Ray's object store, which no worker reserves: leave it out"
        )
    checked = {each: check_amount(value[each], name=each) for each in sorted(value)}
    return {each: amount for each, amount in checked.items() if amount > 0}


def _whole(least: int, most: int) -> CoreSchema:
    """Return the schema of plain whole numbers."""
    return core_schema.int_schema(strict=True, ge=least, le=most)


_WHOLE_AMOUNT: Final = core_schema.chain_schema(
    [core_schema.float_schema(strict=True), core_schema.int_schema(ge=0, le=MOST)]
)
"""The schema of plain amounts without a fraction."""

Amount = Annotated[float, Checked(check_amount, _WHOLE_AMOUNT)]
"""A number of units, 0 or above, in whole ticks of 0.0001."""
GpuAmount = Annotated[float, Checked(check_gpus, _WHOLE_AMOUNT)]
"""A number of GPUs: a fraction up to 1, whole above."""
Bytes = Annotated[int, Field(ge=1), Checked(parse_bytes, _whole(1, MOST_BYTES))]
"""Bytes above 0 that were read or computed."""
Memory = Annotated[int | str, Checked(parse_memory), WithJsonSchema({"type": ["integer", "string"], "minimum": MIB})]
"""Memory that a user asks for: a text such as ``"6GiB"``, or bytes from 1 MiB on. Stored as a number of bytes."""
UsedBytes = Annotated[
    int,
    Field(ge=0, le=MOST_BYTES),
    Checked(partial(check_count, least=0, most=MOST_BYTES), _whole(0, MOST_BYTES)),
]
"""Bytes that were measured, 0 or above."""
Count = Annotated[int, Field(ge=0), Checked(partial(check_count, least=0), _whole(0, MOST))]
"""A whole number, 0 or above."""
PositiveCount = Annotated[int, Field(ge=1), Checked(partial(check_count, least=1), _whole(1, MOST))]
"""A whole number, 1 or above."""
CustomAmounts = Annotated[dict[str, float], Checked(_custom, core_schema.dict_schema(max_length=0, strict=True))]
"""Amounts of other Ray resources by their names, without those of 0."""
Speed = Annotated[float, Checked(_speed)]
"""How fast something runs compared with something else: a number above 0."""
WorkerCount = Annotated[int | tuple[int, int], Checked(_workers)]
"""Train workers of a trial. A pair is the fewest and the most, between which Ray Train chooses while the trial runs."""


class Resources(Value):
    """The hardware that a node has, or that a trial or worker reserves.

    Attributes:
        cpus: Logical CPUs.
        gpus: GPUs that Ray schedules: a fraction up to 1, whole above.
        memory_bytes: Host memory. ``None`` means that it is not known on a node, and that a request reserves none.
        custom: Other Ray resources by name, such as ``{"TPU": 4}``.

    Raises:
        InvalidResourcesError: An amount is negative, not finite, not a number, finer than 0.0001, or a fraction of GPUs
            above 1.
    """

    cpus: Amount = 0
    gpus: GpuAmount = 0
    memory_bytes: Bytes | None = None
    custom: CustomAmounts = Field(default_factory=dict)

    @cached_property
    def ticks(self) -> Amounts:
        """All amounts above 0 by Ray's names, in ticks of 1/10,000, and ``memory`` in bytes."""
        amounts = {"CPU": to_ticks(self.cpus), "GPU": to_ticks(self.gpus), "memory": self.memory_bytes or 0}
        amounts |= {name: to_ticks(amount) for name, amount in self.custom.items()}
        return {name: amount for name, amount in amounts.items() if amount > 0}

    def __str__(self) -> str:
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **dict(sorted(self.custom.items()))}
        parts = [amount_of(amount, name) for name, amount in amounts.items() if amount > 0]
        if self.memory_bytes is not None:
            parts.append(f"{format_bytes(self.memory_bytes)} of host memory")
        return ", ".join(parts) or "nothing"

    def with_ticks(self, name: str, ticks: int) -> "Resources":
        """Return a copy with another amount of the resource with Ray's name, in ticks, or bytes of ``memory``."""
        match name:
            case "CPU":
                return self.replaced(cpus=from_ticks(ticks))
            case "GPU":
                return self.replaced(gpus=from_ticks(ticks))
            case "memory":
                return self.replaced(memory_bytes=ticks or None)
            case _:
                return self.replaced(custom={**self.custom, name: from_ticks(ticks)})

    def replaced(self, **changes: float | dict[str, float] | None) -> "Resources":
        """Return a copy with some fields changed, which are validated."""
        return Resources(**{**self.model_dump(), **changes})


def format_amount(amount: float) -> str:
    """Return ``amount`` without the digits that floats add, such as ``"0.5"`` or ``"4"``."""
    return f"{round(amount, 4):g}" if amount < 100_000 else f"{amount:.0f}"


def amount_of(amount: float, name: str) -> str:
    """Return the amount of a resource as text: ``"1 CPU"``, ``"0.5 GPU"``, ``"8 CPUs"``, ``"2 neuron_cores"``."""
    has_plural = name.endswith("PU") and not 0 < amount <= 1
    return f"{format_amount(amount)} {name}{'s' if has_plural else ''}"
