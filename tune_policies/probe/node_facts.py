"""Reads this machine's GPUs, CPUs, memory and frameworks, and the configuration of its autoscaler.

Ray sends this module and ``probe.nvml`` to nodes without this package, and the doctor runs this module as a program.
Therefore, this module imports only Python's standard library and Ray's dependencies, and returns plain data. It does
not import frameworks, because that would take seconds and use GPU memory.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path

from tune_policies.probe.nvml import NvmlError, is_nvml_installed, read_driver, read_gpus

# The packages whose versions should be the same on all nodes, because nodes exchange pickled values.
_PACKAGES = ("ray", "torch", "tensorflow", "jax", "numpy", "tune-policies")

_CPU_FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("sve", "sve2", "bf16", "i8mm"),  # ARM
)

# The packages that the process of a trial imports in addition to this package and Ray.
_NEEDED_BY_TRIALS = ("pydantic", "threadpoolctl", "wrapt", "yaml")

# The files that the drivers of NVIDIA, AMD and MetaX create.
_GPU_FILES = ("dev/nvidia*", "dev/kfd", "dev/mxc*", "proc/driver/nvidia")

# The PCI classes of display controllers and processing accelerators, and the IDs of the vendors of GPUs
# (https://pci-ids.ucw.cz): NVIDIA, AMD, Intel and MetaX.
_GPU_CLASSES = ("0x03", "0x12")
_INTEL = "0x8086"
_GPU_VENDORS = ("0x10de", "0x1002", _INTEL, "0x9999")

# Ray sets this label if it detects the type of a node's device.
_TYPE_LABEL = "ray.io/accelerator-type"

# The variables that current and older Ray versions use to hide AMD and Intel GPUs.
_DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")

# The distributions that contain the package ``tensorflow``, including those for AMD GPUs and Google TPUs.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "rocm-tensorflow", "tensorflow-tpu")


def read_node(*, with_gpus: bool, session: str | None) -> dict[str, object]:
    """Return the facts for planning: ``gpus``, ``usable_cpus``, ``cpu_model``, ``package`` and ``monitor``.

    ``package`` is the result of ``read_package``, and ``monitor`` describes the autoscaler.

    A fact that cannot be read is ``None``. ``gpu_error`` is the reason why the GPUs could not be read, and
    ``has_simulated_gpus`` states whether no GPU exists.

    Args:
        with_gpus: Whether to read the GPUs.
        session: The name of the Ray session whose autoscaler may run on this node, or ``None`` for a worker node.
    """
    facts: dict[str, object] = {
        "gpus": None,
        "gpu_error": None,
        "has_simulated_gpus": False,
        "monitor": session and read_monitor(session),
    }
    facts |= {"usable_cpus": read_usable_cpus(), "cpu_model": read_cpu_model(), "package": read_package()}
    if with_gpus:
        try:
            facts["gpus"] = read_gpus()
        except NvmlError as error:
            facts["gpu_error"] = str(error)
            facts["has_simulated_gpus"] = are_gpus_simulated()
    return facts


def are_gpus_simulated() -> bool:
    """Return whether the GPUs that Ray counts on this machine do not exist.

    This is the case if Ray has not detected their type, and the machine has no driver, no device file and no GPU on the
    PCI bus. On a machine with a broken driver, at least one of these signs remains.
    """
    if sys.platform != "linux" or is_nvml_installed() or has_gpu_hardware():
        return False
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return True
    read_labels = getattr(ray.get_runtime_context(), "get_node_labels", None)  # older versions of Ray lack it
    return read_labels is None or _TYPE_LABEL not in read_labels()


def has_gpu_hardware(root: str = "/") -> bool:
    """Return whether this machine has a device file of a GPU, or a GPU on its PCI bus.

    ``root`` is the folder that contains ``dev``, ``proc`` and ``sys``.
    """
    top = Path(root)
    if any(any(top.glob(pattern)) for pattern in _GPU_FILES):
        return True
    return any(map(_is_gpu, top.glob("sys/bus/pci/devices/*")))


def _is_gpu(device: Path) -> bool:
    try:
        kind, vendor = [(device / name).read_text().strip() for name in ("class", "vendor")]
    except OSError:
        return False
    # Intel's graphics on the first bus are part of the processor of a laptop.
    is_integrated = vendor == _INTEL and device.name.partition(":")[2].startswith("00:")
    return kind.startswith(_GPU_CLASSES) and vendor in _GPU_VENDORS and not is_integrated


def read_package() -> dict[str, str | None]:
    """Return the ``version`` of this package, and the ``problem`` that prevents its import.

    Both are ``None`` if unknown. For example, a package that Ray copied to the node has no version.
    """
    try:
        # For a submodule, ``find_spec`` imports the package, and raises an error if it is missing.
        if importlib.util.find_spec("tune_policies.trainers") is None:
            return {"version": None, "problem": "tune-policies is not installed completely"}
    except ModuleNotFoundError:
        return {"version": None, "problem": "tune-policies is not installed"}
    missing = [name for name in _NEEDED_BY_TRIALS if importlib.util.find_spec(name) is None]
    if missing:
        return {"version": None, "problem": f"{missing[0]}, which tune-policies needs, is not installed"}
    folder = Path(sys.modules["tune_policies"].__file__ or "").parent
    try:
        installed = importlib.metadata.distribution("tune-policies")
    except importlib.metadata.PackageNotFoundError:
        return {"version": None, "problem": None}
    # The working folder, or a package that Ray copied to the node, may precede the installed package.
    is_imported = Path(str(installed.locate_file("tune_policies"))) == folder
    version = installed.version if is_imported else None
    return {"version": version, "problem": None}


def read_machine() -> dict[str, object]:
    """Return the facts that the doctor checks: the fields of ``NodeFacts`` that do not come from Ray."""
    installed = installed_versions()
    return {
        "versions": {
            "Python": platform.python_version(),
            **{name: installed[name] for name in _PACKAGES if name in installed},
        },
        "frameworks": [*_torch(installed), *_tensorflow(installed), *_jax(installed)],
        **_nvidia(),
        "num_nvidia_on_pci": _num_nvidia_on_pci(),
        "has_amd_driver": Path("/dev/kfd").exists(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device_variables": {name: os.environ[name] for name in _DEVICE_VARIABLES if name in os.environ},
        "cpu_limits": _cpu_limits(),
        "memory_bytes": min(filter(None, (host_memory_bytes(), cgroup_memory_bytes()))),
        "shm_bytes": _shm_bytes(),
        "isolation": _isolation(),
    }


def _isolation(pid: int | None = None, root: str = "/") -> dict[str, object] | None:
    """Return how Ray isolates its own processes on this node, or ``None`` if it does not or this is no Ray worker.

    The worker's raylet has the options of ``ray start --enable-resource-isolation`` in its command line.
    """
    if pid is None:
        pid = os.getppid()
    while pid > 1:
        try:
            command = Path(root, "proc", str(pid), "cmdline").read_text().split("\0")
            status = Path(root, "proc", str(pid), "status").read_text()
        except OSError:
            return None
        if Path(command[0]).name == "raylet":
            given = dict(option.lstrip("-").replace("_", "-").partition("=")[::2] for option in command[1:])
            if "enable-resource-isolation" not in given:
                return None
            memory = given.get("system-reserved-memory-bytes", "")
            memory_bytes = int(memory) if memory.isdecimal() else None
            return {"cgroup_path": given.get("cgroup-path"), "system_memory_bytes": memory_bytes}
        parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
        if parent is None:
            return None
        pid = int(parent[1])
    return None


def installed_versions() -> dict[str, str]:
    """Return the version of each installed distribution (the first one on the path), by lower-case name."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # the remains of a broken installation have no name
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


