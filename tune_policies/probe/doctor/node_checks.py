"""The facts of a node, in which ``None`` means "not known", and the checks of the doctor.

A check is a function that takes facts and yields findings.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.values.resources import format_amount
from tune_policies.values.sanitize import LEFT_OUT, Redacted
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import Value, shorten_names


class Gpu(Value):
    """One physical GPU of NVIDIA's driver.

    Attributes:
        index: Its number on the node, from 0.
        name: The model.
        uuid: The driver's identifier.
        memory_bytes: Total GPU memory.
        used_bytes: GPU memory in use by any process.
        is_mig: Whether it is partitioned into MIG devices.
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
        xpu: The same for Intel's XPU.
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
        """Whether it can use no GPU."""
        return not (self.cuda or self.rocm or self.xpu)


class RayCounts(Value):
    """What Ray counts on a node.

    Attributes:
        cpus: Logical CPUs.
        gpus: GPUs that Ray schedules.
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
        name: Its IP address, with the beginning of Ray's node ID if several nodes have that address.
        ray: What Ray counts there; ``None``: no Ray runs.
        failure: Why it was not read; everything below is then not known.
        versions: Versions of packages that must agree on all nodes.
        frameworks: The installed frameworks.
        driver_version: Version of NVIDIA's driver.
        cuda_version: The newest CUDA version that the driver can run.
        nvml_error: Why NVIDIA's driver does not answer.
        gpus: The GPUs of NVIDIA's driver; ``None``: it does not answer.
        num_nvidia_on_pci: NVIDIA's GPUs on the PCI bus, with or without a driver.
        has_amd_driver: Whether AMD's compute driver is loaded.
        visible_devices: The node's ``CUDA_VISIBLE_DEVICES``; ``None``: not set.
        device_variables: The variables that hide AMD's and Intel's GPUs, by name; empty: none is set.
        cpu_limits: CPUs that the node's processes may use, by the kind of limit.
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
    device_variables: dict[str, str] = Field(default_factory=dict)
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
    """A problem fails work; a note is only worth knowing."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(Value):
    """One finding, what to do about it, and the names of the nodes."""

    severity: Severity
    what: str
    hint: str
    nodes: tuple[str, ...] = ()


class Diagnosis(Value):
    """What the doctor looked at, and what it found.

    Attributes:
        address: The address of Ray; ``None``: no Ray runs, so only this machine was read.
        nodes: The facts of each node.
        findings: The findings, the problems first.
    """

    address: str | None
    nodes: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem."""
        return not any(finding.severity is Severity.PROBLEM for finding in self.findings)

    def redacted(self) -> "Diagnosis":
        """Return the same without addresses, variables and error messages, so that it can be published."""
        names = {node.name: f"node-{number}" for number, node in enumerate(self.nodes, 1)}
        private = ("failure", "nvml_error", "visible_devices")
        changes: list[dict[str, Any]] = [
            {name: LEFT_OUT for name in private if getattr(node, name)}
            | {"device_variables": dict.fromkeys(node.device_variables, LEFT_OUT)}
            for node in self.nodes
        ]
        nodes = [
            node.model_copy(update={"name": names[node.name], **change})
            for node, change in zip(self.nodes, changes, strict=True)
        ]
        findings = [self._redacted_finding(each, names) for each in self.findings]
        address = self.address and LEFT_OUT
        return self.model_copy(update={"address": address, "nodes": tuple(nodes), "findings": tuple(findings)})

    def _redacted_finding(self, finding: Finding, names: Mapping[str, str]) -> Finding:
        texts = [finding.what, finding.hint]
        said = {each for node in self.nodes for each in (node.failure, node.nvml_error) if each}
        # In quotes, because a digit is in other texts, too.
        said |= {repr(node.visible_devices) for node in self.nodes if node.visible_devices}
        said |= {repr(value) for node in self.nodes for value in node.device_variables.values()}
        # A name may begin with another one: 10.0.0.12 and 10.0.0.1.
        by_length = sorted(names.items(), key=lambda each: len(each[0]), reverse=True)
        for old, new in (*dict.fromkeys(said, LEFT_OUT).items(), *by_length):
            texts = [text.replace(old, new) for text in texts]
        nodes = tuple(names.get(name, LEFT_OUT) for name in finding.nodes)
        return finding.model_copy(update={"what": texts[0], "hint": texts[1], "nodes": nodes})


Check = Callable[[NodeFacts], Iterator[Finding]]

_NOT_NVIDIA: Final = ("AMD-", "Intel-", "MXC", "Apple-", "M1", "M2", "M3", "M4")
"""Prefixes of Ray's names of GPU types of other vendors than NVIDIA."""

