"""Amounts of schedulable hardware, counted in ticks of 1/10,000, as in Ray.

Amounts are compared and divided in ticks. With floats, ``1.0 // 0.1`` is 9, so only nine trials with 0.1 GPU would fit
on a GPU.
"""

import math
from collections.abc import Mapping
from functools import cached_property, partial
from numbers import Integral
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import Checked, FrozenDict
from tune_policies.values.units import (
    MIB,
    MOST_BYTES,
    exact_text,
    format_bytes,
    is_number,
    parse_bytes,
    parse_memory,
    to_python,
)
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten

TICKS: Final = 10_000
"""The number of ticks in one whole CPU, GPU or custom resource (``RESOURCE_UNIT_SCALING`` in Ray)."""

Amounts = dict[str, int]
"""Amounts keyed by Ray's resource names. ``memory`` is in bytes, and all other amounts are in ticks."""

MOST_AT_ONCE: Final = 100_000
"""The maximum number of trials or bundles for which nodes are designed or requested, to limit the run time."""

MOST: Final = 10**11
"""The maximum amount of a resource. Much larger floats cannot represent adjacent ticks."""

_NOT_CUSTOM: Final = {
    "CPU": "Use the field cpus",
    "GPU": "Use the field gpus",
    "memory": "Use the field memory, or memory_bytes of Resources",
    "object_store_memory": "Omit it, because workers do not reserve Ray's object store",
}
"""Ray resources that are not custom resources, and the fix for each of them."""


def to_ticks(amount: float) -> int:
    """Return ``amount`` in whole ticks, rounded down as in Ray.

    0.57 is 5700 ticks, although ``0.57 * 10_000`` is slightly less in floats.
    """
    return math.floor(round(amount * TICKS, 4))


def from_ticks(ticks: int) -> float:
    """Return the amount that Ray reads as exactly ``ticks``, as an ``int`` if it is whole."""
    if ticks % TICKS == 0:
        return ticks // TICKS
    amount = ticks / TICKS
    # Ray truncates `amount * 10_000`, so it would read 0.0384 as 383 ticks.
    if int(amount * TICKS) == ticks:
        return amount
    return math.nextafter(amount, math.inf)


def ray_ticks(amounts: Mapping[str, float]) -> Amounts:
    """Convert amounts, keyed by Ray's resource names, to ticks, and ``memory`` to bytes."""
    ticks = {}
    for name, amount in amounts.items():
        ticks[name] = int(amount) if name == "memory" else to_ticks(amount)  # host memory is in bytes
    return ticks


def check_amount(amount: object, *, name: str) -> float:
    """Return ``amount`` rounded down to whole ticks.

    Raises:
        InvalidResourcesError: The amount is not a number, is negative or not finite, or is above 0 and below one tick.
    """
    if type(amount) is float and amount.is_integer() and 0 < amount <= MOST:  # a fast path for most amounts
        return amount
    if not is_number(amount):
        raise InvalidResourcesError(f"{name} must be a number, got {amount!r}")
    number = to_python(amount)
    if not 0 <= number <= MOST:  # also true for nan
        valid = "0 or more" if number < 0 else f"a finite number up to {MOST:.0e}"
        raise InvalidResourcesError(f"{name} must be {valid}, got {shorten(amount)}")
    ticks = to_ticks(number)
    if number > 0 and ticks == 0:
        raise InvalidResourcesError(f"{name} must be 0, or at least 0.0001 (Ray's smallest amount), got {amount!r}")
    return ticks / TICKS


def check_gpus(amount: object, *, name: str = "gpus") -> float:
    """Return ``amount`` if it is a fraction of one GPU or a whole number, or raise an ``InvalidResourcesError``."""
    checked = check_amount(amount, name=name)
    if checked > 1 and not float(checked).is_integer():
        raise InvalidResourcesError(
            f"{name} above 1 must be whole, got {amount!r}. Request {math.floor(checked)} or {math.ceil(checked)}"
        )
    return checked


