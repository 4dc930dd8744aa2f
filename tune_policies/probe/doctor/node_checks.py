"""Defines the facts of a node, and the doctor's checks of these facts.

A check is a function that yields findings from a node's facts. A fact that is ``None`` is unknown.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Final

from pydantic import Field

from tune_policies.cluster.accelerators import FAMILIES, may_be_nvidia
from tune_policies.values.resources import format_amount
from tune_policies.values.sanitize import LEFT_OUT, WithoutSecrets
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten_names


class Gpu(Value):
    """A physical NVIDIA GPU. If ``is_mig`` is true, it is partitioned into MIG devices."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    is_mig: bool = False


class Framework(Value):
    """An installed framework (``"torch"``, ``"tensorflow"`` or ``"jax"``), and the platforms of its build.

    Attributes:
        cuda: The CUDA version of the build; ``rocm`` and ``xpu`` are the versions for AMD and Intel GPUs.
        missing: The name of a library that the framework needs for GPUs but that is not installed.
    """

    name: str
    version: str
    cuda: str | None = None
    rocm: str | None = None
    xpu: str | None = None
    missing: str | None = None

    @property
    def is_cpu_build(self) -> bool:
        """Whether the build cannot use any GPU."""
        return not (self.cuda or self.rocm or self.xpu)


class RayCounts(Value):
    """The resources that Ray counts on a node. ``gpus_in_use`` is the number of reserved GPUs."""

    cpus: float = 0.0
    gpus: float = 0.0
    gpus_in_use: float | None = None
    accelerator_type: str | None = None
    object_store_bytes: int | None = None


class ResourceIsolation(Value):
    """How Ray isolates its own processes on a node (``--enable-resource-isolation``).

    Attributes:
        cgroup_path: The cgroup in which Ray creates the cgroups of its own processes and of the workers.
        system_memory_bytes: The host memory that Ray reserves for its own processes, in bytes.
    """

    cgroup_path: str | None = None
    system_memory_bytes: int | None = None