_GPU_BUILD: Final = {
    "torch": "install a build for the node's GPUs, as https://pytorch.org/get-started/locally says",
    "tensorflow": "pip install 'tensorflow[and-cuda]'",
    "jax": "pip install 'jax[cuda13]', or the plugin for the node's GPUs",
}

_DEVICE: Final = re.compile(r"\d+(\.\d+)?|GPU-\w+")
"""One device in ``ROCR_VISIBLE_DEVICES`` or ``ONEAPI_DEVICE_SELECTOR``: its number, with a tile, or its UUID."""

_SHM: Final = "/dev/shm"  # noqa: S108

_RAY_NEEDS_SHM_UP_TO: Final = 10**10
"""Ray makes the object store 30 % of host memory; above this size it would rather shrink it to ``/dev/shm``."""


def check_answer(node: NodeFacts) -> Iterator[Finding]:
    """A node that was not read."""
    if node.failure is not None:
        yield _problem(
            f"the node was not read: {node.failure}",
            "check whether it is overloaded or going down, or give it longer with --timeout-s",
        )


def check_driver(node: NodeFacts) -> Iterator[Finding]:
    """GPUs without a driver."""
    if node.gpus is not None or node.failure is not None or _is_of_another_vendor(node):
        return
    on_bus = f"{_gpus(node.num_nvidia_on_pci)} of NVIDIA on its PCI bus"
    why = f"NVIDIA's driver does not answer ({node.nvml_error})"
    install = "install the driver until `nvidia-smi` works there; start a container with --gpus=all"
    if node.declared_gpus and node.num_nvidia_on_pci:
        yield _problem(f"{_ray_counts(node)}, and there are {on_bus}, but {why}", install)
    elif node.declared_gpus:
        yield _problem(
            f"{_ray_counts(node)} that do not exist: {why}, and the PCI bus has no NVIDIA GPU",
            f"start Ray there without --num-gpus; if there are GPUs, {install}",
        )
    elif node.num_nvidia_on_pci:
        yield _note(f"{on_bus}, but {why}", f"to use them, {install}")


def check_count(node: NodeFacts) -> Iterator[Finding]:
    """GPUs that are hidden, counted but missing, or not counted."""
    if not node.gpus:
        if node.gpus is not None and node.declared_gpus and not _is_of_another_vendor(node):
            hint = "start Ray there without --num-gpus, or give the container its GPUs"
            yield _problem(f"{_ray_counts(node)} that do not exist: NVIDIA's driver lists none", hint)
        return
    visible = _visible(node)
    if visible is None:  # by MIG devices, which Ray may count or not
        return
    there = len(node.gpus)
    if visible < there:
        what = f"CUDA_VISIBLE_DEVICES={node.visible_devices!r} hides {there - visible} of {_gpus(there)}"
        say = _note if visible else _problem
        yield say(what, "to use them all, unset it before Ray starts there")
    if node.ray is None:
        return
    if node.declared_gpus > visible:
        hint = f"start Ray there without --num-gpus, or with --num-gpus={visible}"
        yield _problem(f"{_ray_counts(node)}, but only {visible} can be used", hint)
    elif node.declared_gpus < visible:
        hint = "fine if the others are not for Ray; else start Ray there without --num-gpus"
        yield _note(f"{_ray_counts(node)} of the {visible} that can be used", hint)


