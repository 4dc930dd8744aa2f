"""Runs commands in a temporary folder that contains one file of each kind."""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from tests.advice import ROOT
from tests.clusters import gpu_node
from tests.measured_runs import a_run
from tests.run_sets import a_run_set
from tests.unit.kuberay.planted.sound import CLUSTER, LAUNCHER
from tune_policies import ClusterCapacity
from tune_policies.benchmarks.decide.price_file import Instance, Prices
from tune_policies.benchmarks.record.run_set_file import file_text
from tune_policies.cli.main import app

A10G = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=16, accelerator_type="A10G"))
ON_A10G = Prices(
    date="2026-11-01",
    currency="USD",
    instances=(Instance(name="g", price=1, cpus=8, gpus=1, accelerator_type="A10G"),),
)

FILES = {
    "gpu.yaml": "kind: GpuPolicy\n",
    "cpu.yaml": "kind: CpuPolicy\n",
    "cluster.json": A10G.to_json(),
    "catalog.yaml": "- {name: a, count: 2, cpus: 8, gpus: 1, memory: 32GiB, accelerator_type: A100}\n",
    "prices.yaml": "{date: 2026-05-01, currency: USD, cpu: 0.05, gpus: {A10G: 0.4}}",
    "listed.yaml": ON_A10G.model_copy(update={"cpu": 0.1}).to_json(),
    "priced.yaml": "- {count: 2, cpus: 8, gpus: 2, memory: 32GiB, accelerator_type: L4, price_per_hour: 2}\n",
    "raycluster.yaml": CLUSTER,
    "launcher.yaml": LAUNCHER,
    "measured.json": file_text(a_run()),
    "on-cpus.json": file_text(a_run(("cpu",))),
    "run.json": file_text(a_run_set(workloads=("mlp",), sizes=(16, 1024), num_rounds=3, has_failure=False)),
    "old.txt": "mine\n",
    "tune.py": "print('done')\n",
    "mine.py": "def net(size, device): ...\n",
}


class CommandError(Exception):
    """The command failed with this output."""


@contextlib.contextmanager
def folder(**files):
    """Enter a folder with the files of ``FILES`` and with ``files``, whose names contain ``_`` instead of a dot."""
    given = {file.replace("_", "."): text for file, text in files.items()}
    path = [*sys.path]
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for file, text in (FILES | given).items():
            Path(file).write_text(text)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.modules.pop("mine", None)


def command(line, **files):
    """Run a command of this package in a folder with files, and return its output, or raise an error with it."""
    with folder(**files):
        done = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "300"})
    said = " ".join(done.output.split())
    if done.exit_code:
        raise CommandError(said)
    return said


def program(line):
    """Run a command in a process of its own, because ``exec`` changes the process, and return its output."""
    with folder():
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:."}
        line = [sys.executable, "-m", "tune_policies", *shlex.split(line)]
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stderr


def in_folder(action, **files):
    """Call ``action`` in a folder with files."""
    with folder(**files):
        return action()
