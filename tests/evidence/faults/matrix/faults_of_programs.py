"""Faults in the program itself: what the user gave Tune beside the trainable raises an error."""

import random
from collections.abc import Mapping
from typing import Final

from .judge import Hit
from .program import Fault, RunningProgram
from .ways import RAISES_AT_STEP

_SOME: Final = ("ray", "policy-scheduler", "as_trainable")
_END_S: Final = 60.0


def wait_for_end(program: RunningProgram, rng: random.Random) -> Hit:
    """Wait until the program has ended by itself."""
    program.wait_until(lambda: program.process.poll() is not None, _END_S)
    steps = [event.at_s for event in program.events() if event.step >= RAISES_AT_STEP]
    return Hit(min(steps, default=0.0))


FAULTS: Final[Mapping[str, Fault]] = {
    f"{name}-raises": Fault(
        f"{name} raises",
        wait_for_end,
        _SOME,
        num_at_once=1,
        order={"raises": name},
        told="OrderedError",
        ends_run=True,
        group=name,
    )
    for name in ("callback", "logger", "searcher")
}
