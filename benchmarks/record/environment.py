"""The machine and the versions with which something was measured."""

from pydantic import Field

from tune_policies.resources import Bytes, Count
from tune_policies.values import Value


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
