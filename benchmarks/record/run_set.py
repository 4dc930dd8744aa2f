"""What a run of the benchmarks has measured: raw times by process, and all that one must know to believe them."""

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
    """One GPU as its driver describes it.

    Attributes:
        name: The model.
        memory_bytes: Total GPU memory; ``None``: not known.
        driver: The driver's version.
        max_clock_mhz: The highest clock of its processors; ``None``: not known.
        power_limit_w: What it may use, in watts; ``None``: not known.
    """

    name: str
    memory_bytes: Bytes | None = None
    driver: str | None = None
    max_clock_mhz: Count | None = None
    power_limit_w: float | None = None

    def __str__(self) -> str:
        memory = format_bytes(self.memory_bytes) if self.memory_bytes else None
        clock = f"up to {self.max_clock_mhz} MHz" if self.max_clock_mhz else None
        power = f"{self.power_limit_w:g} W" if self.power_limit_w else None
        driver = f"driver {self.driver}" if self.driver else None
        details = ", ".join(filter(None, (memory, clock, power, driver)))
        return f"{self.name} ({details})" if details else self.name


class Environment(Value):
    """Where something was measured.

    Attributes:
        cpu_model: As the machine calls it.
        num_cpus: Logical CPUs of the machine.
        usable_cpus: What affinity and the cgroup's quota leave of them; ``None``: not known.
        host_memory_bytes: Of the machine.
        cgroup_memory_bytes: What the cgroup allows; ``None``: no limit, or not known.
        gpus: Its GPUs.
        platform: The operating system.
        python: Python's version.
        versions: Of packages, by name.
        commit: Of the working directory's Git repository; ``None``: there is none.
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
    """What is measured, and how long at the most.

    Attributes:
        sizes: The sizes of each workload, by its name or ``module:function``.
        devices: Such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``; each once.
        cpus: CPUs of a trial, on whatever device.
        num_rounds: In each, every arm has a fresh process.
        num_blocks: How many blocks are timed of each phase in each process, beside warm-ups.
        max_steps: How many steps a process is timed for at the most, with the first epoch.
        process_timeout_s: How long a process works at the most, in seconds, from when it was asked for.
        seed: Of the random order.
        has_control: Whether a second arm equal to the first tells how noisy the machine is.
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
"""It names benchmarks, rows of tables and files."""

Seconds = Annotated[float, Field(ge=1e-12, le=1e12)]
"""How long something took: no clock here is so coarse that it took none, and squares of it are numbers, too."""


class Phase(StrEnum):
    """What a time is of."""

    COMPUTE = "compute"
    """A step on data that lie on the device."""

    TRANSFERS = "with-transfers"
    """A step from data in host memory."""

    FIRST_EPOCH = "first-epoch"
    """The first epoch with all before it: start of the process, imports, data, compilation."""


class Arm(Value):
    """One workload of one size on one device.

    Attributes:
        workload: Its name, or ``module:function``.
        size: In the workload's own unit.
        device: Such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``.
        is_control: Whether this is the second of two equal arms, by which the noise of the run is known.
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
    """Some steps that were timed together, synchronised with the device before and after.

    Attributes:
        phase: What was timed.
        order: Its place among all blocks of its round, of all arms.
        at_s: When it began, in seconds since its round did.
        num_steps: How many steps.
        seconds: How long they took together.
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
        """How long one step took."""
        return self.seconds / self.num_steps


