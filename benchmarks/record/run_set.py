"""The record of a benchmark run: the raw times of each process, the machine, and disturbances."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, AliasChoices, Field

from tune_policies.cluster.accelerators import public_text
from tune_policies.values.field_types import Many
from tune_policies.values.resources import Bytes, Count, PositiveCount, UsedBytes, format_amount
from tune_policies.values.sanitize import LEFT_OUT, WithoutSecrets
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten

from .obsolete_fields import OF_ENVIRONMENT, OF_NOISE_READING, OF_PROCESS_RUN, ignoring
from .settings import Settings


class GpuFacts(Value):
    """The properties of a GPU. Fields that its driver does not report are ``None``."""

    name: str
    memory_bytes: Bytes | None = None
    driver: str | None = None
    max_clock_mhz: Count | None = None
    power_limit_w: float | None = None

    def __str__(self) -> str:
        details = []
        if self.memory_bytes:
            details.append(format_bytes(self.memory_bytes))
        if self.max_clock_mhz:
            details.append(f"up to {self.max_clock_mhz} MHz")
        if self.power_limit_w:
            details.append(f"{self.power_limit_w:g} W")
        if self.driver:
            details.append(f"driver {self.driver}")
        if details:
            return f"{self.name} ({', '.join(details)})"
        return self.name


class Environment(Value):
    """The machine and the software of a measurement. Fields that could not be read are ``None``.

    Attributes:
        num_cpus: The number of logical CPUs of the machine.
        usable_cpus: The number of CPUs that the affinity and the cgroup's quota allow.
        host_memory_bytes: The total memory of the machine, in bytes.
        cgroup_memory_bytes: The cgroup's memory limit in bytes, or ``None`` if it is unknown or there is no limit.
        versions: Versions of packages, by name.
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
    # A ``Value`` refuses unknown fields, and files of earlier versions contain these.
    _former = ignoring(OF_ENVIRONMENT)

    def __str__(self) -> str:
        cpus = counted(self.num_cpus, "CPU")
        if self.usable_cpus is not None and self.usable_cpus != self.num_cpus:
            cpus = f"{format_amount(self.usable_cpus)} of {cpus}"
        parts = [self.cpu_model, cpus]
        if self.host_memory_bytes is not None:
            memory = f"{format_bytes(self.host_memory_bytes)} of host memory"
            if self.cgroup_memory_bytes is not None:
                memory = f"{format_bytes(self.cgroup_memory_bytes)} of {memory}"
            parts.append(memory)
        # The record contains only GPUs that NVML lists, which are NVIDIA's.
        gpus = Counter(map(str, self.gpus))
        parts += [f"{number} {gpu}" for gpu, number in gpus.items()] or ["no NVIDIA GPU"]
        versions = [f"Python {self.python}"] if self.python else []
        versions += [f"{name} {version}" for name, version in self.versions.items()]
        lines = (", ".join(parts), self.platform, ", ".join(versions))
        return "; ".join(filter(None, lines))


def _one_line(name: str) -> str:
    if not name or name != name.strip() or not name.isprintable():
        raise ValueError(f"a name must be one line of printable text, got {shorten(name)}")
    return name


Name = Annotated[str, AfterValidator(_one_line)]
"""The name of a workload or device: one line of printable text."""

Seconds = Annotated[float, Field(ge=1e-12, le=1e12)]
"""A positive duration in seconds. The bounds prevent overflow and underflow in computations."""


class Phase(StrEnum):
    """The kind of work that was timed.

    ``COMPUTE`` is a step whose data are on the device, and ``TRANSFERS`` a step whose data are in host memory. The time
    of ``FIRST_EPOCH`` includes the start of the process, imports, the preparation of data and compilation.
    """

    COMPUTE = "compute"
    TRANSFERS = "with-transfers"
    FIRST_EPOCH = "first-epoch"


class Configuration(Value):
    """One workload of one size on one device.

    Attributes:
        workload: The name of the workload, or ``module:function``.
        size: The size of the workload, in the workload's own unit.
        device: The device, such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``.
        is_control: Whether this is the second of two equal configurations. Their difference shows the noise of the run.
    """

    workload: Name
    size: PositiveCount
    device: Name
    is_control: bool = False

    def __str__(self) -> str:
        text = f"{self.workload}[{self.size}] on {self.device}"
        if self.is_control:
            return f"{text} (control)"
        return text


