"""Controls a measured process from the driver: starts it in a trial's slot, calls it with timeouts, and ends it."""

import functools
import os
import platform
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, Literal, cast

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.trainers.process.process_setup import ProcessSetup, limit_options

from ..record.run_set import Block, Configuration, Failure, Phase, ProcessRun
from ..record.settings import Settings
from .noise import NoiseCounters
from .timed_workload import FirstEpoch, Raised, Task, WorkloadProcess


class Round:
    """One round of measurements: its number, its start time, and counters that number its blocks and processes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = time.monotonic()
        self.blocks, self.processes = count(), count()


class NoTimesError(Exception):
    """A process failed, so it cannot be timed further."""

    def __init__(self, kind: Literal["raised", "timed_out", "died"], message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


_ENDS_WITHIN_S: Final = 10
"""The maximum time to wait for a process to end, in seconds. A process that has not ended disturbs the next one."""

_LONG_STEP_S: Final = 0.5
"""If a step takes at least this many seconds, the first epoch is enough warm-up."""

_NUM_WARMUPS: Final = 2
"""The number of warm-up blocks of each phase. Warm-ups are excluded from the results."""

_DIED: Final = (
    "its process died, possibly because host memory ran out: {} (the log of the process is in Ray's session folder)"
)


class MeasuredProcess:
    """A fresh process that measures one configuration in one round.

    Methods that call the process raise ``NoTimesError`` if the workload fails or times out, or if the process dies.
    """

    def __init__(self, configuration: Configuration, current: Round, settings: Settings) -> None:
        self.configuration = configuration
        self._round = current
        self.blocks: list[Block] = []
        self.warnings: list[str] = []
        self.num_steps: dict[Phase, int] = {}
        self._settings = settings
        self._spent_s = 0.0
        self._last_s: dict[Phase, float] = {}
        self._step_s: float | None = None
        # The fields of `ProcessRun` that are known so far.
        self._record: dict[str, Any] = {
            "configuration": configuration,
            "round": current.number,
            "order": next(current.processes),
            "started_at": datetime.now(UTC),
            "pid": 0,
            "node": "",
        }

    @property
    def num_sweeps(self) -> int:
        """The number of blocks of each phase, including warm-ups."""
        return self._settings.num_blocks + self._num_warmups

    @property
    def _num_warmups(self) -> int:
        if self._step_s is not None and self._step_s >= _LONG_STEP_S:
            return 0
        return _NUM_WARMUPS

    def start(self, plan: TrialPlan, reserved: Mapping[str, Any], device: str) -> None:
        """Start the process, and wait until its first epoch is done and the number of steps in a block is known.

        ``plan`` is the plan of a trial on this device, ``reserved`` contains the Ray options of the actor, and
        ``device`` is the device name to pass to the workload.
        """
        asked = time.monotonic()
        self._record["started_at"] = datetime.now(UTC)
        # A restarted process would not be a fresh one, and its times would count for the old one.
        options = {**reserved, "max_restarts": 0, "max_task_retries": 0, "runtime_env": _unique_runtime_env()}
        self._actor = _actor_class().options(**options).remote()
        late = "its process had not started. If its resources are in use, stop other work on the cluster"
        pid, node = self._call(self._actor.begin, late=late)
        self._record |= {"pid": pid, "node": node}
        task = Task(
            workload=self.configuration.workload,
            size=self.configuration.size,
            device=device,
            folder=os.getcwd(),  # noqa: PTH109  # a string, because the node may have another operating system
            setup=ProcessSetup.for_trial(plan.common_slot, limit_options(None, "raise")),
            # Half of the time remains for the blocks.
            epoch_s=self._settings.process_timeout_s / 2,
        )
        epoch: FirstEpoch = self._call(self._actor.first_epoch, task)
        self._record |= epoch.facts
        if epoch.epoch_s is None:
            self.warnings.append("its first epoch was stopped early. Raise --process-timeout-s, or make epochs shorter")
        else:
            self._record["first_epoch_s"] = time.monotonic() - asked
        self._size_blocks(epoch)

    def _size_blocks(self, epoch: FirstEpoch) -> None:
        """Determine the number of steps in a block of each phase, unless a step may exceed the remaining time."""
        self._step_s = epoch.step_s
        # Without the duration of a single step, the mean includes compilation, so it is rather too long than too short.
        mean_s = (epoch.epoch_s or self._settings.process_timeout_s / 2) / epoch.num_steps
        for phase in epoch.phases:
            if self._is_too_long(self._step_s or mean_s):
                return
            self.num_steps[phase] = self._call(self._actor.steps_of_block, phase, self._step_s)

    def _is_too_long(self, seconds: float) -> bool:
        """Return whether ``seconds`` of work may exceed the remaining time. If so, also stop timing blocks."""
        # A margin of a fifth, because the duration is an estimate.
        if seconds <= (self._settings.process_timeout_s - self._spent_s) * 0.8:
            return False
        self.num_steps.clear()
        self.warnings.append(
            f"its timing stopped early because of --process-timeout-s={self._settings.process_timeout_s:g}"
        )
        return True

    def read_noise(self) -> NoiseCounters:
        """Read the load counters of the process's host."""
        return cast(NoiseCounters, self._call(self._actor.read_noise))

    def time_block(self, phase: Phase, sweep: int) -> None:
        """Time the block of a phase in a sweep, unless the process has used up its time."""
        if phase not in self.num_steps or sweep >= self.num_sweeps:
            return
        # The best estimate for a block is the previous block of the same phase, including its warm-up steps.
        if self._is_too_long(self._last_s.get(phase, self._step_s or 0)):
            return
        at_s, before = time.monotonic() - self._round.began, self._spent_s
        seconds: float = self._call(self._actor.time_block, phase, self.num_steps[phase])
        self._last_s[phase] = self._spent_s - before
        self.blocks.append(
            Block(
                phase=phase,
                order=next(self._round.blocks),
                at_s=at_s,
                num_steps=self.num_steps[phase],
                seconds=seconds,
                is_warmup=sweep < self._num_warmups,
            )
        )

    def finish(self) -> None:
        """Terminate the workload's GPU processes, and record the peak memory and the warnings of the process."""
        facts, warnings = self._call(self._actor.finish, at_least_s=_ENDS_WITHIN_S)
        self._record |= facts
        self.warnings += warnings

    def end(self) -> None:
        """Kill the process. If it runs on this host, wait until it has ended."""
        if not hasattr(self, "_actor"):
            return
        ray.kill(self._actor, no_restart=True)
        pid = self._record["pid"]
        # ``ray.kill`` returns before the process has ended. On another host, the process cannot be observed.
        if self._record["node"] == platform.node() and pid:
            give_up = time.monotonic() + _ENDS_WITHIN_S
            while psutil.pid_exists(pid) and time.monotonic() < give_up:
                time.sleep(0.02)

    @property
    def has_times(self) -> bool:
        """Whether the process completed its first epoch or timed a block that is not a warm-up."""
        return "first_epoch_s" in self._record or any(not block.is_warmup for block in self.blocks)

    def run(self) -> ProcessRun:
        """Return the record of this process's measurements."""
        return ProcessRun(
            **self._record,
            blocks=tuple(self.blocks),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def failure(self, error: NoTimesError) -> Failure:
        """Return the record of this process's failure."""
        return Failure(
            configuration=self.configuration, round=self._round.number, kind=error.kind, message=error.message
        )

    def _call(self, method: Any, *args: object, late: str = "", at_least_s: float = 0.0) -> Any:
        """Call a method of the process and return its result.

        The timeout is the remaining time of the process, but at least ``at_least_s`` seconds. ``late`` replaces the
        default message of a timeout.
        """
        left_s = max(self._settings.process_timeout_s - self._spent_s, at_least_s)
        start = time.monotonic()
        try:
            answer = ray.get(method.remote(*args), timeout=max(0.0, left_s))
        except GetTimeoutError:
            what = late or "it was still running. Raise --process-timeout-s, or find out why the workload blocks"
            raise NoTimesError("timed_out", f"after {self._settings.process_timeout_s:g} s, {what}") from None
        # Also a ``RayError``, so it comes before the general case.
        except RayActorError as error:
            raise NoTimesError("died", _DIED.format(_reason(error))) from error
        except RayError as error:
            raise NoTimesError("died", f"Ray reported an error: {_reason(error)}") from error
        finally:
            # Failed calls count too, because the limit is for the whole process.
            self._spent_s += time.monotonic() - start
        if isinstance(answer, Raised):
            raise NoTimesError("raised", answer.message)
        return answer


def _unique_runtime_env() -> dict[str, Any]:
    """Return a unique runtime environment, so that Ray starts a fresh process.

    Otherwise, Ray could reuse a prestarted process, or a process that has run tasks.
    """
    return {"env_vars": {"TUNE_POLICIES_MEASURED_PROCESS": uuid.uuid4().hex}}


@functools.cache  # otherwise, each call exports the class to Ray's workers again
def _actor_class() -> Any:
    return ray.remote(WorkloadProcess)


def _reason(error: Exception) -> str:
    """Return the last error that Ray's message quotes, or the first line of the message if it quotes none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    quoted = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return (quoted[-1:] or lines[:1] or [type(error).__name__])[0]