def check_device_variables(node: NodeFacts) -> Iterator[Finding]:
    """GPUs of AMD and Intel that are hidden by a variable of an older Ray."""
    installed = node.versions.get("ray")
    for family in FAMILIES:
        former, ours = family.former_variable, family.visibility_variable
        if former is None or ours is None or (installed is not None and is_older(installed, former.until)):
            continue
        value = node.device_variables.get(former.name, "")
        # ROCR takes UUIDs, too. "level_zero:gpu" selects a back end, and no device.
        devices = [each for each in value.removeprefix("level_zero:").split(",") if _DEVICE.fullmatch(each)]
        if not devices or node.gpus:  # beside NVIDIA's GPUs Ray counts no others
            continue
        say = _problem if node.declared_gpus or node.has_amd_driver else _note
        own = node.device_variables.get(ours)
        if own is None:
            yield say(
                f"{former.name}={value!r} is set, and {ours} is not: from Ray {former.until} on, {former.consequence}",
                f"before Ray starts there, write `export {ours}=…` with the devices, and `unset {former.name}`",
            )
        elif any(each.isdecimal() and int(each) >= len(devices) for each in own.split(",")):
            yield say(
                f"{ours}={own!r} names GPUs that are hidden: it counts the {len(devices)} that {former.name}={value!r} "
                "leaves from 0 on",
                f"before Ray starts there, write `unset {former.name}`",
            )


def check_frameworks(node: NodeFacts) -> Iterator[Finding]:
    """Frameworks that cannot use the node's GPUs."""
    if not node.has_gpus:
        return
    where = "on a node with GPUs" if node.gpus else "on a node for which Ray counts GPUs"
    for framework in node.frameworks:
        named = f"{framework.name} {framework.version}"
        if framework.is_cpu_build:
            yield _problem(f"{named} is a build for CPUs, {where}", _GPU_BUILD[framework.name])
        elif framework.missing:
            what = f"{named} finds no {framework.missing} and runs on CPUs, {where}"
            yield _problem(what, _GPU_BUILD[framework.name])
        elif (needed := _driver_needed(node, framework)) is not None:
            yield _problem(
                f"{named} is built for CUDA {framework.cuda}, which needs NVIDIA's driver {needed} or newer; "
                f"{node.driver_version} is installed",
                f"update the driver, or install a {framework.name} that is built for CUDA {node.cuda_version} or older",
            )


def check_mig(node: NodeFacts) -> Iterator[Finding]:
    """GPUs that are cut into MIG devices."""
    cut = [gpu for gpu in node.gpus or () if gpu.is_mig]
    if cut and "MIG-" not in (node.visible_devices or ""):
        gpus = ("GPU " if len(cut) == 1 else "GPUs ") + ", ".join(str(gpu.index) for gpu in cut)
        yield _problem(
            f"MIG mode is on for {gpus}: a process gets one MIG device, but plans count all of a GPU's memory",
            "name the MIG devices in CUDA_VISIBLE_DEVICES before Ray starts (`nvidia-smi -L` lists them), or switch "
            "MIG off with `nvidia-smi -mig 0`",
        )