def _torch(installed: dict[str, str]) -> list[dict[str, object]]:
    build = _text_of("torch", "version.py")
    if build is None:
        return []
    # Example line: cuda: Optional[str] = '12.8'
    found = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", build, re.MULTILINE))
    return [
        {
            "name": "torch",
            "version": installed.get("torch", "unknown"),
            "cuda": found.get("cuda"),
            "rocm": found.get("hip"),
            "xpu": found.get("xpu"),
        }
    ]


def _tensorflow(installed: dict[str, str]) -> list[dict[str, object]]:
    build = _text_of("tensorflow", "python/platform/build_info.py")
    if build is None:
        return []
    is_cuda = re.search(r"'is_cuda_build', True", build) is not None
    is_rocm = re.search(r"'is_rocm_build', True", build) is not None
    versions = [version for name, version in installed.items() if name in _TENSORFLOW]
    cuda = rocm = missing = None
    if is_cuda:
        version = re.search(r"'cuda_version', '([\d.]+)'", build)
        cuda = version[1] if version else "of unknown version"
        if not _has_cudnn(installed):
            missing = "cuDNN"
    if is_rocm:
        rocm = "of unknown version"
    return [
        {
            "name": "tensorflow",
            "version": next(iter(versions), "unknown"),
            "cuda": cuda,
            "rocm": rocm,
            "missing": missing,
        }
    ]


