"""Amounts as Kubernetes writes them, such as ``"500m"`` or ``"64Gi"``, and as Ray's autoscaler counts them.

The grammar is that of Kubernetes
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/): a decimal number, then nothing, one
of the letters below, or an exponent.
"""

import math
import re
from fractions import Fraction
from typing import Final

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

_FACTORS: Final = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000 ** (power + 1)) for power, unit in enumerate("mun")},
    **{unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")},
}

_QUANTITY: Final = re.compile(
    r"(?P<number>\+?(?:\d++(?:\.\d*+)?|\.\d++))(?:[eE](?P<exponent>[-+]?\d{1,2})|(?P<unit>[numkMGTPE]|[KMGTPE]i)?)",
    re.ASCII,
)

_LONGEST: Final = 100  # characters: Kubernetes keeps less than 2**63, to the nano


def parse_quantity(quantity: str | float) -> Fraction:
    """Return the exact amount; of memory in bytes.

    Raises:
        InvalidResourcesError: It is no amount of Kubernetes, or below 0; the message names the way out.
    """
    text = _as_text(quantity)
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise InvalidResourcesError(f"{shorten(quantity)} is no amount of Kubernetes{_hint(text)}")
    number = Fraction(found["number"])
    return number * (Fraction(10) ** int(found["exponent"]) if found["exponent"] else _FACTORS[found["unit"] or ""])


def ray_amount(quantity: str | float) -> int:
    """Return the amount as Ray's autoscaler counts it: whole, rounded up, so that ``"500m"`` is 1.

    As ``_round_up_k8s_quantity`` of ``ray.autoscaler._private.kuberay.autoscaling_config`` does.

    Raises:
        InvalidResourcesError: It is no amount of Kubernetes, or below 0.
    """
    return math.ceil(parse_quantity(quantity))


def _as_text(quantity: object) -> str:
    match quantity:
        case bool():
            raise InvalidResourcesError(f"{quantity} is no amount")
        case str():
            return quantity
        case float() if quantity.is_integer():
            return str(int(quantity))
        case int() | float():
            return shorten(quantity)  # of which one with thousands of digits is none
        case _:
            raise InvalidResourcesError(f"{shorten(quantity)} is no amount")


def _hint(text: str) -> str:
    if text.strip().startswith("-"):
        return ": it must be 0 or above"
    if without := re.fullmatch(r"\s*([\d.]+)\s*([KkMGTPE]i?)[Bb]?\s*", text):
        unit = without[2] if without[2] != "K" else "k"
        unit = "Ki" if unit == "ki" else unit
        return f": write {without[1] + unit!r}"
    return ": write a number such as '4', '500m' or '16Gi'"
