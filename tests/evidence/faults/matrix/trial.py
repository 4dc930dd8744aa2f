"""What the trials of the fault matrix run: steps with a checkpoint each, all noted, until the run is to finish.

A trial looks at each step for an order: a file that tells it to fail in some way. So the matrix decides when it fails.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import ray
import ray.train
from ray import tune

EVENTS: Final = "events"
ORDERS: Final = "orders"
SCRATCH: Final = "scratch"
FINISH: Final = "finish"
"""Once a run's folder has this file, each trial ends after its step."""


class Event(NamedTuple):
    """What a trial has noted.

    Attributes:
        what: Whether it has started, begins a step, obeys an order, or ends.
        at_s: When, in seconds since 1970.
        trial: Its identifier.
        pid: Its process.
        node: Its node's identifier.
        step: Which step; at a start, the last one that its checkpoint has.
        origin: At a start, the checkpoint from which it starts, as ``trial/number``; empty: none. At an order,
            its text.
        began_s: At a start, since when its process has been there.
    """

    what: Literal["start", "step", "order", "end"]
    at_s: float
    trial: str
    pid: int
    node: str
    step: int
    origin: str = ""
    began_s: float = 0.0


class EventReader:
    """Reads what the trials of a run note, each line once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / EVENTS
        self._read_bytes: dict[Path, int] = {}
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """Return what the trials have noted so far, in order of time."""
        for path in self._folder.iterdir():
            before = self._read_bytes.get(path, 0)
            if path.stat().st_size > before:
                with path.open("rb") as file:
                    file.seek(before)
                    lines, end, _ = file.read().rpartition(b"\n")  # a last line may still be written
                self._read_bytes[path] = before + len(lines) + len(end)
                self._events += [Event(*json.loads(line)) for line in lines.split(b"\n") if line]
        self._events.sort(key=attrgetter("at_s"))
        return self._events


def _process_began_s() -> float:
    """Return since when this process has been there, to a hundredth of a second; psutil rounds to a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class Steps:
    """The steps of one trial in one process, from a checkpoint on."""

    def __init__(self, config: Mapping[str, Any], trial: str, checkpoint: Any) -> None:
        self._folder, self._step_s, self._trial = Path(config["folder"]), config["step_s"], trial
        self._pid, self._node = os.getpid(), ray.get_runtime_context().get_node_id()
        self._score = float(config["index"])
        state: dict[str, Any] = {"done": 0, "name": ""}
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                state = json.loads(Path(folder, "state.json").read_text())
        self.done: int = state["done"]
        self._note("start", state["name"], _process_began_s())

    def _note(self, what: Literal["start", "step", "order", "end"], origin: str = "", began_s: float = 0.0) -> None:
        event = Event(what, time.time(), self._trial, self._pid, self._node, self.done, origin, began_s)
        with Path(self._folder, EVENTS, f"{self._trial}-{self._pid}").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def take(self) -> dict[str, Any]:
        """Take one step, and obey an order if there is one; return its result."""
        self.done += 1
        self._note("step")
        order = self._folder / ORDERS / self._trial
        if order.exists():
            text = order.read_text()
            order.unlink()
            name, _, argument = text.partition(" ")
            _ORDERS[name](argument, lambda: self._note("order", text))
        time.sleep(self._step_s)
        return {"score": self._score, "step": self.done}

    def save(self, folder: str | Path) -> None:
        """Write the state of the trial."""
        name = f"{self._trial}/{uuid.uuid4().hex[:8]}"
        Path(folder, "state.json").write_text(json.dumps({"done": self.done, "name": name}))

    @property
    def are_over(self) -> bool:
        """Whether the run is to finish; the end is noted."""
        is_over = (self._folder / FINISH).exists()
        if is_over:
            self._note("end")
        return is_over

    def take_all(self, report: Callable[..., None]) -> None:
        """Take steps until the run is to finish, and report each with a checkpoint."""
        are_over = False
        while not are_over:
            result = self.take()
            with tempfile.TemporaryDirectory(dir=self._folder / SCRATCH) as folder:
                self.save(folder)
                report(result, checkpoint=tune.Checkpoint.from_directory(folder))
            are_over = self.are_over