def _jax(installed: dict[str, str]) -> list[dict[str, object]]:
    if "jaxlib" not in installed:
        return []

    def plugin(family: str) -> str | None:
        matches = (re.fullmatch(rf"jax-{family}(\d*)-plugin", name) for name in installed)
        found = [match[1] for match in matches if match]
        if found and all(found):
            return max(found, key=int)
        return None

    return [{"name": "jax", "version": installed["jaxlib"], "cuda": plugin("cuda"), "rocm": plugin("rocm")}]


def _text_of(package: str, file: str) -> str | None:
    """Return the text of a package's file without importing the package, or ``None`` if the file cannot be read."""
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = next(iter(spec.submodule_search_locations))
        return Path(folder, file).read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return None


def _has_cudnn(installed: dict[str, str]) -> bool:
    if any(name.startswith("nvidia-cudnn") for name in installed):
        return True
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    usual = ["/usr/lib", "/usr/lib64", "/usr/local/cuda/lib64", *map(str, Path("/usr/lib").glob("*-linux-gnu"))]
    for folder in [*listed, *usual]:
        with contextlib.suppress(OSError, ValueError):  # ValueError: not a valid folder name
            if any(Path(folder).glob("libcudnn.so*")):
                return True
    return False


def _nvidia() -> dict[str, object]:
    try:
        found = read_driver()
    except NvmlError as error:
        return {"nvml_error": str(error)}
    fields = ("index", "name", "uuid", "memory_bytes", "used_bytes", "is_mig")
    return {**found, "gpus": [{field: gpu[field] for field in fields} for gpu in found["gpus"]]}


def _num_nvidia_on_pci() -> int:
    def has(device: Path, file: str, beginning: str) -> bool:
        try:
            return (device / file).read_text().startswith(beginning)
        except OSError:
            return False

    # 0x10de is the vendor NVIDIA, and 0x03 is the class of display controllers.
    devices = Path("/sys/bus/pci/devices").glob("*")
    return sum(has(device, "vendor", "0x10de") and has(device, "class", "0x03") for device in devices)


def read_usable_cpus(root: str = "/") -> float | None:
    """Return the number of CPUs that this process may use, or ``None`` if no limit is known.

    The number is the minimum of the cgroup quota, the CPU affinity and Slurm's allocation.

    Ray registers the minimum of the machine's CPUs, the quota at the root of the visible cgroup tree (in whole CPUs),
    and the cpuset of cgroup v1 (``ray._private.utils.get_num_cpus``, 2.50 and 2.60). Ray ignores the quota of a nested
    group, the CPU affinity, Slurm, and the cpuset of cgroup v2, which is part of the affinity.

    Args:
        root: The folder with ``proc`` and ``sys``.
    """
    return min(_cpu_limits(root).values(), default=None)


def _cpu_limits(root: str = "/") -> dict[str, float]:
    limits: dict[str, float] = {}
    if hasattr(os, "sched_getaffinity"):  # Linux
        limits["CPU affinity"] = len(os.sched_getaffinity(0))
    quotas = [_quota(folder) for folder in _cgroups("cpu", root)]
    known = [quota for quota in quotas if quota is not None]
    if known:
        limits["cgroup quota"] = min(known)
    # Slurm sets this variable for a task that requests CPUs, but binds the task to CPUs only if this is configured.
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal() and 0 < float(slurm) < 1e6:
        limits["SLURM_CPUS_PER_TASK"] = float(slurm)
    return limits


def read_cpu_model(root: str = "/") -> str | None:
    """Return the CPU model name from Linux, or ``None`` on ARM and other systems.

    ``root`` is the folder with ``proc``.
    """
    return _cpu_info(root, "model name")


