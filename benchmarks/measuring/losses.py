"""Whether devices did the same work: the losses of their first epochs."""

import math
from collections.abc import Iterable, Iterator

from ..record.run_set import Failure, ProcessRun


def disagreements(runs: Iterable[ProcessRun]) -> Iterator[Failure]:
    """Yield a failure for each process whose losses differ from those of the first one that has some.

    Steps that only one of them has come to do not count.
    """
    with_losses = [run for run in runs if run.losses]
    for run in with_losses[1:]:
        first = with_losses[0]
        tolerance = max(first.tolerance, run.tolerance)
        for number, (expected, found) in enumerate(zip(first.losses, run.losses, strict=False), start=1):
            if not math.isclose(expected, found, rel_tol=tolerance, abs_tol=1e-9):
                yield Failure(
                    arm=run.arm,
                    round=run.round,
                    kind="disagreed",
                    message=f"step {number} of the first epoch gave {found:.6g} here and {expected:.6g} on "
                    f"{first.arm.device}, which differ by more than {tolerance:g} of them: the devices did not do the "
                    "same work, so do not compare their times. Seed what is random, or set Steps.tolerance",
                )
                break
