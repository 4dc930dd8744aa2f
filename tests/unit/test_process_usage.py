"""What a process says it used, what its device must have free; CuPy and NVML are stand-ins (tests/stand_ins.py)."""

import copy
import os
import pickle
import sys
import time
import traceback
from types import SimpleNamespace

import pytest

from tests.stand_ins import state_counts, write_stand_ins
from tune_policies import MemoryLimitError, ProbeError
from tune_policies.trainers import gpu_memory_usage, peak_gpu_memory_bytes
from tune_policies.trainers.gpu_memory.free_memory import is_too_much_to_keep, wait_for_free_memory
from tune_policies.trainers.gpu_memory.overhead import SAFE_DEFAULT
from tune_policies.trainers.gpu_memory.share import GpuShare, LimitReport
from tune_policies.trainers.gpu_memory.trial_usage import begin_stats, noted_on_oom, warn_once, with_usage
from tune_policies.tune.usage.gpu_memory_usage import ASSUMED

GIB = 2**30
MIB = 2**20
NAMES = ("cupy", "cupy.cuda", "cupy.cuda.memory", "pynvml")


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """The file that states NVML's counts, in a process in which the stand-ins are imported."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    path = write_stand_ins(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STAND_IN_NVML", str(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tune_policies.trainers.gpu_memory.trial_usage._stats", None)
    yield path
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def cupy(counts):
    import cupy

    return cupy


def test_without_an_account_nothing_is_said(cupy):
    assert gpu_memory_usage() is None
    assert with_usage({"loss": 1}) == {"loss": 1}


def test_whole_gpus_have_no_share(counts, cupy):
    state_counts(counts, total=16 * GIB, free=13 * GIB, processes={"self": 3 * GIB})
    begin_stats(1)
    held = cupy.empty(2 * GIB)

    usage = gpu_memory_usage()

    assert (usage.gpus, usage.share_bytes, usage.share_kept) == (1, None, None)
    assert (usage.peak_reserved_bytes, usage.process_bytes, usage.overhead_bytes) == (held.size, 3 * GIB, GIB)


@pytest.mark.parametrize(
    ("processes", "why"),
    [
        (None, "not known: the driver cannot be asked how full the GPU is: Driver Not Loaded"),
        ({}, "not known: the driver does not list this process, as in a container or before it uses the GPU"),
        (
            {"self": None},
            "not known: the driver does not list this process, as in a container or before it uses the GPU",
        ),
        ({"self": GIB}, "not known: the driver and this container number processes differently"),
    ],
    ids=["no driver", "not listed", "no amount", "less than the allocator holds"],
)
def test_where_the_driver_cannot_say_the_reason_stands_in_the_record(counts, cupy, processes, why):
    if processes is not None:
        state_counts(counts, total=16 * GIB, free=15 * GIB, processes=processes)
    begin_stats(1)
    held = cupy.empty(2 * GIB)

    usage = gpu_memory_usage()

    assert (usage.process_bytes, usage.peak_reserved_bytes) == (None, held.size)
    assert usage.sources["process_bytes"] == why


def test_a_peak_stays_when_the_pool_gives_its_memory_back(cupy):
    begin_stats(1)
    held = cupy.empty(2 * GIB)
    gpu_memory_usage()
    del held
    cupy.get_default_memory_pool().free_all_blocks()

    assert gpu_memory_usage().peak_reserved_bytes == 2 * GIB


def test_a_new_account_lets_go_what_nobody_holds_and_counts_what_is_left(cupy):
    kept, gone = cupy.empty(GIB), cupy.empty(3 * GIB)
    del gone
    begin_stats(1)

    usage = gpu_memory_usage()

    assert usage.left_over_bytes == kept.size == peak_gpu_memory_bytes()
    assert usage.peak_reserved_bytes == GIB


def test_an_error_of_gpu_memory_carries_the_record_and_any_other_does_not(cupy):
    begin_stats(1)
    with pytest.raises(MemoryError) as ran_out, noted_on_oom():
        cupy.empty(20 * GIB)
    with pytest.raises(ValueError, match="memory") as other, noted_on_oom():
        raise ValueError("memory")

    assert [note[:14] for note in ran_out.value.__notes__] == ['gpu_memory: {"']
    assert not hasattr(other.value, "__notes__")
    assert gpu_memory_usage().num_ooms == 1


def test_the_record_of_an_error_is_in_its_traceback_and_in_no_error_that_ray_sends_beside_that(cupy):
    begin_stats(1)
    error = RuntimeError("CUDA out of memory")
    error.add_note("the user's own")
    with pytest.raises(RuntimeError) as ran_out, noted_on_oom():
        raise error

    copied, sent = copy.copy(ran_out.value), pickle.loads(pickle.dumps(ran_out.value))

    assert "".join(traceback.format_exception(copied)).count('gpu_memory: {"') == 1
    assert sent.__notes__ == ["the user's own"]


@pytest.fixture
def torch_stats(counts, monkeypatch):
    """The counters of a torch that uses one device."""
    stats = {"reserved_bytes.all.peak": GIB, "num_ooms": 3}
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats=lambda device: dict(stats),
        reset_peak_memory_stats=lambda device: None,
        empty_cache=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return stats


def run_out(message):
    with pytest.raises(RuntimeError), noted_on_oom():
        raise RuntimeError(message)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "MPS backend out of memory (MPS allocated: 8.00 GiB, max allowed: 9 GiB). Tried to allocate 2.00 GiB",
    ],
)
def test_an_error_that_torchs_own_counter_leaves_out_is_counted(torch_stats, message):
    begin_stats(1)
    run_out(message)

    assert gpu_memory_usage().num_ooms == 1


def test_an_error_that_torch_counts_is_counted_once(torch_stats):
    begin_stats(1)
    torch_stats["num_ooms"] += 1
    run_out("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert gpu_memory_usage().num_ooms == 1


def test_a_counter_that_the_user_resets_begins_at_0_again(torch_stats):
    begin_stats(1)
    torch_stats["num_ooms"] = 0
    before = gpu_memory_usage().num_ooms
    torch_stats["num_ooms"] = 2

    assert (before, gpu_memory_usage().num_ooms) == (0, 2)


def test_no_trial_fails_because_its_framework_does_not_answer(torch_stats, monkeypatch):
    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    begin_stats(1)
    monkeypatch.setattr(sys.modules["torch"].cuda, "memory_stats", lost)
    warn_once.cache_clear()

    with pytest.warns(UserWarning, match="torch cannot be asked about its GPU memory: CUDA error: an ill") as warned:
        results = [with_usage({"loss": 1}), with_usage({"loss": 2})]
    run_out("CUDA out of memory. Tried to allocate 2.00 GiB")
    begin_stats(1)

    assert (results, len(warned)) == ([{"loss": 1}, {"loss": 2}], 1)
    with pytest.raises(ProbeError):
        gpu_memory_usage()


@pytest.mark.parametrize(
    ("source", "basis"),
    [
        (SAFE_DEFAULT, ASSUMED),
        ("measured on 2026-01-02", "the reserved peak and the overhead"),
        ("as the plan has counted by its profile", "the reserved peak and the overhead"),
    ],
)
def test_the_record_says_whether_its_overhead_was_only_assumed(cupy, monkeypatch, source, basis):
    report = LimitReport(
        share_bytes=4 * GIB, overhead_bytes={"cupy": MIB}, overhead_sources={"cupy": source}, isolation="framework"
    )
    monkeypatch.setattr("tune_policies.trainers.gpu_memory.trial_usage.rechecked_limit_report", lambda: report)
    begin_stats(0.25)
    held = cupy.empty(GIB)

    usage = gpu_memory_usage()

    assert (usage.share_kept, usage.peak_reserved_bytes, usage.pid) == (True, held.size, os.getpid())
    assert usage.sources["share_kept"] == basis


def test_the_drivers_count_alone_tells_whether_the_share_was_kept(counts, monkeypatch):
    report = LimitReport(share_bytes=4 * GIB)
    monkeypatch.setattr("tune_policies.trainers.gpu_memory.trial_usage.rechecked_limit_report", lambda: report)
    state_counts(counts, total=16 * GIB, free=11 * GIB, processes={"self": 5 * GIB})
    begin_stats(0.25)

    usage = gpu_memory_usage()

    assert (usage.share_kept, usage.sources["share_kept"]) == (False, "the process by NVML")


def test_the_gpus_of_a_node_say_nothing_of_its_other_devices(counts, cupy):
    state_counts(counts, total=16 * GIB, free=13 * GIB, processes={"self": 3 * GIB})
    begin_stats(0.5, "NPU")

    usage = gpu_memory_usage()

    assert (usage.device_bytes, usage.process_bytes) == (None, None)


QUARTER = GpuShare(fraction=0.25, memory_bytes=4 * GIB)


@pytest.mark.parametrize("free_gib", [16, 4, 3.9])
def test_a_device_with_room_for_the_share_is_started_on_at_once(counts, free_gib):
    """A little less counts as room, too: the driver keeps some of the device for itself."""
    state_counts(counts, total=16 * GIB, free=int(free_gib * GIB))

    wait_for_free_memory(QUARTER, timeout_s=0)


def test_a_full_device_is_an_error_that_names_who_holds_it(counts):
    state_counts(counts, total=16 * GIB, free=2 * GIB, processes={"77": 6 * GIB, "78": 8 * GIB})
    began = time.monotonic()

    with pytest.raises(MemoryLimitError) as error:
        wait_for_free_memory(QUARTER, timeout_s=0.2)

    assert 0.2 <= time.monotonic() - began < 5
    assert str(error.value) == (
        "GPU GPU-0 has 2 GiB of 16 GiB free, less than the share of 4 GiB, and had no more for 0.2 s. The rest is "
        "held by process 78 (8 GiB), process 77 (6 GiB). End those that are left from earlier runs, or plan for what "
        "is free"
    )


def test_the_smallest_share_finds_a_full_device_full(counts):
    state_counts(counts, total=16 * GIB, free=GIB // 4)

    with pytest.raises(MemoryLimitError, match="less than the share of 512 MiB"):
        wait_for_free_memory(GpuShare(fraction=1 / 32, memory_bytes=GIB // 2), timeout_s=0)


def test_a_share_of_a_larger_device_needs_no_more_than_its_part_of_this_one(counts):
    state_counts(counts, total=8 * GIB, free=2 * GIB)

    wait_for_free_memory(QUARTER, timeout_s=0)


def test_memory_that_comes_back_in_time_is_waited_for(counts, monkeypatch):
    state_counts(counts, total=16 * GIB, free=0)
    monkeypatch.setattr(time, "sleep", lambda seconds: state_counts(counts, total=16 * GIB, free=16 * GIB))

    wait_for_free_memory(QUARTER, timeout_s=5)


def test_what_this_process_holds_itself_counts_as_its_room(counts):
    state_counts(counts, total=16 * GIB, free=2 * GIB, processes={str(os.getpid()): 2 * GIB})

    wait_for_free_memory(QUARTER, timeout_s=0)


@pytest.mark.parametrize("processes", [{}, {"999999": 3 * GIB}], ids=["nobody is listed", "by the host's numbers"])
def test_what_its_frameworks_hold_counts_where_the_driver_does_not_list_this_process(
    counts, cupy, monkeypatch, processes
):
    before = LimitReport(overhead_bytes={"cupy": GIB // 2})
    monkeypatch.setattr("tune_policies.trainers.gpu_memory.free_memory.current_limit_report", lambda: before)
    state_counts(counts, total=16 * GIB, free=3 * GIB // 2, processes=processes)
    held = cupy.empty(2 * GIB)

    wait_for_free_memory(QUARTER, timeout_s=0)
    del held
    cupy.get_default_memory_pool().free_all_blocks()

    with pytest.raises(MemoryLimitError):
        wait_for_free_memory(QUARTER, timeout_s=0)


def test_tensorflow_holds_its_whole_limit_once_it_runs(counts, monkeypatch):
    config = SimpleNamespace(
        list_logical_devices=lambda kind: [SimpleNamespace(name="GPU:0")],
        experimental=SimpleNamespace(get_memory_info=lambda name: {"current": 0, "peak": 0}),
    )
    context = SimpleNamespace(context_safe=lambda: SimpleNamespace(_initialized=True))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)
    before = LimitReport(limit_bytes={"tensorflow": 3 * GIB}, overhead_bytes={"tensorflow": GIB})
    monkeypatch.setattr("tune_policies.trainers.gpu_memory.free_memory.current_limit_report", lambda: before)
    state_counts(counts, total=16 * GIB, free=0)

    wait_for_free_memory(QUARTER, timeout_s=0)


def test_a_whole_device_is_started_on_when_others_hold_little_of_it(counts):
    state_counts(counts, total=16 * GIB, free=13 * GIB)
    wait_for_free_memory(None, timeout_s=0)
    state_counts(counts, total=16 * GIB, free=12 * GIB, processes={"77": 4 * GIB})

    with pytest.raises(MemoryLimitError, match=r"12 GiB of 16 GiB free, less than the 80% that.* process 77 \(4 GiB\)"):
        wait_for_free_memory(None, timeout_s=0)


def test_a_full_device_is_none_to_start_on_where_the_driver_lists_no_processes(counts, monkeypatch):
    import pynvml

    def refuse(handle):
        raise pynvml.NVMLError("Not Supported")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", refuse)
    state_counts(counts, total=16 * GIB, free=GIB)

    with pytest.raises(MemoryLimitError, match="held by processes that the driver does not list"):
        wait_for_free_memory(QUARTER, timeout_s=0)


def test_a_device_that_cannot_be_read_is_taken_as_it_is(counts):
    wait_for_free_memory(QUARTER, timeout_s=0)


@pytest.mark.parametrize(
    ("left_over", "share", "too_much"),
    [
        (0, None, False),
        (64 * MIB, None, False),
        (65 * MIB, None, True),
        (GIB, 40 * GIB, False),
        (3 * GIB, 40 * GIB, True),
    ],
)
def test_a_process_is_used_again_while_it_keeps_little_of_its_share(left_over, share, too_much):
    assert is_too_much_to_keep(left_over, share) is too_much