def check_used_memory(node: NodeFacts) -> Iterator[Finding]:
    """GPU memory in use, although Ray has given no GPU away."""
    # A driver by itself holds some hundred MiB; a large GPU's a little more.
    read = [(gpu.index, gpu.used_bytes or 0, gpu.memory_bytes or 0) for gpu in node.gpus or ()]
    used = [each for each in read if each[1] > max(GIB, each[2] // 50)]
    if not used or (node.ray is not None and node.ray.gpus_in_use != 0):
        return
    amounts = ", ".join(
        f"{format_bytes(in_use)} of {format_bytes(total)} on GPU {index}" for index, in_use, total in used
    )
    hint = "find them with `nvidia-smi` and end them, or hide those GPUs from Ray with CUDA_VISIBLE_DEVICES"
    if node.ray is None:
        yield _note(f"processes hold GPU memory: {amounts}", hint)
    elif node.ray.gpus:
        yield _problem(f"Ray has handed out no GPU, but processes hold GPU memory: {amounts}", hint)


def check_cpus(node: NodeFacts) -> Iterator[Finding]:
    """More CPUs than the node's processes may use."""
    if node.ray is None or not node.cpu_limits:
        return
    name, limit = min(node.cpu_limits.items(), key=lambda item: (item[1], item[0]))
    if node.ray.cpus > limit:
        yield _problem(
            f"Ray counts {format_amount(node.ray.cpus)} CPUs, but the {name} allows {format_amount(limit)}",
            f"start Ray there with --num-cpus={max(1, int(limit))}, or raise the limit",
        )


def check_type(node: NodeFacts) -> Iterator[Finding]:
    """GPUs of a type that Ray does not know."""
    if node.declared_gpus and node.ray is not None and node.ray.accelerator_type is None:
        models = ", ".join(sorted({gpu.name for gpu in node.gpus or ()}))
        yield _note(
            "Ray knows no accelerator type of its GPUs" + (f" ({models})" if models else ""),
            "a policy with an accelerator_type does not use the node; to name its type, start Ray there with "
            """--resources='{"accelerator_type:A100": 1}'""",
        )


def check_shm(node: NodeFacts) -> Iterator[Finding]:
    """A ``/dev/shm`` in which Ray's object store finds no room."""
    if node.shm_bytes is None:
        return
    wanted = node.ray.object_store_bytes if node.ray else min((node.memory_bytes or 0) * 3 // 10, _RAY_NEEDS_SHM_UP_TO)
    if wanted is not None and node.shm_bytes < wanted:
        yield _problem(
            f"{_SHM} has {format_bytes(node.shm_bytes)}, but Ray's object store takes {format_bytes(wanted)}: it lies "
            "on a disk, which is slow",
            f"enlarge {_SHM} (--shm-size of a container), or start Ray with a smaller --object-store-memory",
        )


NODE_CHECKS: Final[tuple[Check, ...]] = (
    check_answer,
    check_driver,
    check_count,
    check_device_variables,
    check_frameworks,
    check_mig,
    check_used_memory,
    check_cpus,
    check_type,
    check_shm,
)


def _problem(what: str, hint: str) -> Finding:
    return Finding(severity=Severity.PROBLEM, what=what, hint=hint)


def _note(what: str, hint: str) -> Finding:
    return Finding(severity=Severity.NOTE, what=what, hint=hint)


def _ray_counts(node: NodeFacts) -> str:
    return f"Ray counts {_gpus(node.declared_gpus)}"


def _gpus(count: float) -> str:
    return f"{format_amount(count)} {'GPU' if count == 1 else 'GPUs'}"


def _is_of_another_vendor(node: NodeFacts) -> bool:
    if node.ray is not None and node.ray.accelerator_type is not None:
        return node.ray.accelerator_type.startswith(_NOT_NVIDIA)
    return node.has_amd_driver and node.num_nvidia_on_pci == 0


def _visible(node: NodeFacts) -> int | None:
    """Return how many GPUs ``CUDA_VISIBLE_DEVICES`` leaves; ``None``: it names MIG devices."""
    gpus = node.gpus or ()
    if node.visible_devices is None:
        return len(gpus)
    names = [name.strip() for name in node.visible_devices.split(",")]
    if any(name.startswith("MIG-") for name in names):
        return None
    chosen: set[str] = set()
    for name in names:
        # CUDA takes the beginning of a UUID, too, and stops at the first name that it does not know.
        found = [gpu.uuid for gpu in gpus if name and (name == str(gpu.index) or gpu.uuid.startswith(name))]
        if not found:
            break
        chosen.update(found)
    return len(chosen)


def _driver_needed(node: NodeFacts, framework: Framework) -> str | None:
    """Return the driver that ``framework`` needs; ``None``: the node's is new enough, or that is not known."""
    if framework.cuda is None or node.driver_version is None:
        return None
    # NVIDIA's package of forward compatibility lets an older driver run newer CUDA; the driver then says so.
    is_run = node.cuda_version is not None and not is_older(node.cuda_version, framework.cuda.partition(".")[0])
    needed = minimum_driver(framework.cuda)
    return needed if needed is not None and is_older(node.driver_version, needed) and not is_run else None


_MINIMUM: Final = {
    "13": "580",
    "12": "525",
    "11": "450",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
}
"""The oldest NVIDIA driver for a CUDA version. From CUDA 11 on, a driver for one release of a major version runs all.

Source: "CUDA Compatibility", tables 1 and 2 (Linux):
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
"""


def minimum_driver(cuda: str) -> str | None:
    """Return the oldest driver for a CUDA version such as ``"12.8"``; ``None``: not in the table."""
    major, _, rest = cuda.partition(".")
    return _MINIMUM.get(major) or _MINIMUM.get(f"{major}.{rest.partition('.')[0]}")


def is_older(version: str, than: str) -> bool:
    """Return whether one version of dotted numbers is older than another; what follows the numbers does not count."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


_MAY_DIFFER: Final = frozenset({"numpy", "NVIDIA driver"})
"""Packages that usually work together in different versions, so that a difference is only a note."""


def diagnose(nodes: Iterable[NodeFacts]) -> tuple[Finding, ...]:
    """Return what is wrong on these nodes, the problems first; equal findings of many nodes are one."""
    nodes = tuple(nodes)
    names: dict[tuple[Severity, str, str], set[str]] = defaultdict(set)
    for check in NODE_CHECKS:
        for node in nodes:
            for found in check(node):
                names[found.severity, found.what, found.hint].add(node.name)
    findings = [
        Finding(severity=severity, what=what, hint=hint, nodes=tuple(sorted(found)))
        for (severity, what, hint), found in names.items()
    ]
    findings += _differing_versions(nodes)
    if nodes and not any(node.has_gpus or node.failure or node.num_nvidia_on_pci for node in nodes):
        findings.append(_note("no GPUs here: trials run on CPUs", "nothing to do, unless there should be some"))
    return tuple(sorted(findings, key=lambda found: found.severity is Severity.NOTE))


def _differing_versions(nodes: tuple[NodeFacts, ...]) -> Iterator[Finding]:
    read = [node for node in nodes if node.failure is None]
    versions = {
        node.name: node.versions | ({"NVIDIA driver": node.driver_version} if node.driver_version else {})
        for node in read
    }
    for package in sorted({name for found in versions.values() for name in found}):
        where: dict[str, list[str]] = defaultdict(list)
        for node, found in versions.items():
            if package in found or package != "NVIDIA driver":  # a node without GPUs needs no driver
                where[found.get(package, "not installed")].append(node)
        if len(where) < 2:
            continue
        sorted_names = ((version, sorted(names)) for version, names in where.items())
        versions_with_nodes = sorted(sorted_names, key=lambda each: (-len(each[1]), each[0]))  # the most common first
        listed = "; ".join(f"{version} on {shorten_names(names)}" for version, names in versions_with_nodes)
        yield Finding(
            severity=Severity.NOTE if package in _MAY_DIFFER else Severity.PROBLEM,
            what=f"{package} differs between nodes: {listed}",
            hint="install one version everywhere, best by one image for all nodes",
            nodes=tuple(sorted(name for _, names in versions_with_nodes[1:] for name in names)),
        )
