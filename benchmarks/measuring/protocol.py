"""What a workload is: a function that prepares one step of work on a device, for a given size."""

from collections.abc import Callable
from typing import Any, NamedTuple


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