class Block(Value):
    """Steps that were timed together, with a synchronization of the device before and after.

    Attributes:
        order: The position of the block among the blocks of all configurations in its round.
        at_s: The start of the block, in seconds since the start of the round.
        seconds: The total time of all steps in the block, in seconds.
        is_warmup: Whether the block is a warm-up. Warm-ups are excluded from the results.
    """

    phase: Phase
    order: Count
    at_s: float
    num_steps: PositiveCount
    seconds: Seconds
    is_warmup: bool = False

    @property
    def seconds_per_step(self) -> float:
        """The mean time of a step, in seconds."""
        return self.seconds / self.num_steps


Measured = Annotated[Configuration, Field(validation_alias=AliasChoices("configuration", "arm"))]
"""The measured configuration. In files of earlier versions, its key is ``arm``."""


class ProcessRun(Value):
    """The measurements of one fresh process. Unknown fields are ``None``.

    ``dtype``, ``samples_per_step``, ``steps_per_epoch`` and ``tolerance`` are copied from the workload's ``Steps``.

    Attributes:
        round: The number of the round, starting at 0. In each round, every configuration has one process.
        order: The position of the process among the processes of its round.
        node: The name of the host on which the process ran.
        started_at: The time at which the process was requested.
        first_epoch_s: Seconds from the request to the end of the first epoch, or ``None`` if it was stopped early.
        losses: The losses of the steps of the first epoch, if the workload returns losses.
        peak_host_bytes: The peak host memory of the process, in bytes.
        peak_gpu_bytes: The peak GPU memory that the frameworks in the process used, in bytes.
        num_threads: The number of CPU threads that the process was configured to use.
    """

    configuration: Measured
    round: Count
    order: Count
    pid: Count
    node: str
    started_at: datetime
    first_epoch_s: Seconds | None = None
    blocks: Many[Block] = ()
    losses: Many[float] = ()
    peak_host_bytes: Bytes | None = None
    peak_gpu_bytes: UsedBytes | None = None
    num_threads: PositiveCount = 1
    dtype: str | None = None
    samples_per_step: PositiveCount | None = None
    steps_per_epoch: PositiveCount = 1
    tolerance: float = 0.02
    warnings: tuple[WithoutSecrets, ...] = ()

    _former = ignoring(OF_PROCESS_RUN)

    def times_s(self, phase: Phase) -> tuple[float, ...]:
        """Return the seconds per step of each block except warm-ups, or the duration of the first epoch in seconds."""
        if phase is Phase.FIRST_EPOCH:
            # A process has one first epoch, so this phase looks like a phase with one block.
            if self.first_epoch_s is None:
                return ()
            return (self.first_epoch_s,)
        return tuple(block.seconds_per_step for block in self.blocks if block.phase is phase and not block.is_warmup)


class DeviceFound(Value):
    """A requested device, and whether the cluster has it.

    Attributes:
        slot: The resources that a trial reserves, as text, or ``None`` if the cluster does not have the device.
        why_missing: The reason why the cluster does not have the device, or ``None`` if it does.
        at_once: The number of trials on this device that the cluster can run concurrently.
        accelerator_type: Ray's name of the device type; ``None`` if unknown, or for a CPU.
    """

    device: Name
    slot: str | None = None
    why_missing: WithoutSecrets | None = None
    at_once: Count = 0
    accelerator_type: str | None = None

    def redacted(self) -> "DeviceFound":
        """Return a copy for publication, without resource names of the cluster."""
        public = {}
        for name in ("slot", "why_missing", "accelerator_type"):
            text = getattr(self, name)
            if text:
                public[name] = public_text(text)
        return self.model_copy(update=public)


class Failure(Value):
    """A process without valid times.

    The workload raised an error or timed out, the process died, or its losses differ from the losses of another
    process.
    """

    configuration: Measured
    round: Count
    kind: Literal["raised", "timed_out", "died", "disagreed"]
    message: WithoutSecrets


class NoiseReading(Value):
    """The load and throttling of the machine while a group of processes was measured.

    Attributes:
        load: The mean number of CPUs that other processes used.
        throttled_s: The time that the cgroup was throttled, in seconds, or ``None`` if unknown.
        gpu_throttled: The reasons that NVML reported for a throttled GPU clock.
    """

    round: Count
    load: float
    throttled_s: float | None = None
    gpu_throttled: tuple[str, ...] = ()

    _former = ignoring(OF_NOISE_READING)


