"""What a run of the benchmarks measured: raw times by process, with the machine and all that disturbed them."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, WithJsonSchema

from tune_policies.cluster.accelerators import public_text
from tune_policies.values.resources import Amount, Bytes, Count, PositiveCount, UsedBytes, format_amount
from tune_policies.values.sanitize import LEFT_OUT, Redacted
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Many, Value, counted, shorten


class GpuFacts(Value):
    """One GPU as its driver describes it; ``None`` stands for what the driver does not report."""

    name: str
    memory_bytes: Bytes | None = None
    driver: str | None = None
    max_clock_mhz: Count | None = None
    power_limit_w: float | None = None

    def __str__(self) -> str:
        details = (
            self.memory_bytes and format_bytes(self.memory_bytes),
            self.max_clock_mhz and f"up to {self.max_clock_mhz} MHz",
            self.power_limit_w and f"{self.power_limit_w:g} W",
            self.driver and f"driver {self.driver}",
        )
        known = ", ".join(each for each in details if each)
        return f"{self.name} ({known})" if known else self.name


class Environment(Value):
    """The machine and the software with which something was measured; ``None`` stands for what could not be read.

    Attributes:
        num_cpus: Logical CPUs of the machine.
        usable_cpus: CPUs within the affinity and the cgroup's quota.
        cgroup_memory_bytes: The cgroup's memory limit; ``None`` also if there is no limit.
        versions: Of packages, by name.
        commit: Commit of the working directory's Git repository; ``None`` if there is none.
        has_changes: Whether files differ from that commit.
    """

    cpu_model: str
    num_cpus: Count
    usable_cpus: float | None = None
    host_memory_bytes: Bytes | None = None
    cgroup_memory_bytes: Bytes | None = None
    gpus: tuple[GpuFacts, ...] = ()
    platform: str = ""
    python: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    has_changes: bool = False

    def __str__(self) -> str:
        usable = self.usable_cpus
        of = f"{format_amount(usable)} of " if usable is not None and usable != self.num_cpus else ""
        parts = [self.cpu_model, f"{of}{counted(self.num_cpus, 'CPU')}"]
        if self.host_memory_bytes is not None:
            limit = self.cgroup_memory_bytes
            of = f"{format_bytes(limit)} of " if limit is not None else ""
            parts.append(f"{of}{format_bytes(self.host_memory_bytes)} host memory")
        gpus = Counter(map(str, self.gpus))
        parts += [f"{number} {gpu}" for gpu, number in gpus.items()] or ["no GPU that NVML knows"]
        versions = [f"Python {self.python}"] if self.python else []
        versions += [f"{name} {version}" for name, version in self.versions.items()]
        if self.commit:
            versions.append(f"commit {self.commit[:12]}{' with changes' if self.has_changes else ''}")
        lines = (", ".join(parts), self.platform, ", ".join(versions))
        return "; ".join(filter(None, lines))


class Settings(Value):
    """What to measure, and the limits of a process.

    Attributes:
        sizes: The sizes of each workload, by its name or ``module:function``.
        devices: Such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``; each once.
        cpus: CPUs of a trial, on every device.
        num_rounds: In each round, every arm has a fresh process.
        num_blocks: Blocks of each phase in each process, without warm-ups.
        max_steps: The most steps of a process, including the first epoch.
        process_timeout_s: The longest time that a process works, in seconds since it was requested.
        seed: Seed of the random order.
        has_control: Whether a second, equal arm shows how noisy the machine is.
    """

    sizes: dict[str, tuple[PositiveCount, ...]] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    cpus: Amount = 1
    num_rounds: PositiveCount = 5
    num_blocks: PositiveCount = 10
    max_steps: PositiveCount = 1_000_000
    process_timeout_s: float = Field(default=60, gt=0)
    seed: Count = 0
    has_control: bool = True


def _one_line(name: str) -> str:
    if not name or name != name.strip() or not name.isprintable():
        raise ValueError(f"a name is one line of printed text, got {shorten(name)}")
    return name


Name = Annotated[
    str,
    AfterValidator(_one_line),
    WithJsonSchema({"type": "string", "pattern": r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$"}),
]
"""The name of a benchmark, of a row in a table and of a file."""

Seconds = Annotated[float, Field(ge=1e-12, le=1e12)]
"""A duration above 0, within bounds whose squares are finite floats."""


class Phase(StrEnum):
    """What is timed: a step on data on the device, a step from data in host memory, or the first epoch.

    The first epoch includes everything before it: start of the process, imports, data and compilation.
    """

    COMPUTE = "compute"
    TRANSFERS = "with-transfers"
    FIRST_EPOCH = "first-epoch"


class Arm(Value):
    """One workload of one size on one device.

    Attributes:
        workload: Its name, or ``module:function``.
        size: In the workload's own unit.
        device: Such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``.
        is_control: Whether this is the second of two equal arms, which shows the noise of the run.
    """

    workload: Name
    size: PositiveCount
    device: Name
    is_control: bool = False

    @property
    def where(self) -> str:
        """The device, marked if this is the control: ``"cpu (control)"``."""
        return f"{self.device} (control)" if self.is_control else self.device

    def __str__(self) -> str:
        return f"{self.workload}[{self.size}] on {self.where}"


class Block(Value):
    """Steps that were timed together, synchronised with the device before and after.

    Attributes:
        order: Its place among the blocks of all arms in its round.
        at_s: When it began, in seconds since the start of the round.
        seconds: How long all its steps took together.
        is_warmup: Whether it does not count.
    """

    phase: Phase
    order: Count
    at_s: float
    num_steps: PositiveCount
    seconds: Seconds
    is_warmup: bool = False

    @property
    def seconds_per_step(self) -> float:
        """The mean time of its steps."""
        return self.seconds / self.num_steps


class ProcessRun(Value):
    """What one fresh process measured; ``None`` stands for what is unknown.

    ``dtype``, ``samples_per_step``, ``steps_per_epoch`` and ``tolerance`` are those of the workload's ``Steps``.

    Attributes:
        round: In each round, every arm of a group has one process.
        order: Its place among the processes of its round.
        node: The host on which it ran.
        started_at: When it was requested.
        first_epoch_s: Seconds from the request to the end of its first epoch; ``None`` if that was cut.
        start_up_s: The part of ``first_epoch_s`` before the workload was called.
        prepare_s: The part of ``first_epoch_s`` in which the workload prepared itself.
        losses: Losses of the steps of the first epoch; empty if the workload returns none.
        peak_host_bytes: The most host memory that the process used.
        peak_gpu_bytes: The most GPU memory that its frameworks used.
        energy_j: What its GPUs used over all blocks, in joules, by NVML.
        num_threads: CPU threads that it was set to use.
    """

    arm: Arm
    round: Count
    order: Count
    pid: Count
    node: str
    started_at: datetime
    first_epoch_s: Seconds | None = None
    start_up_s: float | None = None
    prepare_s: float | None = None
    blocks: Many[Block] = ()
    losses: Many[float] = ()
    peak_host_bytes: Bytes | None = None
    peak_gpu_bytes: UsedBytes | None = None
    energy_j: float | None = None
    num_threads: PositiveCount = 1
    dtype: str | None = None
    samples_per_step: PositiveCount | None = None
    steps_per_epoch: PositiveCount = 1
    tolerance: float = 0.02
    warnings: tuple[Redacted, ...] = ()

    def times_s(self, phase: Phase) -> tuple[float, ...]:
        """Return the seconds of a step in each block without warm-ups, or the one time of the first epoch."""
        if phase is Phase.FIRST_EPOCH:
            return () if self.first_epoch_s is None else (self.first_epoch_s,)
        return tuple(each.seconds_per_step for each in self.blocks if each.phase is phase and not each.is_warmup)


class DeviceFound(Value):
    """A device that was requested, and whether the cluster has it.

    Attributes:
        slot: What a trial reserves there, in words; ``None`` if the cluster lacks the device.
        at_once: How many such trials the cluster runs at once.
        accelerator_type: Ray's name of the device type; ``None`` if unknown, or for a CPU.
    """

    device: Name
    slot: str | None = None
    why_missing: Redacted | None = None
    at_once: Count = 0
    accelerator_type: str | None = None

    def redacted(self) -> "DeviceFound":
        """Return the device without names of the cluster."""
        texts = {name: getattr(self, name) for name in ("slot", "why_missing", "accelerator_type")}
        return self.model_copy(update={name: text and public_text(text) for name, text in texts.items()})


class Failure(Value):
    """A process without valid times: its workload raised or timed out, it died, or its results disagree."""

    arm: Arm
    round: Count
    kind: Literal["raised", "timed_out", "died", "disagreed"]
    message: Redacted


class NoiseReading(Value):
    """How quiet the machine was during a round.

    Attributes:
        load: How many CPUs other processes used.
        throttled_s: For how long the cgroup was throttled, in seconds; ``None`` if unknown.
        gpu_throttled: NVML's reasons why a GPU's clock was held down.
        cpu_mhz: The mean clock of the CPUs; ``None`` if unknown.
    """

    round: Count
    load: float
    throttled_s: float | None = None
    gpu_throttled: tuple[str, ...] = ()
    cpu_mhz: float | None = None


class Incident(NamedTuple):
    """A failure or warning of an arm's processes that is the same in each of these rounds."""

    arm: Arm
    kind: str
    message: str
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        rounds = "round" if len(self.rounds) == 1 else "rounds"
        return f"{self.arm}, {rounds} {', '.join(map(str, self.rounds))}: {self.message}"


