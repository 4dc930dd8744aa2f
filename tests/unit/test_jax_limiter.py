"""What JAX's limiter asks of JAX, of which a stand-in has the calls that the limiter makes.

The real JAX shows no GPU here. That the limit holds is for tests on a GPU (``tests/on_gpu``).
"""

import os
import sys
from types import SimpleNamespace

import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers.gpu_memory import limiters as jax_limiter
from tune_policies.trainers.gpu_memory import share as prospects
from tune_policies.trainers.gpu_memory.limit import OwnEnvironment
from tune_policies.trainers.gpu_memory.limiters import jax_still_holds, limit_jax
from tune_policies.trainers.gpu_memory.share import GpuShare, LimiterContext

GIB = 2**30


@pytest.fixture
def jax(monkeypatch):
    """Builds a JAX with a plugin for CUDA, in an environment without any setting of JAX's."""
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")  # so that it is taken back after the test
        monkeypatch.delenv(name)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    for name in ("ALLOCATOR", "COLLECTIVE_MEM_SIZE_MB"):
        monkeypatch.delenv(f"XLA_PYTHON_CLIENT_{name}", raising=False)
    monkeypatch.delenv("TF_FORCE_UNIFIED_MEMORY", raising=False)
    monkeypatch.setattr(jax_limiter, "PROCESS_ENVIRONMENT", OwnEnvironment())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # where there is a GPU after all

    def build(
        *, has_started=False, platform="gpu", platforms=None, plugin="xla_cuda12", bytes_limit=None, options=None
    ):
        bridge = SimpleNamespace(backends_are_initialized=lambda: has_started)
        monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "jax._src", SimpleNamespace(xla_bridge=bridge))
        monkeypatch.setattr(prospects, "entry_points", lambda group: [SimpleNamespace(name=plugin)])
        return SimpleNamespace(
            __version__="0.10.2",
            devices=lambda: [SimpleNamespace(platform=platform)],
            local_devices=lambda: [
                SimpleNamespace(platform=platform, memory_stats=lambda: bytes_limit and {"bytes_limit": bytes_limit})
            ],
            config=SimpleNamespace(jax_platforms=platforms, jax_pjrt_client_create_options=options),
        )

    return build


def jax_share(gib=4.85):
    """The device cannot be read, so its 16 GiB follow from the plan: 4.85 GiB are 0.303125 of it."""
    return LimiterContext(GpuShare(fraction=gib / 16, memory_bytes=int(gib * GIB)))


def test_jax_is_held_by_the_environment_before_it_starts(jax):
    held = jax_share()

    assert limit_jax(jax(), held)
    assert (os.environ["XLA_CLIENT_MEM_FRACTION"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("0.250000", "false")
    assert held.report.limit_bytes["jax"] == pytest.approx(4 * GIB, rel=1e-5)


def test_a_jax_that_has_started_is_too_late(jax):
    with pytest.raises(MemoryLimitError, match="JAX's back end has started"):
        limit_jax(jax(has_started=True), jax_share())


def test_the_same_share_again_is_no_error_after_jax_has_started(jax):
    limit_jax(jax(), jax_share())

    assert limit_jax(jax(has_started=True), jax_share())


def test_a_larger_share_in_the_same_process_is_not_held_to_the_smaller_one_before_it(jax):
    limit_jax(jax(), jax_share())

    limit_jax(jax(), jax_share(8.85))

    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.500000"


def test_a_fraction_that_the_user_set_counts_for_each_share_in_the_same_process(jax, monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".3")
    limit_jax(jax(), jax_share())

    limit_jax(jax(), jax_share(8.85))

    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.300000"


@pytest.mark.parametrize("gib", [2.85, 8.85], ids=["smaller", "larger"])
def test_another_share_after_jax_has_started_is_too_late(jax, gib):
    limit_jax(jax(), jax_share())

    with pytest.raises(MemoryLimitError, match="JAX's back end has started"):
        limit_jax(jax(has_started=True), jax_share(gib))


@pytest.mark.parametrize("options", [{"memory_fraction": 0.9}, "allocator:platform"])
def test_an_option_of_jaxs_client_voids_its_limit(jax, options):
    with pytest.raises(MemoryLimitError, match="jax_pjrt_client_create_options overrides"):
        limit_jax(jax(options=options), jax_share())


def test_memory_for_jaxs_collectives_is_told_of(jax, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB", "64")
    held = jax_share()

    limit_jax(jax(), held)

    assert held.report.warnings[0].startswith("XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB sets memory aside")


@pytest.mark.parametrize(
    "state",
    [{"has_started": True, "platform": "cpu"}, {"platforms": "cpu"}, {"plugin": "xla_metal"}],
    ids=["it has started on the CPU", "it may use the CPU only", "there is no plugin for a GPU"],
)
def test_a_jax_without_a_gpu_is_let_be(jax, state):
    assert not limit_jax(jax(**state), jax_share())
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ


@pytest.mark.parametrize("allocator", ["platform", "cuda_async", "vmm"])
def test_an_allocator_that_takes_no_fraction_for_a_limit_voids_jaxs(jax, allocator, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", allocator)

    with pytest.raises(MemoryLimitError, match=f"XLA_PYTHON_CLIENT_ALLOCATOR={allocator} switches"):
        limit_jax(jax(), jax_share())


@pytest.mark.parametrize(
    ("name", "value"), [("XLA_CLIENT_MEM_FRACTION", "0.9"), ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")]
)
def test_a_variable_that_was_changed_before_jax_starts_voids_its_limit(jax, name, value, monkeypatch):
    held = jax_share()
    limit_jax(jax(), held)
    held_at_first = jax_still_holds(jax(), held.report.limit_bytes["jax"])
    monkeypatch.setenv(name, value)

    assert (held_at_first, jax_still_holds(jax(), held.report.limit_bytes["jax"])) == (True, False)


@pytest.mark.parametrize(
    ("bytes_limit", "expected"), [(3 * GIB, True), (int(4.1 * GIB), True), (12 * GIB, False), (None, False)]
)
def test_a_jax_that_has_started_says_itself_whether_it_is_held(jax, bytes_limit, expected):
    held = jax_share()
    limit_jax(jax(), held)

    assert jax_still_holds(jax(has_started=True, bytes_limit=bytes_limit), held.report.limit_bytes["jax"]) == expected