class Incident(NamedTuple):
    """A failure or warning of a configuration, and the rounds in which it occurred, counted from 0."""

    configuration: Configuration
    message: str
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        rounds = "round" if len(self.rounds) == 1 else "rounds"
        numbers = ", ".join(str(number + 1) for number in self.rounds)
        return f"{self.configuration}, {rounds} {numbers}: {self.message}"


class RunSet(Value):
    """All measurements of a benchmark run. Its file is rewritten after each group of each round.

    Attributes:
        command: The command line that started the run.
        devices: The requested devices.
        num_rounds: The number of requested rounds.
        runs: The measurements, one entry per process.
        is_interleaved: Whether the processes of a group took turns block by block. Otherwise, they ran one after the
            other, because the cluster could not run them concurrently.
        is_complete: Whether all requested measurements were taken.
        settings: The requested settings, or ``None`` if unknown. Without settings, the run cannot be resumed.
        is_redacted: Whether host names, process IDs, the command and messages were removed.
    """

    schema_version: Literal[1] = 1
    command: WithoutSecrets
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
        """Return a copy for publication, without host names, process IDs, the command and messages."""
        # The numbers still show which processes ran on the same host.
        nodes = dict.fromkeys(run.node for run in self.runs)
        names = {node: f"node-{number}" for number, node in enumerate(nodes, 1)}
        runs = (
            run.model_copy(update={"node": names[run.node], "pid": 0, "warnings": (LEFT_OUT,) * len(run.warnings)})
            for run in self.runs
        )
        changes = {
            "command": LEFT_OUT,
            "devices": tuple(device.redacted() for device in self.devices),
            "runs": tuple(runs),
            "failures": tuple(failure.model_copy(update={"message": LEFT_OUT}) for failure in self.failures),
            "is_redacted": True,
        }
        return self.model_copy(update=changes)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The measured configurations, in the order of their first run."""
        return tuple(self._runs)

    def of(self, configuration: Configuration) -> tuple[ProcessRun, ...]:
        """Return the measurements of a configuration's processes, ordered by round."""
        return tuple(self._runs.get(configuration, ()))

    @cached_property
    def _runs(self) -> dict[Configuration, list[ProcessRun]]:
        runs: dict[Configuration, list[ProcessRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.round):
            runs.setdefault(run.configuration, []).append(run)
        return runs

    def times_s(self, configuration: Configuration, phase: Phase) -> dict[int, tuple[float, ...]]:
        """Return the seconds per step of each block, by round. Rounds that have no times of this phase are omitted."""
        times = {run.round: run.times_s(phase) for run in self.of(configuration)}
        return {number: of_round for number, of_round in times.items() if of_round}

    def sizes(self, workload: str) -> tuple[int, ...]:
        """Return the measured sizes of a workload, ascending."""
        return tuple(
            sorted({configuration.size for configuration in self.configurations if configuration.workload == workload})
        )

    @property
    def workloads(self) -> tuple[str, ...]:
        """The measured workloads, without duplicates."""
        return tuple(dict.fromkeys(configuration.workload for configuration in self.configurations))

    def failed(self) -> tuple[Incident, ...]:
        """Return the failures. Equal failures in several rounds are merged."""
        return _incidents((failure.configuration, failure.message, failure.round) for failure in self.failures)

    def warnings(self) -> tuple[Incident, ...]:
        """Return the warnings of processes that have times. Equal warnings in several rounds are merged."""
        return _incidents((run.configuration, warning, run.round) for run in self.runs for warning in run.warnings)

    @property
    def devices_in_order(self) -> tuple[str, ...]:
        """The requested or measured devices. The CPU comes first, because other devices are compared with it."""
        devices = [device.device for device in self.devices] + [
            configuration.device for configuration in self.configurations
        ]
        # Requested devices come first, because a device that was not measured still has its place and its color.
        return tuple(sorted(dict.fromkeys(devices), key=lambda device: device != "cpu"))

    @property
    def measured_devices(self) -> tuple[str, ...]:
        """The measured devices, with the CPU first."""
        measured = {configuration.device for configuration in self.configurations}
        return tuple(device for device in self.devices_in_order if device in measured)


def _incidents(found: Iterable[tuple[Configuration, str, int]]) -> tuple[Incident, ...]:
    rounds: dict[tuple[Configuration, str], list[int]] = {}
    for configuration, message, number in found:
        rounds.setdefault((configuration, message), []).append(number)
    return tuple(Incident(*about, tuple(numbers)) for about, numbers in rounds.items())
