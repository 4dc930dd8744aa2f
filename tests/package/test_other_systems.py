"""Tests that planning needs nothing that exists only on Linux: files in ``/proc`` and ``/sys``, modules and functions.

The tests run on Linux, in processes without these parts of Python. Python's own ``sys.platform`` is that of macOS.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_LINUX = """
import builtins, io, os, signal, sys, types
import subprocess, threading  # these modules choose functions of the system when they are imported

MODULES = {"spwd", "ossaudiodev", *sys.argv.pop(1).split()}
FUNCTIONS = {
    os: ("sched_getaffinity", "sched_setaffinity", "posix_fallocate", "posix_fadvise", "setxattr", "getxattr",
         "listxattr", "removexattr", "O_TMPFILE", "memfd_create", "pidfd_open", "eventfd", "splice", "copy_file_range",
         "getrandom", "pipe2", "unshare", "setns"),
    signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD", "sigtimedwait", "sigwaitinfo",
             "pidfd_send_signal"),
}
for module, names in FUNCTIONS.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Blocked())
for name in MODULES:
    sys.modules.pop(name, None)


def without_proc(function):
    def call(path, *args, **kwargs):
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(path)
        return function(path, *args, **kwargs)
    return call


for owner, names in {os: ("open", "stat", "lstat", "listdir", "scandir"), io: ("open",), builtins: ("open",)}.items():
    for name in names:
        setattr(owner, name, without_proc(getattr(owner, name)))
"""
AS_ON_MACOS = """
import sysconfig
sysconfig.get_config_vars()  # reads a file whose name contains the platform
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)  # of macOS's urllib
"""
COMMAND_LINE = "from tune_policies.cli.main import main; main()"
FRAMEWORKS = "ray torch tensorflow jax cupy pynvml psutil"
POSIX = "fcntl resource grp termios"
FILES = {
    "policy.yaml": "kind: GpuMemoryPolicy\ngpu_memory: 24GiB\n",
    "nodes.yaml": "nodes:\n  - {count: 1, cpus: 32, gpus: 2, accelerator_type: A100-80G, gpu_memory: 80GiB}\n",
    "catalog.yaml": (
        "nodes:\n  - {name: gpu, cpus: 8, gpus: 1, accelerator_type: A100-80G, memory: 64GiB, price_per_hour: 1}\n"
    ),
}


def run_without(missing, code, *arguments, folder):
    program = [sys.executable, "-c", WITHOUT_LINUX + code, missing, *arguments]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["plan", "policy.yaml", "--cluster", "nodes.yaml"], "6 trials at once, limited by GPU"),
        pytest.param(["schema"], '"GpuMemoryPolicy"', marks=pytest.mark.rest),
        pytest.param(
            ["kuberay", "design", "policy.yaml", "--nodes", "catalog.yaml", "--num-trials", "4"],
            "A100-80G",
            marks=pytest.mark.rest,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_that_only_plan_run_without_linux_and_ray(arguments, shown, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    assert shown in run_without(f"{FRAMEWORKS} {POSIX}", AS_ON_MACOS + COMMAND_LINE, *arguments, folder=tmp_path)


@pytest.mark.rest
def test_every_public_name_can_be_imported_without_the_functions_of_linux(tmp_path):
    """Ray is imported as on Linux, so ``sys.platform`` and the modules of Python that Ray needs are those of Linux."""
    code = """
import tune_policies
from tune_policies import kuberay, testing, trainers
for package in (tune_policies, kuberay, testing, trainers):
    for name in package.__all__:
        getattr(package, name)
print("imported")
"""
    assert run_without("", code, folder=tmp_path).endswith("imported\n")


@pytest.mark.rest
def test_gpu_memory_is_estimated_without_the_functions_of_linux(tmp_path):
    pytest.importorskip("torch")
    code = """
import torch
from tune_policies.trainers import estimate_gpu_memory
print(estimate_gpu_memory(lambda: torch.nn.Linear(8, 8), batch=(4, 8), optimizer=torch.optim.SGD).total_bytes > 2**20)
"""
    assert run_without("", code, folder=tmp_path).endswith("True\n")
