"""The facts of a node, of which ``None`` is not known, and what the doctor says about them."""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from tune_policies.values.sanitize import Redacted
from tune_policies.values.value import Value


class Gpu(Value):
    """One physical GPU, as NVIDIA's driver sees it.

    Attributes:
        index: Its number on the node, from 0.
        name: The model.
        uuid: The driver's identifier.
        memory_bytes: Total GPU memory; ``None``: the driver does not tell.
        used_bytes: What is in use of it, by whomever; ``None``: the driver does not tell.
        is_mig: Whether it is cut into MIG devices.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    is_mig: bool = False


class Framework(Value):
    """An installed framework, and what it was built for.

    Attributes:
        name: ``"torch"``, ``"tensorflow"`` or ``"jax"``.
        version: Its version.
        cuda: The CUDA version it was built with.
        rocm: The same for AMD's ROCm.
        xpu: The same for Intel's.
        missing: A library that it needs on a GPU and that is not installed.
    """

    name: str
    version: str
    cuda: str | None = None
    rocm: str | None = None
    xpu: str | None = None
    missing: str | None = None

    @property
    def is_cpu_build(self) -> bool:
        """Whether it can use no GPU at all."""
        return not (self.cuda or self.rocm or self.xpu)


class RayCounts(Value):
    """What Ray counts on a node.

    Attributes:
        cpus: Logical CPUs.
        gpus: Logical GPUs.
        gpus_in_use: How many of them are reserved.
        accelerator_type: Ray's name of the device type.
        object_store_bytes: Size of the object store.
    """

    cpus: float = 0
    gpus: float = 0
    gpus_in_use: float | None = None
    accelerator_type: str | None = None
    object_store_bytes: int | None = None


class NodeFacts(Value):
    """What was read on one node.

    Attributes:
        name: By which the user knows it: its IP address, or the beginning of Ray's identifier.
        ray: What Ray counts there; ``None``: no Ray runs.
        failure: Why it was not read; everything below is then not known.
        versions: Versions of what must agree on all nodes, by package; a missing one is not installed.
        frameworks: The frameworks that are installed.
        driver_version: Version of NVIDIA's driver.
        cuda_version: The newest CUDA version that the driver can run.
        nvml_error: Why NVIDIA's driver does not answer.
        gpus: The GPUs of NVIDIA's driver; ``None``: it does not answer.
        num_nvidia_on_pci: NVIDIA's GPUs on the PCI bus, with or without a driver.
        has_amd_driver: Whether AMD's compute driver is there.
        visible_devices: The node's ``CUDA_VISIBLE_DEVICES``; ``None``: not set.
        cpu_limits: CPUs that the node's processes may use, by what limits them.
        memory_bytes: Host memory.
        shm_bytes: Size of ``/dev/shm``.
    """

    name: str
    ray: RayCounts | None = None
    failure: Redacted | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    frameworks: tuple[Framework, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_error: Redacted | None = None
    gpus: tuple[Gpu, ...] | None = None
    num_nvidia_on_pci: int = 0
    has_amd_driver: bool = False
    visible_devices: str | None = None
    cpu_limits: dict[str, float] = Field(default_factory=dict)
    memory_bytes: int | None = None
    shm_bytes: int | None = None

    @property
    def declared_gpus(self) -> float:
        """GPUs that Ray counts."""
        return self.ray.gpus if self.ray else 0

    @property
    def has_gpus(self) -> bool:
        """Whether it has GPUs, or Ray believes so."""
        return bool(self.declared_gpus or self.gpus)


class Severity(StrEnum):
    """Whether work goes wrong, or it is only worth knowing."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(Value):
    """One thing that was found.

    Attributes:
        severity: How bad it is.
        what: What was found.
        hint: What to do about it.
        nodes: Where, by the names of the nodes.
    """

    severity: Severity
    what: str
    hint: str
    nodes: tuple[str, ...] = ()


class Diagnosis(Value):
    """What the doctor looked at, and what it found.

    Attributes:
        address: The Ray that was looked at; ``None``: this machine alone, as no Ray runs.
        nodes: The facts of each node.
        findings: What follows from them, the problems first.
    """

    address: str | None
    nodes: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong; notes are not."""
        return not any(finding.severity is Severity.PROBLEM for finding in self.findings)


def merge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return equal findings of many nodes as one, the problems first."""
    nodes: dict[tuple[Severity, str, str], list[str]] = {}
    for found in findings:
        nodes.setdefault((found.severity, found.what, found.hint), []).extend(found.nodes)
    merged = [
        Finding(severity=severity, what=what, hint=hint, nodes=tuple(sorted(set(names))))
        for (severity, what, hint), names in nodes.items()
    ]
    return tuple(sorted(merged, key=lambda found: found.severity is Severity.NOTE))
