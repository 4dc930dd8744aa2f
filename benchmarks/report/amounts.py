"""How times and ratios are written for people, with three digits."""

from decimal import Decimal
from typing import Final

_TIMES_SIGN: Final = "\N{MULTIPLICATION SIGN}"
_TIMES: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """Return ``"1.23 ms"``; from ten minutes on ``"12 min"``, from two hours on ``"3.5 h"``."""
    if seconds >= 7200:
        return f"{digits(seconds / 3600)} h"
    if seconds >= 600:
        return f"{digits(seconds / 60)} min"
    # 0.9999 ms is 1 ms, not 1000 µs: what counts is the number as it is written.
    factor, unit = next((each for each in _TIMES if float(f"{seconds:.3g}") >= each[0]), _TIMES[-1])
    return f"{digits(seconds / factor)} {unit}"


def ratio_text(ratio: float) -> str:
    """Return the ratio with the sign of multiplication behind it."""
    return f"{_ratio_digits(ratio)}{_TIMES_SIGN}"


def ratio_with_bounds(ratio: float, low: float, high: float) -> str:
    """Return the ratio as :func:`ratio_text` does, and its interval behind it."""
    return f"{ratio_text(ratio)} ({_ratio_digits(low)} to {_ratio_digits(high)})"


def multiple_text(ratio: float) -> str:
    """Return the ratio for an axis: without zeros behind it."""
    return f"{digits(ratio)}{_TIMES_SIGN}"


def _ratio_digits(ratio: float) -> str:
    if 0.1 <= ratio < 2:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if 2 <= ratio < 100 else digits(ratio, 2)


def in_words(device: str) -> str:
    """Return ``"CPU"`` and ``"GPU"`` in capitals, and other devices as they are."""
    return device.upper() if device in {"cpu", "gpu"} else device


def digits(number: float, count: int = 3) -> str:
    """Return the number with so many digits, in full above them: ``"12,345"``."""
    if abs(number) >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.{count}g}'):f}"


def sentence(text: str) -> str:
    """Return a reason or a message as a sentence of its own."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
