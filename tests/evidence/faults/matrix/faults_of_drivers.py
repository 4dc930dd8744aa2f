"""Faults of the program and of where it writes: ended by signals and resumed, a neighbour, no room on the disk."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from .judge import Hit, Verdict, judge
from .program import Fault, MissedError, RunningProgram, Strike
from .ways import read_outcome

_SOME: Final = ("ray", "fixed-plan", "policy-scheduler", "mixed", "oom-asha", "as_trainable")
_FEW: Final = ("ray", "policy-scheduler", "as_trainable")
_RESUMING: Final = (*_SOME, "class-reused", "tuner", "ray-train")
_END_S: Final = 60.0
_HAS_CHECKPOINT: Final = 4
"""In this step Tune knows a checkpoint of an earlier one."""
_TMPFS: Final = "16m"
_LASTS_S: Final = 3.0
_HOUR_S: Final = 3600
_FAKETIME: Final = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
"""Of the package ``libfaketime``: it lets the clock of one program jump."""


def _resumed_after(*signals: int) -> Strike:
    """Send the program signals, half a second apart, wait for its end, and start it again to resume the run."""

    def strike(program: RunningProgram, rng: random.Random) -> Hit:
        pids = frozenset(event.pid for event in program.events())
        at_s = time.time()
        for number in signals:
            with suppress(ProcessLookupError):
                program.process.send_signal(number)
            time.sleep(0.5)
        try:
            program.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            program.process.kill()
            program.process.wait()
            raise MissedError(f"the program does not end within {_END_S:g} s of {signals}") from None
        ended_s = time.time()
        program.resume()
        return Hit(at_s, pids, until_s=ended_s)

    return strike


def _ended(program: RunningProgram, hit: Hit) -> Verdict:
    return Verdict(ended_s=(hit.until_s - hit.at_s,))


def start_second(program: RunningProgram, rng: random.Random) -> Hit:
    """Start another program with the same plan while the trials of the first hold all there is."""
    second = program.start_neighbour()
    at_s = time.time()
    second.wait_for_plan()
    time.sleep(rng.uniform(2, 5))
    return Hit(at_s)


def _both_end(program: RunningProgram, hit: Hit) -> Verdict:
    """Let the first program end, and then the second one, whose trials must run by then."""
    second = program.neighbours[-1]
    program.finish()
    second.wait_for_trials(1)
    second.finish()
    if second.end() is None:
        return Verdict(lost=("the second program hung, and was killed",))
    ends, error = read_outcome(second.folder)
    verdict = judge(second.events(), (), ends)[""]
    return verdict + Verdict(lost=(f"the second run ended: {error[:200]}",) if error else ())


def _spoil(damage: Callable[[Path], object]) -> Strike:
    """Damage all checkpoints of a trial, and end its process by SIGKILL."""

    def strike(program: RunningProgram, rng: random.Random) -> Hit:
        def have_checkpoints() -> bool:
            return all(event.step >= _HAS_CHECKPOINT for event in program.current().values())

        if not program.wait_until(have_checkpoints, 30):
            raise MissedError("some trial has no checkpoint yet, and would begin anew")
        event = program.pick(rng)
        os.kill(event.pid, signal.SIGSTOP)  # it would write another one
        at_s = time.time()
        for path in (program.folder / "results").rglob("state.json"):
            if f'"{event.trial}/' in path.read_text():
                damage(path)
        with suppress(ProcessLookupError):
            os.kill(event.pid, signal.SIGKILL)
        return Hit(at_s, frozenset({event.pid}), doomed=frozenset({event.trial}))

    return strike


def mount_results(program: RunningProgram) -> None:
    """Let the run write to a small file system of its own."""
    program.wait_for_plan()
    results = program.folder / "results"
    results.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_TMPFS}", "tmpfs", results], check=True)
    program.begin()


def unmount_results(program: RunningProgram) -> None:
    """Take the file system away again."""
    subprocess.run(["umount", "--lazy", program.folder / "results"], check=False, stderr=subprocess.DEVNULL)


def fill_disk(program: RunningProgram, rng: random.Random) -> Hit:
    """Leave no room where the run writes, for some seconds."""
    at_s = time.time()
    pids = frozenset(event.pid for event in program.current().values())
    filling = program.folder / "results" / "filling"
    with suppress(OSError), filling.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
    time.sleep(_LASTS_S)
    filling.unlink()
    return Hit(at_s, pids, until_s=time.time())


def make_read_only(program: RunningProgram, rng: random.Random) -> Hit:
    """Let nobody write where the run does, for some seconds."""
    results = program.folder / "results"
    at_s = time.time()
    pids = frozenset(event.pid for event in program.current().values())
    if not program.wait_until(lambda: _remount("ro", results), _END_S):  # while a file is written, the kernel refuses
        raise MissedError("the storage is always written to")
    time.sleep(_LASTS_S)
    _remount("rw", results)
    return Hit(at_s, pids, until_s=time.time())


def _remount(mode: str, folder: Path) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(folder)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _fake_clock(folder: Path) -> dict[str, str]:
    """Return the variables by which a program reads how far its clock is off from a file; timers go on as ever."""
    clock = folder / "clock"
    clock.write_text("+0")
    return {
        "LD_PRELOAD": _FAKETIME if Path(_FAKETIME).exists() else "",
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


def jump(program: RunningProgram, rng: random.Random) -> Hit:
    """Let the program's clock jump by an hour, forth and back in turn."""
    if not Path(_FAKETIME).exists():
        raise MissedError(f"there is no {_FAKETIME}: install libfaketime")
    clock = program.folder / "clock"
    at_s = time.time()
    clock.write_text("+0" if clock.read_text() != "+0" else f"+{_HOUR_S}")
    time.sleep(_LASTS_S)
    return Hit(at_s)


