"""Tests of the node properties that the doctor reads from files of frameworks and of the kernel."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tune_policies.probe import node_facts, nvml
from tune_policies.probe.doctor.node_checks import NodeFacts
from tune_policies.probe.probe_cluster import _Readings

TORCH = """from typing import Optional

__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = {hip}
"""


@pytest.fixture
def packages(tmp_path):
    """Return an object that creates packages with only the files that the reader uses, and that runs the reader."""

    class Packages:
        def installed(self, name, version):
            metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

        def file(self, path, text):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

        def frameworks(self):
            """Return the frameworks by name, read by ``node_facts`` in a Python process with only these packages."""
            for module in (nvml, node_facts):
                self.file(f"{module.__name__.replace('.', '/')}.py", Path(module.__file__).read_text())
            command = [sys.executable, "-S", "-P", "-m", node_facts.__name__]
            env = {"PYTHONPATH": str(tmp_path)}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            facts = NodeFacts.from_dict({"name": "a", **json.loads(done.stdout)})
            return {framework.name: framework for framework in facts.frameworks}

        def package(self):
            """Return the result of ``read_package`` in a Python process with only these packages."""
            self.file(
                "node_facts.py", Path(node_facts.__file__).read_text().replace("tune_policies.probe.nvml", "nvml")
            )
            self.file("nvml.py", Path(nvml.__file__).read_text())
            code = "import json, node_facts; print(json.dumps(node_facts.read_package()))"
            command = [sys.executable, "-S", "-P", "-c", code]
            env = {"PYTHONPATH": str(tmp_path)}
            return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)

    return Packages()


def test_the_version_of_this_package_is_that_of_the_imported_installation(packages):
    packages.installed("tune-policies", "0.3.0")
    for name in ("tune_policies", "tune_policies/trainers", *node_facts._NEEDED_BY_TRIALS):
        packages.file(f"{name}/__init__.py", "")

    assert packages.package() == {"version": "0.3.0", "problem": None}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([], "tune-policies is not installed"),
        (["tune_policies"], "tune-policies is not installed completely"),
        (["tune_policies", "tune_policies/trainers"], "pydantic, which tune-policies needs, is not installed"),
    ],
    ids=["no package", "a part of the package", "no dependencies"],
)
def test_a_node_without_what_a_trial_imports_has_a_problem(packages, found, problem):
    for name in found:
        packages.file(f"{name}/__init__.py", "")

    assert packages.package() == {"version": None, "problem": problem}


@pytest.mark.parametrize(
    ("own", "found", "problem"),
    [
        ("0.3.0", "0.2.0", "tune-policies 0.2.0 is installed, but this program uses 0.3.0"),
        ("0.3.0", "0.3.0", None),
        ("0.3.0", None, None),
        (None, "0.2.0", None),
    ],
    ids=["another version", "the same version", "unknown on the node", "unknown in the program"],
)
def test_a_node_with_another_version_of_this_package_has_a_problem(own, found, problem):
    assert _Readings(own_version=own)._problem({"version": found, "problem": None}) == problem


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "is_cpu_build"),
    [
        ("2.13.0+cu128", "'12.8'", "None", False),
        ("2.13.0+rocm", "None", "'6.4'", False),
        ("2.13.0", "None", "None", True),
    ],
    ids=["CUDA", "ROCm", "CPU"],
)
def test_the_build_of_torch_is_read_without_importing_it(packages, version, cuda, hip, is_cpu_build):
    packages.installed("torch", version)
    packages.file("torch/__init__.py", "raise RuntimeError('imported')")
    packages.file("torch/version.py", TORCH.format(version=version, cuda=cuda, hip=hip))

    torch = packages.frameworks()["torch"]

    assert (torch.version, repr(torch.cuda), repr(torch.rocm)) == (version, cuda, hip)
    assert torch.is_cpu_build is is_cpu_build


@pytest.mark.parametrize(
    ("package", "build", "expected"),
    [
        ("tensorflow", "('cuda_version', '12.5.1'), ('is_cuda_build', True)", ("12.5.1", None, False)),
        ("tensorflow-cpu", "('is_cuda_build', False)", (None, None, True)),
        ("tensorflow-rocm", "('is_cuda_build', False), ('is_rocm_build', True)", (None, "of unknown version", False)),
    ],
    ids=["CUDA", "CPU", "ROCm"],
)
def test_the_build_of_tensorflow_is_read_without_importing_it(packages, package, build, expected):
    packages.installed(package, "2.21.0")
    packages.file("tensorflow/__init__.py", "raise RuntimeError('imported')")
    build_info = f"build_info = collections.OrderedDict([{build}])"
    packages.file("tensorflow/python/platform/build_info.py", build_info)
    packages.installed("nvidia-cudnn-cu12", "9.1")

    tensorflow = packages.frameworks()["tensorflow"]

    assert (tensorflow.version, tensorflow.missing) == ("2.21.0", None)
    assert (tensorflow.cuda, tensorflow.rocm, tensorflow.is_cpu_build) == expected


@pytest.mark.parametrize(("plugins", "cuda"), [((), None), (("jax-cuda12-plugin", "jax-cuda13-plugin"), "13")])
def test_the_plugins_of_jax_determine_its_build(packages, plugins, cuda):
    for name in ("jax", "jaxlib", *plugins):
        packages.installed(name, "0.9")

    assert packages.frameworks()["jax"].cuda == cuda


def test_no_framework_is_listed_if_none_is_installed(packages):
    assert packages.frameworks() == {}


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "350000 100000\n"}, 3.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
    ids=["version 2", "version 2 without a limit", "version 1", "version 1 without a limit", "no cgroup"],
)
def test_the_quota_of_a_cgroup_is_read_in_cpus(tmp_path, files, cpus):
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    assert node_facts._quota(tmp_path) == cpus


def test_the_number_of_cpus_per_slurm_task_is_a_cpu_limit(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")

    assert node_facts._cpu_limits()["SLURM_CPUS_PER_TASK"] == 3


def pci_device(top, address, kind, vendor):
    folder = top / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    (folder / "vendor").write_text(f"{vendor}\n")


@pytest.mark.parametrize(
    ("address", "kind", "vendor", "is_gpu"),
    [
        ("0000:01:00.0", "0x030200", "0x10de", True),
        ("0000:43:00.0", "0x120000", "0x1002", True),
        ("0000:03:00.0", "0x038000", "0x8086", True),
        ("0000:00:02.0", "0x030000", "0x8086", False),
        ("0000:00:01.0", "0x030000", "0x1234", False),
        ("0000:01:00.1", "0x040300", "0x10de", False),
    ],
    ids=[
        *("an NVIDIA GPU", "an AMD accelerator", "an Intel GPU", "Intel's graphics in a laptop"),
        *("the display of a virtual machine", "the audio of an NVIDIA GPU"),
    ],
)
def test_a_gpu_on_the_pci_bus_is_found_without_its_driver(address, kind, vendor, is_gpu, tmp_path):
    pci_device(tmp_path, address, kind, vendor)

    assert node_facts.has_gpu_hardware(tmp_path) == is_gpu


@pytest.mark.parametrize("file", ["dev/nvidia0", "dev/nvidiactl", "dev/kfd", "proc/driver/nvidia/version"])
def test_a_file_of_a_driver_is_a_sign_of_a_gpu(file, tmp_path):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()

    assert node_facts.has_gpu_hardware(tmp_path)


def test_nvml_that_fails_is_installed(monkeypatch):
    """A machine with a broken driver has the library of the driver, so its GPUs are not simulated."""

    class NVMLError(Exception):
        pass

    def fail():
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NVMLError, nvmlInit=fail))

    assert nvml.is_nvml_installed()
    assert not node_facts.are_gpus_simulated()