def check_count(value: object, *, least: int, name: str, most: int = MOST) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``, or raise an ``InvalidResourcesError``."""
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
            f"{name} must be a whole number, or a minimum and a maximum such as (2, 8), got {shorten(value)}"
        )
    fewest, most = (check_count(number, least=1, name=f"each of {name}") for number in value)
    if fewest > most:
        raise InvalidResourcesError(f"{name} must be (minimum, maximum), got {shorten(value)}. Use {(most, fewest)}")
    if fewest == most:
        return fewest
    return (fewest, most)


def fewest_workers(num_workers: int | tuple[int, int]) -> int:
    """Return the minimum number of Train workers of a trial."""
    if isinstance(num_workers, int):
        return num_workers
    return num_workers[0]


def _speed(value: object, *, name: str) -> float:
    if not is_number(value) or not 0 < to_python(value) <= MOST:
        raise InvalidResourcesError(f"{name} must be a number above 0 and at most {MOST:.0e}, got {shorten(value)}")
    return float(value)


def _custom(value: object, *, name: str) -> object:
    if value == {}:
        return value
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidResourcesError(f"{name} must map names of Ray resources to amounts, got {shorten(value)}")
    for reserved in sorted(value.keys() & _NOT_CUSTOM.keys()):
        raise InvalidResourcesError(f"{name} cannot contain {reserved!r}. {_NOT_CUSTOM[reserved]}")
    checked = {resource: check_amount(value[resource], name=resource) for resource in sorted(value)}
    return {resource: amount for resource, amount in checked.items() if amount > 0}


def _whole(least: int, most: int) -> CoreSchema:
    return core_schema.int_schema(strict=True, ge=least, le=most)


_WHOLE_STEPS: Final[list[CoreSchema]] = [core_schema.float_schema(strict=True), core_schema.int_schema(ge=0, le=MOST)]

_WHOLE_AMOUNT: Final = core_schema.json_or_python_schema(
    core_schema.chain_schema(_WHOLE_STEPS),
    # Pydantic accepts any object that can be converted to a float, such as a bool of NumPy.
    core_schema.chain_schema([core_schema.is_instance_schema((int, float)), *_WHOLE_STEPS]),
)
"""The schema of amounts that are whole numbers. They need no further check."""

Amount = Annotated[float, Checked(check_amount, _WHOLE_AMOUNT)]
"""A number of units, 0 or above, rounded down to whole ticks of 0.0001."""
GpuAmount = Annotated[float, Checked(check_gpus, _WHOLE_AMOUNT)]
"""A number of GPUs: a fraction up to 1, or a whole number."""
Bytes = Annotated[int, Field(ge=1), Checked(parse_bytes, _whole(1, MOST_BYTES), exact_text)]
"""A positive number of bytes that was read or computed. A user's request has the type ``Memory``."""
Memory = Annotated[
    int | str,
    Checked(parse_memory, show=exact_text),
    WithJsonSchema({"type": ["integer", "string"], "minimum": MIB}),
]
"""Memory that a user requests: a string such as ``"6GiB"``, or at least 1 MiB in bytes. It is stored in bytes."""
UsedBytes = Annotated[
    int, Field(ge=0, le=MOST_BYTES), Checked(partial(check_count, least=0, most=MOST_BYTES), _whole(0, MOST_BYTES))
]
"""A measured number of bytes, 0 or above."""
Count = Annotated[int, Field(ge=0), Checked(partial(check_count, least=0), _whole(0, MOST))]
"""A whole number, 0 or above."""
PositiveCount = Annotated[int, Field(ge=1), Checked(partial(check_count, least=1), _whole(1, MOST))]
"""A whole number, 1 or above."""
CustomAmounts = Annotated[dict[str, float], Checked(_custom, core_schema.dict_schema(max_length=0, strict=True))]
"""Amounts above 0 of other Ray resources, by name."""
Speed = Annotated[float, Checked(_speed)]
"""A relative speed above 0."""
WorkerCount = Annotated[int | tuple[int, int], Checked(_workers)]
"""The number of Train workers of a trial. With a pair (minimum, maximum), Ray Train adapts it during a trial."""


class Resources(Value):
    """The hardware that a node has, or that a trial or worker reserves.

    Attributes:
        cpus: Logical CPUs.
        gpus: GPUs that Ray schedules: a fraction up to 1, or a whole number.
        memory_bytes: Host memory in bytes. ``None`` means unknown memory on a node, and no reservation in a request.
        custom: Other Ray resources by name, such as ``{"TPU": 4}``.

    Raises:
        InvalidResourcesError: An amount is negative, not finite, not a number, above 0 but below 0.0001, or a
            fractional number of GPUs above 1.
    """

    cpus: Amount = 0.0
    gpus: GpuAmount = 0.0
    memory_bytes: Bytes | None = None
    custom: CustomAmounts = Field(default_factory=dict)

    @cached_property
    def ticks(self) -> Amounts:
        """All amounts above 0, keyed by Ray's resource names, in ticks of 1/10,000, and ``memory`` in bytes."""
        amounts = {"CPU": to_ticks(self.cpus), "GPU": to_ticks(self.gpus), "memory": self.memory_bytes or 0}
        amounts |= {name: to_ticks(amount) for name, amount in self.custom.items()}
        return FrozenDict({name: amount for name, amount in amounts.items() if amount > 0})

    def __str__(self) -> str:
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **dict(sorted(self.custom.items()))}
        parts = [amount_of(amount, name) for name, amount in amounts.items() if amount > 0]
        if self.memory_bytes is not None:
            parts.append(f"{format_bytes(self.memory_bytes)} of host memory")
        return ", ".join(parts) or "nothing"

    def with_ticks(self, name: str, ticks: int) -> "Resources":
        """Return a copy in which the resource ``name`` has ``ticks`` ticks, or bytes if it is ``memory``."""
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
        """Return a copy with some fields changed. The new values are validated."""
        return Resources(**{**self.model_dump(), **changes})


def format_amount(amount: float) -> str:
    """Return ``amount`` with up to four decimals, such as ``"0.5"`` or ``"4"``."""
    if amount < 100_000:
        return f"{round(amount, 4):g}"
    return f"{amount:.0f}"


def format_ticks(name: str, ticks: int) -> str:
    """Return an amount in ticks, or ``memory`` in bytes, as text: ``"0.5 GPU"``, ``"1 GiB of host memory"``."""
    if name == "memory":
        return f"{format_bytes(ticks)} of host memory"
    return amount_of(ticks / TICKS, name)


def amount_of(amount: float, name: str) -> str:
    """Return the amount of a resource as text: ``"1 CPU"``, ``"0.5 GPU"``, ``"8 CPUs"``, ``"2 neuron_cores"``."""
    text = f"{format_amount(amount)} {name}"
    if name.endswith("PU") and not 0 < amount <= 1:
        return f"{text}s"
    return text