class RunSet(Value):
    """Everything that one run of the benchmarks measured. It grows by copies, and is written after each round.

    Attributes:
        devices: The devices that were requested.
        num_rounds: How many rounds were requested.
        is_interleaved: Whether the arms of a round took turns block by block. Otherwise they took turns process by
            process, because the cluster cannot run them at once.
        is_complete: Whether everything that was requested was run.
        settings: What was requested; ``None`` if unknown, so that the run cannot be resumed.
        is_redacted: Whether host names, process numbers, the command and messages are left out.
    """

    schema_version: Literal[1] = 1
    command: Redacted
    seed: Count
    created_at: datetime
    environment: Environment
    devices: Many[DeviceFound]
    num_rounds: PositiveCount
    runs: Many[ProcessRun] = ()
    failures: Many[Failure] = ()
    noise: Many[NoiseReading] = ()
    is_interleaved: bool = True
    is_complete: bool = False
    settings: Settings | None = None
    is_redacted: bool = False

    def redacted(self) -> "RunSet":
        """Return a run that can be published: without names of the cluster, commands and errors."""
        names = {name: f"node-{number}" for number, name in enumerate(dict.fromkeys(run.node for run in self.runs), 1)}
        runs = (
            run.model_copy(update={"node": names[run.node], "pid": 0, "warnings": (LEFT_OUT,) * len(run.warnings)})
            for run in self.runs
        )
        changes = {
            "command": LEFT_OUT,
            "devices": tuple(each.redacted() for each in self.devices),
            "runs": tuple(runs),
            "failures": tuple(each.model_copy(update={"message": LEFT_OUT}) for each in self.failures),
            "is_redacted": True,
        }
        return self.model_copy(update=changes)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that were measured, in the order of their first run."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def sorted_arms(self) -> tuple[Arm, ...]:
        """The arms by workload, size and device; a control follows its twin."""
        return tuple(sorted(self.arms, key=lambda arm: (arm.workload, arm.size, arm.device, arm.is_control)))

    def of(self, arm: Arm) -> tuple[ProcessRun, ...]:
        """Return the processes of an arm, round by round."""
        return self._runs_by_arm.get(arm, ())

    @cached_property
    def _runs_by_arm(self) -> dict[Arm, tuple[ProcessRun, ...]]:
        by_arm: dict[Arm, list[ProcessRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.round):
            by_arm.setdefault(run.arm, []).append(run)
        return {arm: tuple(runs) for arm, runs in by_arm.items()}

    def times_s(self, arm: Arm, phase: Phase) -> dict[int, tuple[float, ...]]:
        """Return the seconds of a step by round, without rounds that have no time of this phase."""
        times = {run.round: run.times_s(phase) for run in self.of(arm)}
        return {number: each for number, each in times.items() if each}

    def sizes(self, workload: str) -> tuple[int, ...]:
        """Return the measured sizes of a workload, ascending."""
        return tuple(sorted({arm.size for arm in self.arms if arm.workload == workload}))

    @property
    def workloads(self) -> tuple[str, ...]:
        """The workloads that were measured."""
        return tuple(dict.fromkeys(arm.workload for arm in self.arms))

    def problems(self) -> Iterator[str]:
        """Yield what was not measured and why, a sentence each."""
        for device in self.devices:
            if device.why_missing is not None:
                yield f"{device.device} is not there: {device.why_missing}"
        yield from map(str, self.incidents("failure"))
        if not self.is_complete:
            yield "the run was ended before all was measured: --resume goes on with it"

    def incidents(self, what: Literal["failure", "warning"]) -> tuple[Incident, ...]:
        """Return the failures, or the warnings of processes that have times; equal ones of several rounds are one."""
        if what == "failure":
            found = [((each.arm, each.kind.replace("_", " "), each.message), each.round) for each in self.failures]
        else:
            found = [((run.arm, "warning", warning), run.round) for run in self.runs for warning in run.warnings]
        rounds: dict[tuple[Arm, str, str], list[int]] = {}
        for about, number in found:
            rounds.setdefault(about, []).append(number)
        return tuple(Incident(*about, tuple(numbers)) for about, numbers in rounds.items())

    @property
    def devices_in_order(self) -> tuple[str, ...]:
        """The devices that were requested or measured, the CPU first because others are compared with it."""
        devices = (*(each.device for each in self.devices), *(arm.device for arm in self.arms))
        return tuple(sorted(dict.fromkeys(devices), key=lambda each: each != "cpu"))

    @property
    def measured_devices(self) -> tuple[str, ...]:
        """The devices that were measured, the CPU first."""
        measured = {arm.device for arm in self.arms}
        return tuple(each for each in self.devices_in_order if each in measured)

    def by_workload(self) -> dict[str, "RunSet"]:
        """Return the run of each workload by name, so that queries need not scan all workloads."""
        runs: dict[str, list[ProcessRun]] = {}
        for run in self.runs:
            runs.setdefault(run.arm.workload, []).append(run)
        return {name: self.model_copy(update={"runs": tuple(runs[name])}) for name in sorted(runs)}
