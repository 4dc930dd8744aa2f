"""Tests of the number of usable CPUs of a node, with cgroup files in the format of the kernel."""

import os
import subprocess
import sys

import pytest

from tune_policies.probe.node_facts import read_cpu_labels, read_cpu_model, read_usable_cpus

AFFINITY = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes files below a temporary root and reads the usable CPUs."""

    def read(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_usable_cpus(str(tmp_path))

    return read


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, AFFINITY),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, AFFINITY),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                f"{V2}/job/cpu.max": "25000 100000\n",
                f"{V2}/job/step/cpu.max": "max 100000\n",
            },
            0.25,
        ),
        (
            {
                "proc/self/cgroup": "12:cpuset:/\n4:cpu,cpuacct:/docker/1a2b\n0::/\n",
                f"{V1}/cpu.cfs_quota_us": "-1\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
                f"{V1}/docker/1a2b/cpu.cfs_quota_us": "75000\n",
                f"{V1}/docker/1a2b/cpu.cfs_period_us": "100000\n",
            },
            0.75,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/of-the-host\n",
                f"{V1}/cpu.cfs_quota_us": "50000\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
    ids=[
        "no cgroups",
        "v2 without a quota",
        "v2 quota of a container",
        "v2 quota of a parent group",
        "v1 quota of a nested group",
        "v1 container with its path on the host",
    ],
)
def test_the_smallest_cgroup_quota_limits_the_usable_cpus(machine, files, expected):
    assert machine(files) == expected


def test_the_cpu_affinity_limits_the_usable_cpus():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from tune_policies.probe.node_facts import read_usable_cpus; print(read_usable_cpus())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert float(done.stdout) <= 1


@pytest.mark.parametrize(("share", "expected"), [("1", 1), ("100000", AFFINITY), ("", AFFINITY), ("0", AFFINITY)])
def test_the_slurm_allocation_limits_the_usable_cpus(machine, monkeypatch, share, expected):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", share)

    assert machine({}) == expected


def test_the_cpu_model_is_read_from_proc_cpuinfo(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t: fpu\n")

    assert read_cpu_model(str(tmp_path)) == "AMD EPYC 9R14"


@pytest.mark.parametrize("text", ["processor\t: 0\nCPU part\t: 0xd40\n", None], ids=["ARM", "not Linux"])
def test_a_missing_cpu_model_is_unknown(tmp_path, text):
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(text)

    assert read_cpu_model(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("cpuinfo", "labels"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile\n", ["avx2", "avx512f", "avx512_bf16", "amx_tile"]),
        ("Features\t: fp asimd sve sve2\n", ["sve", "sve2"]),
        ("processor\t: 0\n", []),
    ],
    ids=["x86", "ARM", "no features"],
)
def test_cpu_features_become_labels(tmp_path, cpuinfo, labels):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(cpuinfo)

    assert read_cpu_labels(str(tmp_path)) == {f"cpu-{name}": "true" for name in labels}


def test_without_proc_cpuinfo_a_node_has_no_cpu_labels(tmp_path):
    assert read_cpu_labels(str(tmp_path)) == {}
