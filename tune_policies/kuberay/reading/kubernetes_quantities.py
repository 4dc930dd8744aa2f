"""Kubernetes quantities, such as ``"500m"`` and ``"64Gi"``: their grammar, and the quantity that a wrong text means."""

import math
import re
from fractions import Fraction
from typing import Annotated, Final

from pydantic import BeforeValidator

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

_FACTORS: Final = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000 ** (power + 1)) for power, unit in enumerate("mun")},  # milli, micro and nano
    **{unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")},
}

# Possessive quantifiers such as ``\d++`` do not backtrack, so a hostile text cannot make the match slow. The limit of
# two digits for the exponent keeps the exact number small.
_QUANTITY: Final = re.compile(
    r"(?P<number>\+?(?:\d++(?:\.\d*+)?|\.\d++))(?:[eE](?P<exponent>[-+]?\d{1,2})|(?P<unit>[numkMGTPE]|[KMGTPE]i)?)",
    re.ASCII,
)

_MAX_CHARACTERS: Final = 100  # no quantity is longer: Kubernetes supports amounts below 2**63 with nano precision


def parse_quantity(quantity: str | float) -> Fraction:
    """Return a Kubernetes quantity, such as ``"500m"`` or ``"64Gi"``, as an exact number, with memory in bytes.

    The grammar is documented at https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/.

    Raises:
        InvalidResourcesError: The text is not a Kubernetes quantity, or is below 0.
    """
    if isinstance(quantity, float) and quantity.is_integer():
        quantity = int(quantity)
    text = quantity if isinstance(quantity, str) else shorten(quantity)
    found = _match(_QUANTITY, text)
    if found is None:
        raise InvalidResourcesError(f"{shorten(quantity)} is not a Kubernetes quantity{_hint(text)}")
    number = Fraction(found["number"])
    if found["exponent"]:
        return number * Fraction(10) ** int(found["exponent"])
    return number * _FACTORS[found["unit"] or ""]


def ray_amount(quantity: str | float) -> int:
    """Return a quantity rounded up to a whole number, as in Ray's autoscaler (``_round_up_k8s_quantity``).

    Raises:
        InvalidResourcesError: The text is not a Kubernetes quantity, or is below 0.
    """
    return math.ceil(parse_quantity(quantity))


def _hint(text: str) -> str:
    if text.strip().startswith("-"):
        return ": it must be 0 or more"
    intended = intended_quantity(text)
    if intended is not None:
        return f": write {intended!r}"
    return ": write a number such as '4', '500m' or '16Gi'"


_NEAR_UNITS: Final = {
    **{unit.lower(): unit for unit in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")},
    **{f"{unit.lower()}b": unit for unit in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")},
    **{f"{unit.lower()}b": unit for unit in "kMGTPE"},
    **{f"{unit.lower()}bytes": unit for unit in "kMGTPE"},
    **{unit.lower(): unit for unit in "kMGTPE"},
    "": "",
    "b": "",
    "bytes": "",
    "cpu": "",
    "cpus": "",
    "core": "",
    "cores": "",
}
"""The unit that the author of a wrong unit probably intended, by the wrong unit in lower case."""


_NEAR_QUANTITY: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]{0,6})\s*", re.ASCII)


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the match of a whole text, or ``None``, also if the text is longer than any quantity."""
    if len(text) > _MAX_CHARACTERS:
        return None
    return pattern.fullmatch(text)


def intended_quantity(text: str) -> str | None:
    """Return the quantity that a wrong text probably means, such as ``"28Gi"`` for ``"28GiB"``, or ``None``."""
    found = _match(_NEAR_QUANTITY, text)
    if found is None:
        return None
    unit = _NEAR_UNITS.get(found[2].lower())
    if unit is None or found[1] + unit == text:
        return None
    return found[1] + unit


def check_quantity(value: object) -> object:
    """Return the value unchanged.

    Raises:
        ValueError: The value is not a Kubernetes quantity, or a fraction without quotes.
    """
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("must be a quantity such as '4', '500m' or '16Gi'")
    if isinstance(value, float) and not value.is_integer():
        # The CRD accepts only integers and strings (x-kubernetes-int-or-string).
        raise ValueError(f'must be a whole number or a string, got {value!r}: write "{value!r}", in quotes')
    parse_quantity(value)
    return value


Quantity = Annotated[str | int | float, BeforeValidator(check_quantity)]
"""A Kubernetes quantity, such as ``"500m"`` or ``"64Gi"``."""
