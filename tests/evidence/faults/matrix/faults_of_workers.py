"""Faults of the processes that train, and of what they run: killed, failing, out of memory, leaving children."""

import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from .judge import Hit
from .program import Fault, RunningProgram, Strike
from .ways import DRIVERS, WAYS, WITH_OOM_RETRY, WITH_TRAIN

_ALL: Final = tuple(way for way in WAYS if way != "tuner")
_FRAMEWORKS: Final = ("torch", "jax", "cupy", "python")
_RAN_OUT: Final = r"ran out of (GPU|host) memory"
_TWO_AT_ONCE: Final = 0.4


def kill_workers(program: RunningProgram, rng: random.Random) -> Hit:
    """End the processes of one trial or two, or where they train in Train workers, these, by SIGKILL."""
    pids = {(first := program.pick(rng)).pid}
    if rng.random() < _TWO_AT_ONCE:
        pids.add(program.pick(rng, besides=[first.trial]).pid)
    at_s = time.time()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Hit(at_s, frozenset(pids), number=len(pids))


def kill_driver_of_train(program: RunningProgram, rng: random.Random) -> Hit:
    """End the trial's own process, which started the Train worker, by SIGKILL."""
    event = program.pick(rng)
    driver = int(Path(program.folder, DRIVERS, event.trial).read_text())
    at_s = time.time()
    with suppress(ProcessLookupError):
        os.kill(driver, signal.SIGKILL)
    return Hit(at_s, frozenset({event.pid}))


def fail(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial raise an error."""
    event = program.tell(program.pick(rng).trial, "fail")
    return Hit(event.at_s, frozenset({event.pid}))


def run_out(frameworks: tuple[str, ...]) -> Strike:
    """Let a trial, each once, run out of memory by the errors of frameworks in turn."""

    def strike(program: RunningProgram, rng: random.Random) -> Hit:
        been = program.told_to("run-out")
        framework = frameworks[len(been) % len(frameworks)]
        event = program.tell(program.pick(rng, besides=been).trial, f"run-out {framework}")
        return Hit(event.at_s, frozenset({event.pid}))

    return strike


def be_killed_by_kernel(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial take more host memory than its cgroup has."""
    from tests.on_ray.kernel_kills import small_group

    with small_group() as group:
        event = program.tell(
            program.pick(rng, besides=program.told_to("be-killed")).trial, f"be-killed-by-kernel {group}"
        )
        hit = Hit(event.at_s, frozenset({event.pid}))
        program.goes_on_after(hit)
    return hit


def leave_children(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial start a child that ignores SIGTERM, and go on; nothing is to end."""
    return Hit(program.tell(program.pick(rng).trial, "leave-children").at_s)


def ignore_signals_and_fail_another(program: RunningProgram, rng: random.Random) -> Hit:
    """Let all trials ignore signals, and one fail."""
    for trial in program.current():
        program.tell(trial, "ignore-signals")
    return fail(program, rng)


FAULTS: Final[Mapping[str, Fault]] = {
    "worker-killed": Fault("worker process SIGKILLed", kill_workers, _ALL, number=8),
    "train-driver-killed": Fault(
        "process of a trial that waits for Train workers SIGKILLed", kill_driver_of_train, WITH_TRAIN, number=6
    ),
    "trial-raises": Fault("trial raises", fail, _ALL, number=3),
    "fail-fast": Fault(
        "trial raises, with fail_fast",
        fail,
        ("ray", "fixed-plan", "policy-scheduler", "oom-asha", "as_trainable"),
        order={"fail_fast": True},
        ends_run=True,
        group="fail-fast",
    ),
    "out-of-gpu-memory": Fault(
        "GPU memory runs out, by errors as of torch, JAX, CuPy and Python",
        run_out(_FRAMEWORKS),
        ("ray-gpus", *WITH_OOM_RETRY),
        number=4,
        told=_RAN_OUT,
    ),
    "kernel-kill": Fault(
        "kernel kills a trial for want of host memory",
        be_killed_by_kernel,
        ("ray", "fixed-plan", "policy-scheduler", *WITH_OOM_RETRY),
        number=2,
    ),
    "children-left": Fault(
        "trial leaves a child that ignores SIGTERM",
        leave_children,
        ("ray", "fixed-plan", "policy-scheduler"),
        number=2,
        group="children",
    ),
    "signals-ignored": Fault(
        "trials ignore SIGTERM, and one fails with fail_fast",
        ignore_signals_and_fail_another,
        ("ray", "policy-scheduler", "oom-pbt"),
        order={"fail_fast": True},
        ends_run=True,
        group="signals",
    ),
}
