"""The machine and the versions with which something was measured."""

from collections import Counter

from pydantic import Field

from tune_policies.values.resources import Bytes, Count, format_amount
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value, counted


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