class ProcessRun(Value):
    """What one fresh process measured.

    Attributes:
        arm: What it ran.
        round: In each round every arm of a group has one process.
        order: Its place among the processes of its round.
        pid: Its process number.
        node: The host on which it ran.
        started_at: When it was asked for.
        first_epoch_s: From then until its first epoch was done; ``None``: it did not come so far.
        start_up_s: Of this, until the workload was asked to prepare itself.
        prepare_s: Of this, until it had.
        blocks: What was timed, in turn.
        losses: Of the steps of the first epoch; empty: the workload gives none.
        peak_host_bytes: The most host memory that the process held; ``None``: not known.
        peak_gpu_bytes: The most GPU memory that its frameworks held; ``None``: not known, or none.
        energy_j: What its GPUs used over all blocks; ``None``: NVML does not tell.
        num_threads: CPU threads that it was set to.
        dtype: In what the work was done, as the workload says.
        samples_per_step: As the workload says.
        steps_per_epoch: As the workload says.
        tolerance: As the workload says.
        warnings: What came up.
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
        """Return the seconds of a step, block by block, without warm-ups; of the first epoch, its one time."""
        if phase is Phase.FIRST_EPOCH:
            return () if self.first_epoch_s is None else (self.first_epoch_s,)
        return tuple(each.seconds_per_step for each in self.blocks if each.phase is phase and not each.is_warmup)


class DeviceFound(Value):
    """One of the devices that were asked for.

    Attributes:
        device: As asked.
        slot: What a trial reserves there, in words; ``None``: the cluster does not have it.
        why_missing: Why not.
        at_once: How many trials of this kind the cluster runs at once.
        accelerator_type: Ray's name of the device type; ``None``: not known, or a CPU.
    """

    device: Name
    slot: str | None = None
    why_missing: Redacted | None = None
    at_once: Count = 0
    accelerator_type: str | None = None


def _public_device(found: DeviceFound) -> DeviceFound:
    texts = {name: getattr(found, name) for name in ("slot", "why_missing", "accelerator_type")}
    return found.model_copy(update={name: text and public_text(text) for name, text in texts.items()})


class Failure(Value):
    """A process that gave no times.

    Attributes:
        arm: What it was to run.
        round: In which round.
        kind: The workload raised or did not end in time, its process died, or its results disagree.
        message: What is known, with the way out.
    """

    arm: Arm
    round: Count
    kind: Literal["raised", "timed_out", "died", "disagreed"]
    message: Redacted


class NoiseReading(Value):
    """How quiet the machine was during a round.

    Attributes:
        round: Which.
        load: What other processes used of its CPUs, in CPUs.
        throttled_s: For how long the cgroup was throttled, in seconds; ``None``: not known.
        gpu_throttled: Why NVML says that a GPU's clock was held down; empty: it was not, or there is none.
        cpu_mhz: The mean clock of the CPUs; ``None``: not known.
    """

    round: Count
    load: float
    throttled_s: float | None = None
    gpu_throttled: tuple[str, ...] = ()
    cpu_mhz: float | None = None


class Incident(NamedTuple):
    """What went wrong with the processes of an arm, in the same way in each of these rounds."""

    arm: Arm
    kind: str
    message: str
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        rounds = "round" if len(self.rounds) == 1 else "rounds"
        return f"{self.arm}, {rounds} {', '.join(map(str, self.rounds))}: {self.message}"


class RunSet(Value):
    """All that one run of the benchmarks measured. It grows by copies, and is written after each round.

    Attributes:
        schema_version: Of this format.
        command: By which it was measured.
        seed: Of the random order.
        created_at: When it began.
        environment: The machine, and the versions.
        devices: Those that were asked for.
        num_rounds: How many rounds were asked for.
        runs: What was measured.
        failures: What was not.
        noise: How quiet it was.
        is_interleaved: Whether the arms of a round took turns block by block; else process by process, since the
            cluster does not hold them at once.
        is_complete: Whether all that was asked for was run.
        settings: What was asked for; ``None``: not known, so the run cannot be gone on with.
        is_redacted: Whether host names, process numbers, the command, and what errors and warnings say are left out.
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
        """Return the run without names of the cluster, commands and errors, so that it can be published."""
        names = {name: f"node-{number}" for number, name in enumerate(dict.fromkeys(run.node for run in self.runs), 1)}
        runs = (
            run.model_copy(update={"node": names[run.node], "pid": 0, "warnings": (LEFT_OUT,) * len(run.warnings)})
            for run in self.runs
        )
        changes = {
            "command": LEFT_OUT,
            "devices": tuple(map(_public_device, self.devices)),
            "runs": tuple(runs),
            "failures": tuple(each.model_copy(update={"message": LEFT_OUT}) for each in self.failures),
            "is_redacted": True,
        }
        return self.model_copy(update=changes)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms of which something was measured, in the order in which they came first."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def sorted_arms(self) -> tuple[Arm, ...]:
        """The same by workload, size and device, in which order people look for them; a control after its twin."""
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
        """Return the seconds of a step by round; rounds without a time of this phase are left out."""
        times = {run.round: run.times_s(phase) for run in self.of(arm)}
        return {number: each for number, each in times.items() if each}

    def sizes(self, workload: str) -> tuple[int, ...]:
        """Return the sizes of a workload of which something was measured, ascending."""
        return tuple(sorted({arm.size for arm in self.arms if arm.workload == workload}))

    @property
    def workloads(self) -> tuple[str, ...]:
        """Those of which something was measured."""
        return tuple(dict.fromkeys(arm.workload for arm in self.arms))

    def problems(self) -> Iterator[str]:
        """Yield what was not measured, and why, a sentence each."""
        for device in self.devices:
            if device.why_missing is not None:
                yield f"{device.device} is not there: {device.why_missing}"
        yield from map(str, self.incidents("failure"))
        if not self.is_complete:
            yield "the run was ended before all was measured: --resume goes on with it"

    def incidents(self, what: Literal["failure", "warning"]) -> tuple[Incident, ...]:
        """Return what failed, or the warnings of processes that have times; the same in several rounds is one."""
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
        """The devices that were asked for or measured: the CPU first, as others are compared with it."""
        measured = sorted({arm.device for arm in self.arms})
        asked = [each.device for each in self.devices]
        return tuple(sorted(dict.fromkeys((*asked, *measured)), key=lambda each: each != "cpu"))

    @property
    def measured_devices(self) -> tuple[str, ...]:
        """Those of which something was measured, in the same order."""
        measured = {arm.device for arm in self.arms}
        return tuple(each for each in self.devices_in_order if each in measured)

    def by_workload(self) -> dict[str, "RunSet"]:
        """Return the run of each workload by itself, by name: what is asked of it then takes no look at all others."""
        runs: dict[str, list[ProcessRun]] = {}
        for run in self.runs:
            runs.setdefault(run.arm.workload, []).append(run)
        return {name: self.model_copy(update={"runs": tuple(runs[name])}) for name in sorted(runs)}
