"""What a workload is: a function that prepares steps of work on a device. What it returns is checked."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten


class Steps(NamedTuple):
    """One step of a workload's work, prepared and ready to be timed.

    A workload is a function ``(size, device) -> Steps``. It is called in a fresh process, which sees the devices of
    ``device`` only, with its threads set; ``device`` is ``"cpu"``, ``"gpu"`` or another family by Ray's name, such as
    ``"TPU"``. It seeds what is random, so that each device does the same work.

    Attributes:
        with_transfers: Does one step from data in host memory, and returns its loss, or another number by which the
            results of two devices are compared; ``None``: there is none.
        compute: The same on data that lie on the device already; ``None``: it cannot be told apart.
        steps_per_epoch: How many steps an epoch has; the first epoch is timed with all that comes before it.
        synchronize: Waits until the device has done what it was given; ``None``: as its framework does.
        dtype: In what the work is done, such as ``"float32"``; ``None``: not told.
        samples_per_step: How many samples a step takes, for a throughput; ``None``: it has none.
        tolerance: By how much the numbers of two devices may differ, relative to them.
    """

    with_transfers: Callable[[], Any]
    compute: Callable[[], Any] | None = None
    steps_per_epoch: int = 16
    synchronize: Callable[[], None] | None = None
    dtype: str | None = None
    samples_per_step: int | None = None
    tolerance: float = 0.02


Workload = Callable[[int, str], Steps]


def checked_steps(steps: Any, workload: str) -> Steps:
    """Return the steps with plain numbers and texts in them, if they are some.

    Raises:
        InvalidResourcesError: They are none, or say something of themselves that makes no sense.
    """
    if not isinstance(steps, Steps) or not callable(steps.with_transfers):
        raise InvalidResourcesError(
            f"{workload} returned {shorten(steps)}: a workload returns Steps(with_transfers=…), of "
            "tune_policies.benchmarks.measuring.workload"
        )
    tolerance = steps.tolerance
    if not (isinstance(tolerance, Real) and 0 <= float(tolerance) < math.inf):
        raise InvalidResourcesError(
            f"{workload}: tolerance is relative, such as 0.02, and finite, got {shorten(tolerance)}"
        )
    samples = steps.samples_per_step
    return Steps(
        with_transfers=steps.with_transfers,
        compute=steps.compute,
        steps_per_epoch=_count(steps.steps_per_epoch, "steps_per_epoch", workload),
        synchronize=steps.synchronize,
        dtype=None if steps.dtype is None else str(steps.dtype).removeprefix("torch."),
        samples_per_step=None if samples is None else _count(samples, "samples_per_step", workload),
        tolerance=float(tolerance),
    )


def checked_loss(result: Any, workload: str, step: int) -> float:
    """Return what a step returned as a number.

    Raises:
        InvalidResourcesError: It is none, or not a finite one.
    """
    try:
        number = float(result)
    except (TypeError, ValueError) as error:
        raise InvalidResourcesError(
            f"a step of {workload} returned {type(result).__name__}: it returns its loss, a number, or None"
        ) from error
    if not math.isfinite(number):
        raise InvalidResourcesError(
            f"step {step} of {workload} returned {number}: what a device makes of such numbers says nothing of its "
            "speed; lower the learning rate, or check the data"
        )
    return number


def _count(count: Any, name: str, workload: str) -> int:
    if not isinstance(count, Integral) or int(count) < 1:
        raise InvalidResourcesError(f"{workload}: {name} must be a whole number, 1 or above, got {shorten(count)}")
    return int(count)