def read_cpu_labels(root: str = "/") -> dict[str, str]:
    """Return node labels for the CPU features that affect the speed of numerical code.

    The labels use the feature names of ``lscpu``, such as ``{"cpu-avx512f": "true"}``. ``root`` is the folder with
    ``proc``.
    """
    features = (
        _cpu_info(root, "flags") or _cpu_info(root, "Features") or ""
    ).split()  # x86 has "flags", and ARM has "Features"
    return {f"cpu-{name}": "true" for name in _CPU_FEATURES if name in features}


def _cpu_info(root: str, key: str) -> str | None:
    """Return a field of the first CPU in ``proc/cpuinfo``, or ``None`` if it is missing."""
    try:
        lines = (Path(root) / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def host_memory_bytes() -> int:
    """Return the total memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_memory_bytes() -> int | None:
    """Return this process's cgroup memory limit in bytes, or ``None`` if no limit is below the machine's memory."""
    limits = [
        limit
        for folder in _cgroups("memory")
        for file in ("memory.max", "memory.limit_in_bytes")  # the files of cgroup v2 and v1
        for limit in _numbers(folder / file)
    ]
    # Without a limit, cgroup v1 reports a number close to 2**63.
    return min((limit for limit in limits if limit < host_memory_bytes()), default=None)


def _cgroups(controller: str, root: str = "/") -> list[Path]:
    """Return the folders of the process's cgroup and of its parents. Each cgroup can set a limit."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    top = Path(root, "sys/fs/cgroup")
    folders = []
    for line in lines:  # such as "0::/user.slice" in cgroup v2, or "4:cpu,cpuacct:/docker/1a2b" in v1
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [top, top / "unified"]
        if controllers:
            mounts = [top / controllers, top / controller]
        inner = Path(path.strip("/"))
        # In a container, the path can be the host's path, but the container's cgroup is mounted at the root.
        folders += [mount / part for mount in mounts for part in (inner, *inner.parents)]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the number of CPUs that a cgroup of version 1 or 2 allows, or ``None`` if it has no limit."""
    numbers = _numbers(folder / "cpu.max")
    numbers = numbers or _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
    # Without a quota, such as "max 100000", only the period is a number.
    if len(numbers) == 2:
        return numbers[0] / numbers[1]
    return None


def _numbers(file: Path) -> list[int]:
    """Return the numbers above 0 in a cgroup file. The values "max" and -1 mean no limit."""
    try:
        return [int(word) for word in file.read_text().split() if word.isdigit() and int(word) > 0]
    except (OSError, ValueError):
        return []


def _shm_bytes() -> int | None:
    try:
        system = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return system.f_frsize * system.f_blocks


def read_monitor(session: str) -> dict[str, object] | None:
    """Return ``path`` and ``config`` of a session's autoscaler, or ``None`` if it does not run on this node.

    ``path`` is the path of the configuration file. ``config`` is ``None`` if the file does not exist, or if it cannot
    be read. In the latter case, ``error`` is the reason. ``config`` contains only the parts about node types, because
    the file may contain keys and passwords.
    """
    import yaml

    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.stat().st_uid != os.geteuid():  # other users' processes are not trusted
                continue
            arguments = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has just ended
            continue
        folders = [a.partition("=")[2] for a in arguments if a.startswith("--logs-dir=")]
        # Ray starts both versions of its autoscaler as ``…/monitor.py``, with the folder ``logs`` in that of the
        # session.
        if not any(a.endswith("/monitor.py") for a in arguments) or Path(*folders).parent.name != session:
            continue
        path = next((a.partition("=")[2] for a in arguments if a.startswith("--autoscaling-config=")), "")
        if not path:
            return {"path": None, "config": None, "error": None}
        try:
            file = Path(path).expanduser()
            if not file.is_file() or file.stat().st_size > 10_000_000:
                raise ValueError("it is not a regular file, or has more than 10 MB")
            found = yaml.safe_load(file.read_text())
            types = {
                name: {key: of.get(key) for key in ("resources", "labels", "max_workers") if key in of}
                for name, of in found["available_node_types"].items()
            }
            config = {key: found[key] for key in ("max_workers", "head_node_type") if key in found}
        except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
            why = getattr(error, "problem", None) or error  # a YAMLError quotes the file, which may contain passwords
            return {"path": path, "config": None, "error": f"{type(error).__name__}: {why}"}
        return {"path": path, "config": {**config, "available_node_types": types}, "error": None}
    return None


if __name__ == "__main__":
    json.dump(read_machine(), sys.stdout)