class NodeFacts(Value):
    """The facts of one node.

    Attributes:
        name: The IP address, followed by the beginning of Ray's node ID if several nodes have the same address. If Ray
            is not running, the name is ``"this machine"``.
        ray: The resources that Ray counts on the node, or ``None`` if Ray is not running.
        failure: The reason why the node was not read, or ``None``. If it is set, all following facts are unknown.
        versions: The versions of Python and of the packages that are compared between nodes, by name.
        driver_version: The version of the NVIDIA driver.
        cuda_version: The newest CUDA version that the driver supports.
        nvml_error: The reason why the NVIDIA driver does not respond, or ``None`` if it responds.
        gpus: The GPUs that the NVIDIA driver lists, or ``None`` if it does not respond.
        num_nvidia_on_pci: The number of NVIDIA GPUs on the PCI bus, with or without a driver.
        has_amd_driver: Whether AMD's compute driver is loaded.
        visible_devices: The node's ``CUDA_VISIBLE_DEVICES``, or ``None`` if it is not set.
        device_variables: The values of the environment variables that hide AMD and Intel GPUs, by name.
        cpu_limits: The number of CPUs that the node's processes may use, by the name of the limit.
        isolation: How Ray isolates its own processes, or ``None`` if it does not, or if this is unknown.
    """

    name: str
    ray: RayCounts | None = None
    failure: WithoutSecrets | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    frameworks: tuple[Framework, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_error: WithoutSecrets | None = None
    gpus: tuple[Gpu, ...] | None = None
    num_nvidia_on_pci: int = 0
    has_amd_driver: bool = False
    visible_devices: str | None = None
    device_variables: dict[str, str] = Field(default_factory=dict)
    cpu_limits: dict[str, float] = Field(default_factory=dict)
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    isolation: ResourceIsolation | None = None

    @property
    def declared_gpus(self) -> float:
        """The number of GPUs that Ray counts."""
        if self.ray:
            return self.ray.gpus
        return 0

    @property
    def has_gpus(self) -> bool:
        """Whether Ray or the NVIDIA driver reports any GPUs."""
        return bool(self.declared_gpus or self.gpus)


class Severity(StrEnum):
    """The severity of a finding: a problem makes work fail or run slowly, and a note is only information."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(Value):
    """A finding, a hint for fixing it, and the names of the affected nodes."""

    severity: Severity
    what: str
    hint: str
    nodes: tuple[str, ...] = ()


class Diagnosis(Value):
    """The nodes that the doctor examined, and its findings.

    Attributes:
        address: The address of Ray, or ``None`` if only this machine was examined.
        nodes: The facts of each node.
        findings: The findings, with problems first.
    """

    address: str | None
    nodes: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether the doctor found no problem."""
        return not any(finding.severity is Severity.PROBLEM for finding in self.findings)

    def redacted(self) -> "Diagnosis":
        """Return a copy for publication, without addresses, values of variables or error messages."""
        names = {node.name: f"node-{number}" for number, node in enumerate(self.nodes, 1)}
        private: set[str] = set()
        nodes = []
        for node in self.nodes:
            private |= {text for text in (node.failure, node.nvml_error) if text}
            # Replace these values only in quotes, because a value such as 0 also occurs elsewhere in the findings.
            private |= {repr(value) for value in (node.visible_devices, *node.device_variables.values()) if value}
            shown = {name: LEFT_OUT for name in ("failure", "nvml_error", "visible_devices") if getattr(node, name)}
            variables = dict.fromkeys(node.device_variables, LEFT_OUT)
            changes = {"name": names[node.name], "device_variables": variables, **shown}
            nodes.append(node.model_copy(update=changes))
        # Replace longer names first, because 10.0.0.12 contains 10.0.0.1.
        by_length = sorted(names.items(), key=lambda name_and_alias: -len(name_and_alias[0]))

        def without_private(text: str) -> str:
            for old, new in (*dict.fromkeys(private, LEFT_OUT).items(), *by_length):
                text = text.replace(old, new)
            return text

        findings = [
            Finding(
                severity=found.severity,
                what=without_private(found.what),
                hint=without_private(found.hint),
                nodes=tuple(names.get(name, LEFT_OUT) for name in found.nodes),
            )
            for found in self.findings
        ]
        return Diagnosis(address=self.address and LEFT_OUT, nodes=tuple(nodes), findings=tuple(findings))


Check = Callable[[NodeFacts], Iterator[Finding]]

_GPU_BUILD: Final = {
    "torch": "install a build for the node's GPUs (see https://pytorch.org/get-started/locally)",
    "tensorflow": "run pip install 'tensorflow[and-cuda]'",
    "jax": "run pip install 'jax[cuda13]', or install the JAX plugin for the node's GPUs",
}

_DEVICE: Final = re.compile(r"\d+(\.\d+)?|GPU-\w+")
"""A device in ``ROCR_VISIBLE_DEVICES`` or ``ONEAPI_DEVICE_SELECTOR``: a UUID, or a number with an optional tile."""

_SHM: Final = "/dev/shm"  # noqa: S108

_RAY_NEEDS_SHM_UP_TO: Final = 10**10
"""The maximum size of Ray's default object store (30 % of memory), in bytes, unless ``/dev/shm`` is larger."""


def check_answer(node: NodeFacts) -> Iterator[Finding]:
    """Report a node that could not be read."""
    if node.failure is not None:
        yield _problem(
            f"the node was not read: {node.failure}",
            "check whether the node is overloaded or shutting down, or increase --timeout-s",
        )


def check_driver(node: NodeFacts) -> Iterator[Finding]:
    """Report NVIDIA GPUs whose driver does not respond, and GPUs that Ray counts but that do not exist."""
    if node.gpus is not None or node.failure is not None or _is_of_another_vendor(node):
        return
    on_bus = f"the PCI bus has {counted(node.num_nvidia_on_pci, 'NVIDIA GPU')}"
    why = f"the NVIDIA driver does not respond ({node.nvml_error})"
    install = "install the driver so that `nvidia-smi` works on the node, or start the container with --gpus=all"
    if node.declared_gpus and node.num_nvidia_on_pci:
        yield _problem(f"{_ray_counts(node)} and {on_bus}, but {why}", install)
    elif node.declared_gpus:
        yield _problem(
            f"{_ray_counts(node)} that do not exist: {why}, and the PCI bus has no NVIDIA GPU",
            f"start Ray on the node without --num-gpus; if the node has GPUs, {install}",
        )
    elif node.num_nvidia_on_pci:
        yield _note(f"{on_bus}, but {why}", f"to use these GPUs, {install}")


def check_count(node: NodeFacts) -> Iterator[Finding]:
    """Report hidden GPUs, missing GPUs that Ray counts, and GPUs that Ray does not count."""
    if not node.gpus:
        if node.gpus is not None and node.declared_gpus and not _is_of_another_vendor(node):
            hint = "start Ray on the node without --num-gpus, or start the container with GPUs"
            yield _problem(f"{_ray_counts(node)} that do not exist: the NVIDIA driver lists no GPUs", hint)
        return
    visible = _visible(node)
    if visible is None:  # Ray's count may or may not include MIG devices
        return
    total = len(node.gpus)
    if visible < total:
        what = f"CUDA_VISIBLE_DEVICES={node.visible_devices!r} hides {total - visible} of {_gpus(total)}"
        hint = "to use all GPUs, unset CUDA_VISIBLE_DEVICES before Ray starts on the node"
        if visible:  # the user may have hidden some of the GPUs on purpose
            yield _note(what, hint)
        else:
            yield _problem(what, hint)
    if node.ray is None:
        return
    if node.declared_gpus > visible:
        hint = f"start Ray on the node without --num-gpus, or with --num-gpus={visible}"
        yield _problem(f"{_ray_counts(node)}, but only {visible} can be used", hint)
    elif node.declared_gpus < visible:
        hint = "if Ray may use the other GPUs, start Ray on the node without --num-gpus"
        yield _note(f"Ray counts only {format_amount(node.declared_gpus)} of the {visible} usable GPUs", hint)


def check_device_variables(node: NodeFacts) -> Iterator[Finding]:
    """Report AMD and Intel GPUs that an environment variable of an older Ray version hides."""
    installed = node.versions.get("ray")
    for family in FAMILIES:
        former, ours = family.former_variable, family.visibility_variable
        if former is None or ours is None:
            continue
        is_former_read = installed is not None and is_older(installed, former.until)
        if is_former_read:
            continue
        value = node.device_variables.get(former.name, "")
        # "level_zero:gpu" selects a back end, not a device.
        names = value.removeprefix("level_zero:").split(",")
        devices = [name for name in names if _DEVICE.fullmatch(name)]
        if not devices or node.gpus:  # if a node has NVIDIA GPUs, Ray counts only those
            continue
        finding = _problem if node.declared_gpus or node.has_amd_driver else _note
        own = node.device_variables.get(ours)
        if own is None:
            yield finding(
                f"{former.name}={value!r} is set, but {ours} is not set: {former.consequence} "
                f"(since Ray {former.until})",
                f"before Ray starts on the node, run `export {ours}=…` with the devices, and `unset {former.name}`",
            )
        elif any(int(index) >= len(devices) for index in filter(str.isdecimal, own.split(","))):
            yield finding(
                f"{ours}={own!r} selects hidden GPUs, because its numbers are indices into the {len(devices)} GPUs of "
                f"{former.name}={value!r}",
                f"before Ray starts on the node, run `unset {former.name}`",
            )


def check_frameworks(node: NodeFacts) -> Iterator[Finding]:
    """Report frameworks that cannot use the node's GPUs."""
    if not node.has_gpus:
        return
    where = "on a node for which Ray counts GPUs"  # without a driver, only Ray reports GPUs
    if node.gpus:
        where = "on a node with GPUs"
    for framework in node.frameworks:
        named = f"{framework.name} {framework.version}"
        if framework.is_cpu_build:
            yield _problem(f"{named} is a CPU build {where}", _GPU_BUILD[framework.name])
        elif framework.missing:
            yield _problem(
                f"{named} does not find {framework.missing}, so it uses CPUs {where}", _GPU_BUILD[framework.name]
            )
        else:
            needed = _driver_needed(node, framework)
            if needed is None:
                continue
            yield _problem(
                f"{named} is built for CUDA {framework.cuda}, which requires NVIDIA driver {needed} or newer, but "
                f"{node.driver_version} is installed",
                f"update the driver, or install a {framework.name} build for CUDA {node.cuda_version} or older",
            )


def check_mig(node: NodeFacts) -> Iterator[Finding]:
    """Report GPUs with MIG devices that ``CUDA_VISIBLE_DEVICES`` does not select."""
    split = [str(gpu.index) for gpu in node.gpus or () if gpu.is_mig]
    if split and "MIG-" not in (node.visible_devices or ""):
        noun = "GPU" if len(split) == 1 else "GPUs"
        yield _problem(
            f"MIG mode is on for {noun} {', '.join(split)}: a process uses one MIG device, but plans count the entire "
            "memory of a GPU",
            "set CUDA_VISIBLE_DEVICES to the MIG devices before Ray starts (`nvidia-smi -L` lists them), or disable "
            "MIG with `nvidia-smi -mig 0`",
        )


def check_used_memory(node: NodeFacts) -> Iterator[Finding]:
    """Report GPU memory that is in use although no GPU is reserved in Ray."""
    used = []
    for gpu in node.gpus or ():
        in_use, total = gpu.used_bytes or 0, gpu.memory_bytes or 0
        # The driver itself uses several hundred MiB, or a little more on large GPUs.
        if in_use > max(GIB, total // 50):
            used.append(f"{format_bytes(in_use)} of {format_bytes(total)} on GPU {gpu.index}")
    if not used or (node.ray is not None and node.ray.gpus_in_use != 0):
        return
    amounts = ", ".join(used)
    hint = "find the processes with `nvidia-smi` and stop them, or hide these GPUs from Ray with CUDA_VISIBLE_DEVICES"
    if node.ray is None:
        yield _note(f"processes use GPU memory: {amounts}", hint)
    elif node.ray.gpus:
        yield _problem(f"no GPU is reserved in Ray, but processes use GPU memory: {amounts}", hint)


def check_cpus(node: NodeFacts) -> Iterator[Finding]:
    """Report that Ray counts more CPUs than the node's processes may use."""
    if node.ray is None or not node.cpu_limits:
        return
    name, limit = min(node.cpu_limits.items(), key=lambda item: (item[1], item[0]))
    if node.ray.cpus > limit:
        number = max(1, int(limit))
        yield _problem(
            f"Ray counts {format_amount(node.ray.cpus)} CPUs, but the {name} allows {format_amount(limit)}",
            f"start Ray on the node with `ray start --num-cpus={number}` or ray.init(num_cpus={number}), or raise the "
            "limit",
        )


def check_type(node: NodeFacts) -> Iterator[Finding]:
    """Report GPUs of a type that Ray does not recognize."""
    if node.declared_gpus and node.ray is not None and node.ray.accelerator_type is None:
        models = ", ".join(sorted({gpu.name for gpu in node.gpus or ()}))
        what = "Ray does not recognize the accelerator type of the node's GPUs"
        if models:
            what += f" ({models})"
        yield _note(
            what,
            "a policy with an accelerator_type does not use the node; to set the type, start Ray on the node with "
            """--resources='{"accelerator_type:A100": 1}'""",
        )


def check_shm(node: NodeFacts) -> Iterator[Finding]:
    """Report a ``/dev/shm`` that is too small for Ray's object store."""
    if node.shm_bytes is None:
        return
    # Ray's default is 30 % of the memory, up to a limit.
    wanted: int | None = min((node.memory_bytes or 0) * 3 // 10, _RAY_NEEDS_SHM_UP_TO)
    if node.ray:
        wanted = node.ray.object_store_bytes
    if wanted is not None and node.shm_bytes < wanted:
        yield _problem(
            f"{_SHM} has {format_bytes(node.shm_bytes)}, but Ray's object store uses {format_bytes(wanted)}, so Ray "
            "puts it on a disk, which is slow",
            f"enlarge {_SHM} (for a container, with --shm-size), or start Ray with a smaller --object-store-memory",
        )


def check_isolation(node: NodeFacts) -> Iterator[Finding]:
    """Report nodes on which Ray isolates its own processes with cgroups."""
    if node.isolation is None:
        return
    what = f"Ray's own processes have a cgroup ({node.isolation.cgroup_path or 'the default path'})"
    if node.isolation.system_memory_bytes is not None:
        what += f", with {format_bytes(node.isolation.system_memory_bytes)} of host memory"
    yield _note(
        what,
        "no action is required; trials share the rest of the node without a limit for each trial, so set memory in the "
        "policy",
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
    check_isolation,
)


def _problem(what: str, hint: str) -> Finding:
    return Finding(severity=Severity.PROBLEM, what=what, hint=hint)


def _note(what: str, hint: str) -> Finding:
    return Finding(severity=Severity.NOTE, what=what, hint=hint)


def _ray_counts(node: NodeFacts) -> str:
    return f"Ray counts {_gpus(node.declared_gpus)}"


def _gpus(count: float) -> str:
    noun = "GPU" if count == 1 else "GPUs"
    return f"{format_amount(count)} {noun}"


def _is_of_another_vendor(node: NodeFacts) -> bool:
    if node.ray is not None and node.ray.accelerator_type is not None:
        return not may_be_nvidia(node.ray.accelerator_type)
    return node.has_amd_driver and node.num_nvidia_on_pci == 0


def _visible(node: NodeFacts) -> int | None:
    """Return the number of GPUs that ``CUDA_VISIBLE_DEVICES`` selects, or ``None`` if it selects MIG devices."""
    gpus = node.gpus or ()
    if node.visible_devices is None:
        return len(gpus)
    names = [name.strip() for name in node.visible_devices.split(",")]
    if any(name.startswith("MIG-") for name in names):
        return None
    chosen: set[str] = set()
    for name in names:
        found = [gpu.uuid for gpu in gpus if _is_named(gpu, name)]
        if not found:  # CUDA ignores the first unknown name and all names after it
            break
        chosen.update(found)
    return len(chosen)


def _is_named(gpu: Gpu, name: str) -> bool:
    """Return whether ``name`` in ``CUDA_VISIBLE_DEVICES`` is the GPU's index, or its UUID or the beginning of it."""
    if not name:
        return False
    return name == str(gpu.index) or gpu.uuid.startswith(name)


def _driver_needed(node: NodeFacts, framework: Framework) -> str | None:
    """Return the oldest driver version that ``framework`` supports, or ``None`` if the node's driver is new enough."""
    if framework.cuda is None or node.driver_version is None:
        return None
    # With NVIDIA's forward compatibility package, an older driver supports a newer CUDA version and reports it.
    is_run = node.cuda_version is not None and not is_older(node.cuda_version, framework.cuda.partition(".")[0])
    needed = minimum_driver(framework.cuda)
    if needed is not None and is_older(node.driver_version, needed) and not is_run:
        return needed
    return None


_MINIMUM: Final = {"13": "580", "12": "525", "11": "450", "10.2": "440.33", "10.1": "418.39", "10.0": "410.48"}
"""The oldest NVIDIA driver for each CUDA version. From CUDA 11 on, a driver supports a whole major version.

Source: "CUDA Compatibility", tables 1 and 2 (Linux):
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
"""


def minimum_driver(cuda: str) -> str | None:
    """Return the oldest driver for a CUDA version such as ``"12.8"``, or ``None`` if the table does not list it."""
    major, _, rest = cuda.partition(".")
    return _MINIMUM.get(major) or _MINIMUM.get(f"{major}.{rest.partition('.')[0]}")


def is_older(version: str, than: str) -> bool:
    """Return whether ``version`` is older than ``than``. Only the numbers in the versions are compared."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


_MAY_DIFFER: Final = frozenset({"numpy", "NVIDIA driver"})
"""The software whose versions are usually compatible, so a difference between nodes is only a note."""


def diagnose(nodes: Iterable[NodeFacts]) -> tuple[Finding, ...]:
    """Return the findings on these nodes, with problems first. Equal findings of several nodes are merged."""
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
        hint = "no action is required, unless a node should have a GPU"
        findings.append(_note("no GPU was found, so trials run on CPUs", hint))
    return tuple(sorted(findings, key=lambda found: found.severity is Severity.NOTE))


def _differing_versions(nodes: tuple[NodeFacts, ...]) -> Iterator[Finding]:
    versions: dict[str, dict[str, str]] = {}
    for node in nodes:
        if node.failure is None:
            versions[node.name] = dict(node.versions)
            if node.driver_version:
                versions[node.name]["NVIDIA driver"] = node.driver_version
    for package in sorted({*chain.from_iterable(versions.values())}):
        where: dict[str, list[str]] = defaultdict(list)
        for name, found in versions.items():
            if package in found or package != "NVIDIA driver":  # a node without GPUs needs no driver
                where[found.get(package, "not installed")].append(name)
        if len(where) < 2:
            continue
        common, *others = sorted(where, key=lambda version: (-len(where[version]), version))
        listed = "; ".join(f"{version} on {shorten_names(sorted(where[version]))}" for version in (common, *others))
        severity = Severity.NOTE if package in _MAY_DIFFER else Severity.PROBLEM
        yield Finding(
            severity=severity,
            what=f"{package} versions differ between nodes: {listed}",
            hint="install the same version on all nodes, for example with one image",
            nodes=tuple(sorted(chain.from_iterable(where[version] for version in others))),
        )
