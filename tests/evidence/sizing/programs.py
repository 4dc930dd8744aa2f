"""Small real sweeps: what their trials do, and random programs, drawn from a seed. This module does not import Ray.

In a *shared* sweep, trials take turns at a lock that they hold during half of each step, so more than two at once are
not faster together. In a *thrashing* sweep, a turn also takes longer if more trials wait, as on a disk with one head.
"""

import fcntl
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from tune_policies.values.value import Value

Kind = Literal["sleeping", "busy", "memory", "shared", "thrashing", "scikit-learn", "xgboost"]

RANDOM_KINDS: Final[tuple[Kind, ...]] = ("sleeping", "busy", "memory", "shared", "thrashing")

_HELD: Final = 0.5
"""The part of a step for which a trial needs the shared lock."""

_THRASHING: Final = 0.15
"""The fraction by which a turn at the lock takes longer for each other trial that waits."""

_LONGEST_S: Final = 80.0
"""The intended maximum duration of a random program under its start policy, without the starts of processes."""


class Program(Value):
    """A real sweep on a local Ray.

    Attributes:
        kind: What a step does.
        num_trials: The number of trials.
        num_steps: The number of steps and results of a trial.
        step_s: The time of a step in seconds: CPU time if the trial is busy.
        sizes: The sizes of the trials in turn: MiB of memory, trees or depths.
        waiting_s: The time in seconds for which each step also waits, as for data.
        saves: Whether each result has a checkpoint.
        num_cpus: The CPUs of Ray.
        memory_gib: The host memory of Ray.
        start_cpus: The CPUs that a trial reserves under the start policy.
    """

    kind: Kind
    num_trials: int
    num_steps: int
    step_s: float = 1.0
    sizes: tuple[int, ...] = (1,)
    waiting_s: float = 0.0
    saves: bool = False
    num_cpus: int = 2
    memory_gib: float = 4.0
    start_cpus: float = 1.0

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The configs of the trials. A formula of the config uses whole numbers only, so ``x`` has no effect."""
        return [{"x": i / self.num_trials, "size": self.sizes[i % len(self.sizes)]} for i in range(self.num_trials)]

    def step_of(self, size: int, folder: str) -> Callable[[], object]:
        """Return the function that takes a step of a trial with this size."""
        match self.kind:
            case "sleeping":
                return lambda: time.sleep(self.step_s)
            case "busy":
                return lambda: _spin(self.step_s)
            case "memory":
                held = bytearray(b"x") * (size * 2**20)

                def wait() -> int:
                    time.sleep(self.step_s)
                    return len(held)

                return wait
            case "shared" | "thrashing":
                return lambda: self._take_turn(Path(folder))
            case "scikit-learn":
                return lambda: _fit_trees(size)
            case "xgboost":
                return lambda: _boost(size)

    def _take_turn(self, folder: Path) -> None:
        time.sleep(self.step_s * (1 - _HELD))
        with _turn(folder) as num_waiting:
            factor = 1 + _THRASHING * num_waiting if self.kind == "thrashing" else 1.0
            time.sleep(self.step_s * _HELD * factor)


@contextmanager
def _turn(folder: Path) -> Iterator[int]:
    """Wait for the lock in ``folder``, and yield how many other trials wait for it."""
    waiting = folder / f"waiting-{uuid.uuid4().hex}"
    waiting.touch()
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting.unlink()
        yield len([*folder.glob("waiting-*")])


def _spin(cpu_s: float) -> None:
    until_s = time.process_time() + cpu_s
    while time.process_time() < until_s:
        pass


def _fit_trees(num_trees: int) -> None:
    from sklearn.datasets import load_digits
    from sklearn.ensemble import ExtraTreesClassifier

    ExtraTreesClassifier(num_trees, random_state=0, n_jobs=1).fit(*load_digits(return_X_y=True))


def _boost(depth: int) -> None:
    import xgboost
    from sklearn.datasets import load_digits

    data = xgboost.DMatrix(*load_digits(return_X_y=True))
    xgboost.train({"nthread": 1, "max_depth": depth, "max_bin": 64}, data, num_boost_round=40)


def draw(seed: int) -> Program:
    """Draw a program of 8 to 24 trials of 2 to 10 s. Equal seeds give equal programs."""
    rng = random.Random(seed)
    kind = rng.choice(RANDOM_KINDS)
    num_cpus, start_cpus = rng.choice(((2, 1.0), (4, 1.0), (4, 2.0), (8, 2.0), (2, 0.5)))
    at_once = int(num_cpus / start_cpus)
    num_trials = rng.randint(8, 24)
    at_work = min(at_once, 2) if kind in ("busy", "shared", "thrashing") else at_once
    trial_s = max(2.0, min(rng.uniform(2, 10), _LONGEST_S * at_work / num_trials))
    num_steps = rng.choice((2, 4, 10, 25))
    has_equal_memory = rng.random() >= 0.5
    sizes = {"memory": (48,) if has_equal_memory else (32, 64, 128)}
    return Program(
        kind=kind,
        num_trials=num_trials,
        num_steps=num_steps,
        step_s=round(trial_s / num_steps, 3),
        sizes=sizes.get(kind, (1,)),
        saves=rng.random() < 0.5,
        num_cpus=num_cpus,
        start_cpus=start_cpus,
    )