def train(config: dict[str, Any]) -> None:
    """A trial that is a function."""
    Steps(config, tune.get_context().get_trial_id(), tune.get_checkpoint()).take_all(tune.report)


class Training(tune.Trainable):  # type: ignore[misc]  # Ray is not followed
    """A trial that is a class."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin; a checkpoint comes later, so the start is noted with the first step."""
        self._steps: Steps | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin as another trial, in the process of one that has ended."""
        self._steps = None
        return True

    def step(self) -> dict[str, Any]:
        """Take a step."""
        self._steps = self._steps or Steps(self.config, self.trial_id, None)
        result = self._steps.take()
        return {**result, "done": self._steps.are_over}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the state."""
        if self._steps is not None:
            self._steps.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on from a state."""
        self._steps = Steps(self.config, self.trial_id, tune.Checkpoint.from_directory(checkpoint_dir))


def train_in_train(config: dict[str, Any]) -> None:
    """The loop of a Train worker; its trial is named in the config."""
    Steps(config, config["trial"], ray.train.get_checkpoint()).take_all(ray.train.report)


def _fail(argument: str, note: Callable[[], None]) -> None:
    note()
    raise RuntimeError("the trial was ordered to fail")


def _error_like(name: str, base: type[Exception], text: str) -> Exception:
    """Return an error of a class that has the full name and the base of a framework's."""
    module, _, own_name = name.rpartition(".")
    error: Exception = type(own_name, (base,), {"__module__": module})(text)
    return error


_OUT_OF_MEMORY: Final[Mapping[str, Exception]] = {
    "torch": _error_like("torch.OutOfMemoryError", RuntimeError, "CUDA out of memory. Tried to allocate 2.00 GiB."),
    "jax": _error_like(
        "jax.errors.JaxRuntimeError",
        RuntimeError,
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    ),
    "cupy": _error_like(
        "cupy.cuda.memory.OutOfMemoryError",
        MemoryError,
        "Out of memory allocating 1,073,741,824 bytes (allocated so far: 0 bytes).",
    ),
    "python": MemoryError(),
}
"""The errors of frameworks that are not imported: on a logical GPU they would be refused. A class whose module is not
imported is sent by value, so the program needs no framework either."""


def _run_out(argument: str, note: Callable[[], None]) -> None:
    note()
    raise _OUT_OF_MEMORY[argument]


def _be_killed_by_kernel(argument: str, note: Callable[[], None]) -> None:
    from tests.on_ray.kernel_kills import be_killed

    note()
    end: Callable[[str], None] = be_killed
    end(argument)


def _take_host_memory(argument: str, note: Callable[[], None]) -> None:
    """Take so many bytes, and hold them until somebody ends this process."""
    note()
    taken = bytearray(b"x") * int(argument)
    time.sleep(60)
    del taken


def _leave_children(argument: str, note: Callable[[], None]) -> None:
    """Start a child that ignores SIGTERM, and fork, then go on."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    note()


def _ignore_signals(argument: str, note: Callable[[], None]) -> None:
    """Let SIGTERM and SIGINT have no effect on this process; a function of Tune's does not run in the main thread."""
    import ctypes

    ctypes.CDLL(None).signal(signal.SIGTERM, 1)  # SIG_IGN; Python lets the main thread alone set it
    note()


_ORDERS: Final[Mapping[str, Callable[[str, Callable[[], None]], None]]] = {
    "fail": _fail,
    "run-out": _run_out,
    "be-killed-by-kernel": _be_killed_by_kernel,
    "take-host-memory": _take_host_memory,
    "leave-children": _leave_children,
    "ignore-signals": _ignore_signals,
}