def _resumed(title: str, ways: tuple[str, ...], *signals: int) -> Fault:
    return Fault(f"program {title}, and resumed", _resumed_after(*signals), ways, after=_ended, group="resumed")


def _without_checkpoints(what: str, damage: Callable[[Path], object]) -> Fault:
    title = f"checkpoints of a trial {what}, and its process SIGKILLed"
    return Fault(title, _spoil(damage), _FEW, order={"max_failures": 2}, group="checkpoints")


def _of_storage(title: str, strike: Strike) -> Fault:
    return Fault(
        f"{title}, for {_LASTS_S:g} s",
        strike,
        _FEW,
        order={"waits_for_plan": True},
        before=mount_results,
        cleanup=unmount_results,
        group="storage",
    )


FAULTS: Final[Mapping[str, Fault]] = {
    "program-killed": _resumed("SIGKILLed", _RESUMING, signal.SIGKILL),
    "program-interrupted": _resumed("gets Ctrl-C", _RESUMING, signal.SIGINT),
    "program-interrupted-twice": _resumed("gets Ctrl-C twice", _FEW, signal.SIGINT, signal.SIGINT),
    "program-terminated": _resumed("SIGTERMed", _FEW, signal.SIGTERM),
    "program-terminated-twice": _resumed("SIGTERMed twice", _FEW, signal.SIGTERM, signal.SIGTERM),
    "second-program": Fault(
        "another program with a plan on the same cluster",
        start_second,
        ("ray", "fixed-plan", "policy-scheduler"),
        num_trials=6,
        after=_both_end,
        group="two programs",
    ),
    "checkpoint-corrupt": _without_checkpoints("damaged", lambda path: path.write_text("{")),
    "checkpoint-missing": _without_checkpoints("deleted", Path.unlink),
    "disk-full": _of_storage("no room where the run writes", fill_disk),
    "storage-read-only": _of_storage("storage read-only", make_read_only),
    "clock-jumps": Fault(
        "clock of the program jumps by an hour, and back", jump, _FEW, number=2, variables=_fake_clock, group="clock"
    ),
}
