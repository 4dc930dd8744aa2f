"""Reads the machine it runs on: its GPUs, its CPUs and which it may use, and what its autoscaler was configured with.

``read_node`` runs on other nodes, where this package may be missing: each function imports all that it needs itself,
and returns plain data.
"""

from tune_policies.probe.nvml import NvmlError, read_gpus


def read_node(*, with_gpus: bool, session: str | None) -> dict[str, object]:
    """Return ``gpus``, ``usable_cpus``, ``cpu_model``, and ``monitor`` where the autoscaler of ``session`` runs.

    A part that cannot be read is ``None``; why the GPUs could not be stands under ``gpu_error``.

    Args:
        with_gpus: Whether to read the GPUs.
        session: The cluster whose autoscaler is looked for; ``None``: none is.
    """
    facts: dict[str, object] = {"gpus": None, "gpu_error": None, "monitor": None}
    facts |= {"usable_cpus": read_usable_cpus(), "cpu_model": read_cpu_model()}
    if with_gpus:
        try:
            facts["gpus"] = read_gpus()
        except NvmlError as error:  # the node still counts
            facts["gpu_error"] = str(error)
    if session is not None:
        facts["monitor"] = read_monitor(session)
    return facts


def read_usable_cpus(root: str = "/") -> float | None:
    """Return how many CPUs this process may use: the least of cgroup quota, CPU affinity and Slurm's share.

    Ray itself registers the least of the machine's CPUs, the quota at the root of the cgroup tree that it sees (v1
    ``cpu.cfs_quota_us``, v2 ``cpu.max``; rounded down to whole CPUs) and the cpuset of cgroup v1
    (``ray._private.utils.get_num_cpus``, 2.50 and 2.60). It knows neither the quota of a nested group, nor the CPU
    affinity, nor Slurm, nor the cpuset of cgroup v2, which shows in the affinity.

    Args:
        root: Folder that holds ``proc`` and ``sys``.
    """
    import os
    from pathlib import Path

    def quota(group: Path) -> float | None:
        try:
            if (group / "cpu.max").exists():  # v2: "150000 100000", or "max 100000" without a limit
                limit, period = (group / "cpu.max").read_text().split()
            else:  # v1: -1 without a limit
                limit = (group / "cpu.cfs_quota_us").read_text()
                period = (group / "cpu.cfs_period_us").read_text()
            return float(limit) / float(period) if float(limit) > 0 else None
        except (OSError, ValueError):
            return None

    limits: list[float | None] = []
    if hasattr(os, "sched_getaffinity"):  # Linux
        limits.append(len(os.sched_getaffinity(0)))
    # Slurm sets it where a task was given CPUs of its own; it binds the task to them only where it is configured to.
    share = os.environ.get("SLURM_CPUS_PER_TASK", "")
    limits.append(float(share) if share.isdecimal() and 0 < float(share) < 1e6 else None)
    try:
        lines = (Path(root) / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = line.split(":", 2)  # "0::/user.slice" in v2, "4:cpu,cpuacct:/docker/1a2b" in v1
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = Path(root) / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = top / path.lstrip("/")
        # Each group above limits, too. In a container the path may be the host's: then only the top is there.
        limits += [quota(folder) for folder in (group, *group.parents) if folder == top or top in folder.parents]
    return min((limit for limit in limits if limit is not None), default=None)


def read_cpu_model(root: str = "/") -> str | None:
    """Return what Linux calls the CPU; ``None``: it does not say, as on ARM, or this is no Linux.

    Args:
        root: Folder that holds ``proc``.
    """
    from pathlib import Path

    try:
        lines = (Path(root) / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def read_monitor(session: str) -> dict[str, object] | None:
    """Return the ``config`` with which the monitor of ``session`` scales here; ``None``: it does not run here.

    ``config`` is ``None`` where it scales nothing. The file also holds keys and passwords: only what says which nodes
    there could be is returned. Where it cannot be read, ``error`` says why.
    """
    import os
    from pathlib import Path

    import yaml

    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.stat().st_uid != os.geteuid():  # anybody may give a process these arguments
                continue
            arguments = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended, or is another user's
            continue
        folders = [a.partition("=")[2] for a in arguments if a.startswith("--logs-dir=")]
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
            why = getattr(error, "problem", None) or error  # a YAMLError quotes the file, which may hold passwords
            return {"path": path, "config": None, "error": f"{type(error).__name__}: {why}"}
        return {"path": path, "config": {**config, "available_node_types": types}, "error": None}
    return None
