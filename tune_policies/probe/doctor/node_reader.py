"""Reads the facts of the machine it runs on.

It travels with ``probe.nvml`` to nodes where this package may be missing, and is a program of its own. It needs
nothing but Python, returns plain data, and imports no framework, which would cost seconds and GPU memory. What cannot
be read is left out.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path

from tune_policies.probe.nvml import NvmlError, read_driver

# What must agree between nodes, because values travel between them.
_PACKAGES = ("ray", "torch", "tensorflow", "jax", "numpy", "tune-policies")


def read_node() -> dict[str, object]:
    """Return the fields of a ``NodeFacts`` that the machine itself knows."""
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
        "cpu_limits": _cpu_limits(),
        "memory_bytes": min(filter(None, (host_memory_bytes(), cgroup_memory_bytes()))),
        "shm_bytes": _shm_bytes(),
    }


def installed_versions() -> dict[str, str]:
    """Return the version of each installed distribution by its name in lower case, the first on the path first."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # what a broken installation leaves behind has none
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


def _torch(installed: dict[str, str]) -> list[dict[str, object]]:
    build = _text_of("torch", "version.py")
    if build is None:
        return []
    # As in: cuda: Optional[str] = '12.8'
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
    cuda = re.search(r"'cuda_version', '([\d.]+)'", build)
    versions = [version for name, version in installed.items() if name in ("tensorflow", "tensorflow-cpu")]
    return [
        {
            "name": "tensorflow",
            "version": versions[0] if versions else "unknown",
            "cuda": (cuda[1] if cuda else "of unknown version") if is_cuda else None,
            "rocm": "of unknown version" if is_rocm else None,
            "missing": "cuDNN" if is_cuda and not _has_cudnn(installed) else None,
        }
    ]


def _jax(installed: dict[str, str]) -> list[dict[str, object]]:
    if "jaxlib" not in installed:
        return []

    def plugin(family: str) -> str | None:
        found = [match[1] for name in installed if (match := re.fullmatch(rf"jax-{family}(\d*)-plugin", name))]
        return max(found, key=int) if found and all(found) else None

    return [{"name": "jax", "version": installed["jaxlib"], "cuda": plugin("cuda"), "rocm": plugin("rocm")}]


def _text_of(package: str, file: str) -> str | None:
    """Return the text of a package's file without importing it."""
    try:
        spec = importlib.util.find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0], file).read_text(encoding="utf-8") if places else None
    except (OSError, ValueError, ImportError):
        return None


def _has_cudnn(installed: dict[str, str]) -> bool:
    if any(name.startswith("nvidia-cudnn") for name in installed):
        return True
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    usual = ["/usr/lib", "/usr/lib64", "/usr/local/cuda/lib64", *map(str, Path("/usr/lib").glob("*-linux-gnu"))]
    return any(_has_file(folder, "libcudnn.so*") for folder in [*listed, *usual])


def _has_file(folder: str, pattern: str) -> bool:
    try:
        return any(True for _ in Path(folder).glob(pattern))
    except (OSError, ValueError):  # the name is none that a folder can have
        return False


def _nvidia() -> dict[str, object]:
    try:
        found = read_driver()
    except NvmlError as error:
        return {"nvml_error": str(error)}
    # The clock and the power limit are not checked.
    fields = ("index", "name", "uuid", "memory_bytes", "used_bytes", "is_mig")
    return {**found, "gpus": [{field: gpu[field] for field in fields} for gpu in found["gpus"]]}


def _num_nvidia_on_pci() -> int:
    def has(device: Path, file: str, beginning: str) -> bool:
        try:
            return (device / file).read_text().startswith(beginning)
        except OSError:
            return False

    # Vendor NVIDIA, class "display controller".
    devices = Path("/sys/bus/pci/devices").glob("*")
    return sum(has(device, "vendor", "0x10de") and has(device, "class", "0x03") for device in devices)


def _cpu_limits() -> dict[str, float]:
    limits: dict[str, float] = {}
    if hasattr(os, "sched_getaffinity"):
        limits["CPU affinity"] = len(os.sched_getaffinity(0))
    if quotas := [quota for folder in _cgroups("cpu") if (quota := _quota(folder)) is not None]:
        limits["cgroup quota"] = min(quotas)
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal() and 0 < float(slurm) < 1e6:
        limits["SLURM_CPUS_PER_TASK"] = float(slurm)
    return limits


def host_memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_memory_bytes() -> int | None:
    """Return what the cgroups allow this process; ``None``: they set no limit below the machine's memory."""
    limits = [
        limit
        for folder in _cgroups("memory")
        for file in ("memory.max", "memory.limit_in_bytes")  # of version 2, of version 1
        for limit in _numbers(folder / file)
    ]
    return min((limit for limit in limits if limit < host_memory_bytes()), default=None)


def _cgroups(controller: str) -> list[Path]:
    """Return the folders of the process's own cgroup and of all around it, each of which may set a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    root = Path("/sys/fs/cgroup")
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [root / controllers, root / controller] if controllers else [root, root / "unified"]
        inner = Path(path.strip("/"))
        # In a container the path may be the host's, while the container's own cgroup is mounted at the root.
        folders += [mount / part for mount in mounts for part in (inner, *inner.parents)]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the CPUs that a cgroup allows, of version 2 or 1; ``None``: it sets no limit."""
    numbers = _numbers(folder / "cpu.max")
    numbers = numbers or _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
    return numbers[0] / numbers[1] if len(numbers) == 2 else None


def _numbers(file: Path) -> list[int]:
    """Return the numbers above 0 in a file of a cgroup; "max" and -1 mean that there is no limit."""
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


if __name__ == "__main__":
    json.dump(read_node(), sys.stdout)
