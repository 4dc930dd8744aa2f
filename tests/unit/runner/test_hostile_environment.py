"""Any value of an environment variable is accepted, ignored, or refused with an explanation."""

import os
from pathlib import Path

import pytest

from tune_policies.probe import node_facts
from tune_policies.probe.node_facts import read_usable_cpus
from tune_policies.trainers.gpu_memory.framework_overhead import load_overheads, overheads_file
from tune_policies.trainers.gpu_memory.framework_settings import (
    cupy_own_limit,
    jax_variables,
    torch_own_fraction,
    why_jax_is_unlimited,
)
from tune_policies.trainers.gpu_memory.mps import mps_own_limit
from tune_policies.values.errors import ResourcePolicyError

GIB = 2**30

READERS = {
    "SLURM_CPUS_PER_TASK": lambda: (read_usable_cpus(), node_facts._cpu_limits()),
    "LD_LIBRARY_PATH": lambda: node_facts._has_cudnn({}),
    "CUDA_VISIBLE_DEVICES": node_facts._nvidia,
    "PYTORCH_ALLOC_CONF": lambda: torch_own_fraction(os.environ),
    "XLA_CLIENT_MEM_FRACTION": lambda: jax_variables(0.5, os.environ),
    "XLA_PYTHON_CLIENT_MEM_FRACTION": lambda: jax_variables(0.5, os.environ),
    "XLA_PYTHON_CLIENT_ALLOCATOR": lambda: why_jax_is_unlimited(os.environ, None),
    "TF_FORCE_UNIFIED_MEMORY": lambda: why_jax_is_unlimited(os.environ, None),
    "CUPY_GPU_MEMORY_LIMIT": lambda: cupy_own_limit(GIB, os.environ),
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": lambda: mps_own_limit(os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0"),
    "TUNE_POLICIES_CACHE": load_overheads,
    "XDG_CACHE_HOME": load_overheads,
}
VALUES = {
    "empty": "",
    "blank": " ",
    "a word": "many",
    "a negative number": "-1",
    "not a number": "nan",
    "infinite": "inf",
    "a small number": "1e-999",
    "a long number": "9" * 5000,
    "digits of another script": "²",
    "digits of several scripts": "٤",
    "commas": "," * 5000,
    "brackets": "[" * 5000,
    "colons": ":" * 5000,
    "a percentage": "1e9%",
    "a list": "0=1G,1=;2=" + "9" * 5000 + "G",
    "a setting of PyTorch": "per_process_memory_fraction:nan,per_process_memory_fraction:" + "9" * 500,
    "terminal control sequences": "\x1b[2J\x07\r\n::add-mask::a",
    "right-to-left text": "\u202e0\u2066",
    "bytes that are not text": os.fsdecode(b"\xff\xfe"),
    "a device": "/dev/zero",
    "a folder of another user": "../../../../../proc/self",
    "the home directory of an unknown user": "~no-such-user/a",
    "a long path": "/a" * 3000,
}


@pytest.mark.filterwarnings("ignore:the measured overheads are ignored:UserWarning")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("variable", READERS)
def test_a_variable_is_accepted_ignored_or_refused_with_an_explanation(variable, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in READERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, VALUES[value])

    try:
        READERS[variable]()
    except ResourcePolicyError as error:
        assert 0 < len(str(error)) < 20_000  # noqa: PT017  # an error is optional

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["²", "0", "9" * 5000, "-4", "many"])
def test_an_invalid_number_of_cpus_from_slurm_is_ignored(text, monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    without = read_usable_cpus()
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", text)

    assert read_usable_cpus() == without
    assert "SLURM_CPUS_PER_TASK" not in node_facts._cpu_limits()


def test_a_cache_path_below_a_device_does_not_raise_an_error(monkeypatch):
    monkeypatch.setenv("TUNE_POLICIES_CACHE", "/dev/zero")

    assert overheads_file() == Path("/dev/zero/gpu-overheads.json")
