"""Tests of the advice about GPU memory, from measured peaks and from out-of-memory errors."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.oom_errors import ASYNC_TORCH, MPS, TF_ON_GPU, XPU
from tests.unit.runner.test_advised_memory import one_gpu
from tests.unit.runner.usage_files import GIB, TORCH_OOM, failed, report, run_of, used, write
from tune_policies import (
    GpuMemoryPolicy,  # noqa: F401  # an advice contains it
    GpuPolicy,  # noqa: F401  # an advice contains it
    load_usage,
)
from tune_policies.oom import classify_oom_text
from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.plan.headroom import HEADROOM
from tune_policies.trainers.usage.gpu_memory_records import (
    GpuMemoryUsage,
    MemoryFailure,
    RunUsage,
    TrialGpuMemory,
    needed_bytes,
)
from tune_policies.trainers.usage.oom_report import OomReport
from tune_policies.trainers.usage.process_usage import SlotUse
from tune_policies.trainers.usage.resource_usage import RaisedMemory, ResourceUsage, SlotHours, TrialCounts
from tune_policies.trainers.usage.usage_report import advice_of_run


@pytest.mark.parametrize(
    ("usages", "advice"),
    [
        (
            [used(2), used(2.9)],
            "the peak was 2.9 of 8.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead of 2",
        ),
        ([used(6)], "the peak was 6.0 of 8.0 GiB (6.8 GiB with overhead), so 2 trials per GPU is right"),
        (
            # A trial did not use its GPU.
            [used(6), used(0, process_bytes=0)],
            "the peak was 6.0 of 8.0 GiB (6.8 GiB with overhead), so 2 trials per GPU is right",
        ),
        (
            [used(7)],
            "the peak was 7.0 of 8.0 GiB (7.8 GiB with overhead), so LearningPolicy() would run 1 per GPU instead of 2",
        ),
        (
            [used(2.9, gpus=1)],
            "the peak was 2.9 of 16.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead "
            "of 1",
        ),
        (
            [used(2, overhead_bytes=GIB)],
            "the peak was 3.0 of 8.0 GiB, so LearningPolicy() would run 4 per GPU instead of 2",
        ),
        (
            # The limit of a fraction subtracts 0.85 GiB, although the driver reported an overhead of 0.5 GiB.
            [used(1, gpus=1, overhead_bytes=GIB // 2, process_bytes=3 * GIB // 2)],
            "the peak was 1.5 of 16.0 GiB (1.8 GiB with overhead), so LearningPolicy() would run 7 per GPU instead "
            "of 1",
        ),
        (
            # The plan used a measured overhead of 0.5 GiB.
            [used(2, overhead_bytes=GIB // 2, limit_bytes={"torch": int(7.5 * GIB)})],
            "the peak was 2.5 of 8.0 GiB, so LearningPolicy() would run 5 per GPU instead of 2",
        ),
        (
            [used(2, process_bytes=4 * GIB)],
            "the peak was 4.0 of 8.0 GiB, so LearningPolicy() would run 3 per GPU instead of 2",
        ),
        (
            [used(15, gpus=1, num_ooms=1)],
            "1 of 1 trial ran out of memory with 16.0 GiB (a whole GPU), so use a GPU with more memory",
        ),
        (
            [None],
            "no trial reported its GPU memory. Only trials that have a GPU and run under a PolicyScheduler report it. "
            "With resources_per_trial alone, a trial's GPU memory is not limited",
        ),
    ],
)
def test_the_advice_depends_on_the_trial_with_the_highest_peak(usages, advice):
    assert advice_of_run(run_of(*usages)) == [advice]


@pytest.mark.parametrize(
    ("usage", "advice"),
    [
        pytest.param(
            used(2.9),
            "the peak of a worker was 2.9 of 8.0 GiB (3.7 GiB with overhead), for which "
            'GpuMemoryPolicy(gpu_memory="4.2GiB") is enough',
            id="a small peak",
        ),
        pytest.param(
            used(15.5, gpus=1), "the peak of a worker was 15.5 of 16.0 GiB (16.3 GiB with overhead)", id="a large peak"
        ),
        pytest.param(
            used(7, num_ooms=1),
            "workers ran out of memory with 8.0 GiB. Retry the run with more memory: "
            "fit_with_oom_retry(build_trainer, plan)",
            id="out of memory",
        ),
        pytest.param(
            used(15, gpus=1, num_ooms=1),
            "workers ran out of memory with 16.0 GiB (a whole GPU), so use a GPU with more memory",
            id="out of memory on a whole GPU",
        ),
        pytest.param(
            None,
            "no worker reported its GPU memory. Only workers that have a GPU report it, and only in trainers of this "
            "package, such as build_torch_trainer",
            id="nothing reported",
        ),
    ],
)
def test_the_advice_for_train_workers_names_no_policy_and_no_scheduler_for_trials(usage, advice):
    """The GPU has 16 GiB. A LearningPolicy keeps the requests of workers, and a Train run has no scheduler."""
    train = RunUsage(trials=run_of(usage).trials, folder_of="train")

    assert advice_of_run(train) == [advice]


def test_trials_with_train_workers_get_the_advice_for_workers():
    use = SlotUse(num_trials=1, cpus=1, used_cpus=1, host_memory_bytes=GIB, num_workers=2)
    record = ResourceUsage(slots=(SlotHours(slot="2 workers", hours={"GPU": 1.0}, use=use),))

    (advice,) = advice_of_run(run_of(used(2.9)), record)

    assert advice.startswith("the peak of a worker was 2.9 of 8.0 GiB")


def test_trials_with_different_fractions_get_one_advice_about_the_number_of_trials():
    """The GPUs have 16 GiB. A LearningPolicy learns from all trials, so it would not run 5 and also 3 per GPU."""
    quarter = {"gpus": 0.25, "share_gib": 4}
    small = run_of(*[used(2, **quarter)] * 4)
    retried = TrialGpuMemory(name="r", usage=used(4), of_smaller_shares=(used(3, **quarter, num_ooms=1),))

    about_all, first, second, *others = advice_of_run(RunUsage(trials=(*small.trials, retried)))

    assert first == "the peak was 2.0 of 4.0 GiB (2.8 GiB with overhead)"
    assert second == "the peak was 4.0 of 8.0 GiB (4.8 GiB with overhead)"
    assert about_all == "LearningPolicy() would run 2 of these trials at once on a GPU of 16 GiB"
    assert not any("LearningPolicy" in advice for advice in others)


@pytest.mark.parametrize(
    ("gpus", "policy"),
    [
        (0.5, "GpuPolicy(), with 1 per GPU instead of 2"),
        (0.25, 'GpuMemoryPolicy(gpu_memory="8GiB"), with 2 per GPU instead of 4'),
    ],
)
def test_after_out_of_memory_errors_the_advice_is_the_policy_to_write_and_the_cheaper_way(gpus, policy):
    """The GPU has 16 GiB."""
    share_gib = 16 * gpus
    small = {"gpus": gpus, "share_gib": share_gib}

    advice = advice_of_run(run_of(used(share_gib - 1, **small, num_ooms=1), *(used(1, **small) for _ in range(3))))

    assert advice == [
        f"1 of 4 trials ran out of memory with {share_gib:.1f} GiB, and needed at least {share_gib:.1f} GiB. How much "
        f"more is not known, so the value is a guess. Write {policy}",
        f"3 of 4 trials fit, so it may be cheaper to keep {1 / gpus:g} per GPU, and to retry the others with more "
        "memory: scheduler=OomRetryScheduler()",
    ]


def test_if_no_trial_fits_the_advice_is_a_guess_and_mentions_retries():
    """The GPU has 16 GiB."""
    advice = advice_of_run(run_of(*[used(3, gpus=0.25, share_gib=4, num_ooms=1)] * 3))

    assert advice == [
        "3 of 3 trials ran out of memory with 4.0 GiB, and needed at least 4.0 GiB. How much more is not known, so the "
        'value is a guess. Write GpuMemoryPolicy(gpu_memory="8GiB"), with 2 per GPU instead of 4, or retry such trials '
        "with more memory: scheduler=OomRetryScheduler()"
    ]


def test_the_value_to_write_is_known_from_one_error_if_no_peak_was_measured():
    failure = MemoryFailure(kind="accelerator", needed_bytes=13 * GIB)
    quarter = {"gpus": 0.25, "share_bytes": 10 * GIB, "device_bytes": 40 * GIB}
    ran_out, fits = GpuMemoryUsage(**quarter, num_ooms=1), GpuMemoryUsage(**quarter)
    trials = (
        TrialGpuMemory(name="a", usage=ran_out, failures=(failure,)),
        TrialGpuMemory(name="b", usage=fits),
        TrialGpuMemory(name="c", usage=fits),
    )

    first, *_ = advice_of_run(RunUsage(trials=trials))

    assert 'needed at least 13.0 GiB. Write GpuMemoryPolicy(gpu_memory="14.3GiB")' in first


@pytest.mark.parametrize(
    ("needed_gib", "policy", "end"),
    [
        (9.5, 'GpuMemoryPolicy(gpu_memory="10.5GiB"), with which 1 trial fits', "scheduler=OomRetryScheduler()"),
        (20, 'GpuMemoryPolicy(gpu_memory="22GiB")', "which needs a larger GPU than a GPU of 16 GiB"),
    ],
)
def test_the_guess_is_at_least_what_the_errors_contain(needed_gib, policy, end):
    """The GPU has 16 GiB. A failed allocation was larger than the free memory of the fraction."""
    failure = MemoryFailure(kind="accelerator", needed_bytes=int(needed_gib * GIB))
    trial = TrialGpuMemory(name="t", usage=used(3, gpus=0.25, share_gib=4, num_ooms=1), failures=(failure,))

    (advice,) = advice_of_run(RunUsage(trials=(trial,)))

    assert f"and needed at least {needed_gib:.1f} GiB" in advice
    assert policy in advice
    assert advice.endswith(end)


def test_problems_are_listed_with_their_trials():
    usage = used(7, share_kept=False, left_over_bytes=5, not_enforceable=("numba",), warnings=("no limit",))

    assert advice_of_run(run_of(usage, used(7)))[1:] == [
        "1 trial exceeded the GPU fraction: t0",
        "1 trial started with memory that an earlier trial had not released: t0",
        "the GPU memory of numba was not limited: t0",
        "no limit",
    ]


@given(st.lists(st.integers(1, 80 * GIB), min_size=1), st.sampled_from([0.1, 0.25, 0.5, 1]))
def test_the_advised_number_of_trials_fits_on_the_device_if_all_need_as_little_as_the_smallest(peaks, gpus):
    usages = [GpuMemoryUsage(gpus=gpus, device_bytes=80 * GIB, peak_reserved_bytes=peak) for peak in peaks]

    (line,) = advice_of_run(run_of(*usages))

    count = int(re.search(r"(\d+) (trials? )?per GPU", line)[1])
    assert count == 1 or count * min(peaks) * (1 + HEADROOM) <= 80 * GIB * 1.001


def test_without_a_peak_the_needed_memory_is_not_known():
    assert needed_bytes(GpuMemoryUsage(overhead_bytes=GIB)) is None


NUMPY_OOM = (
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,) and "
    "data type float64"
)
RETRY = "retry such trials with more memory: scheduler=OomRetryScheduler()"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(
            failed(TORCH_OOM),
            "1 of 2 trials ran out of GPU memory and needed at least 20 GiB. Write "
            'GpuMemoryPolicy(gpu_memory="22GiB"), with which 3 trials fit on a GPU of 79.2 GiB',
            id="GPU memory",
        ),
        pytest.param(
            failed("ValueError: x", NUMPY_OOM, "ValueError: y"),
            '1 of 2 trials ran out of host memory and needed at least 8 GiB. Write memory="8.8GiB" in the policy, such '
            f'as CpuPolicy(memory="8.8GiB"), or {RETRY}',
            id="host memory, and then another error",
        ),
        pytest.param(
            failed(TORCH_OOM.replace("GPU 0 has a total capacity of 79.25 GiB of which 1.25 GiB is free.", "")),
            '1 of 2 trials ran out of GPU memory and needed at least 20 GiB. Write GpuMemoryPolicy(gpu_memory="22GiB") '
            "(its plan shows how many trials fit on a GPU)",
            id="GPU memory of a GPU of unknown size",
        ),
        pytest.param(
            failed("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            "1 of 2 trials ran out of GPU memory. An allocation of 2 GiB failed, but the errors do not contain the "
            f"memory in use, so {RETRY}",
            id="only the failed request, which may be a small part of the needed memory",
        ),
        pytest.param(
            failed("RuntimeError: CUDA error: out of memory"),
            f"1 of 2 trials ran out of GPU memory. The errors do not contain how much they needed, so {RETRY}",
            id="an unknown amount",
        ),
    ],
)
def test_the_errors_of_trials_are_enough_for_an_advice(tmp_path, error, advice):
    write(tmp_path, "a", json.dumps({"loss": 1}), error=error)
    write(tmp_path, "b", json.dumps({"loss": 1}), error=failed("ValueError: CUDA out of memory"))

    assert advice in load_usage(tmp_path).advice


OLD_TORCH = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.78 GiB total capacity; "
    "2.84 GiB already allocated; 1.12 GiB free; 3.02 GiB reserved in total by PyTorch) If reserved memory is >> "
    "allocated memory try setting max_split_size_mb to avoid fragmentation."
)
XLA = (
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.\n"
    "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    8.00GiB\n"
    "                 total allocation:   12.00GiB"
)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(
            OLD_TORCH,
            'GPU memory and needed at least 4.5 GiB (5.4 GiB with overhead). Write GpuMemoryPolicy(gpu_memory="6GiB"), '
            "with which 2 trials fit on a GPU of 15.8 GiB",
            id="PyTorch before 2.1",
        ),
        pytest.param(
            f"torch.OutOfMemoryError: {ASYNC_TORCH}17179869184.00 GiB",
            "GPU memory and needed at least 14.9 GiB (15.7 GiB with overhead). Write "
            'GpuMemoryPolicy(gpu_memory="17.3GiB"), with which 1 trial fits on a GPU of 24 GiB',
            id="PyTorch with cudaMallocAsync",
        ),
        pytest.param(f"torch.OutOfMemoryError: {XPU}", "GPU memory and needed at least 60.6 GiB (", id="Intel"),
        pytest.param(f"RuntimeError: {MPS}", "GPU memory and needed at least 19 GiB. Write", id="Apple"),
        pytest.param(
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2,147,483,648 bytes (allocated so far: "
            "3,221,225,472 bytes, limit set to: 4,294,967,296 bytes).",
            'GPU memory and needed at least 5 GiB (5.8 GiB with overhead). Write GpuMemoryPolicy(gpu_memory="6.5GiB")',
            id="CuPy",
        ),
        pytest.param(XLA, "GPU memory and needed at least 12 GiB (12.8 GiB with overhead). Write", id="JAX"),
        pytest.param(
            f"RuntimeError: {OLD_TORCH.partition(': ')[2].replace('CUDA', 'NPU').replace('GPU', 'NPU')}",
            f"NPU memory and needed at least 4.5 GiB, so {RETRY}",
            id="an NPU, for whose memory no policy has a field",
        ),
        pytest.param(
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 64.00G of "
            "32.00G hbm.",
            "TPU memory and needed at least 64 GiB, so use a smaller batch, or TPUs with more memory",
            id="a TPU, because a retry gets no more TPUs",
        ),
        pytest.param(
            f"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {TF_ON_GPU}",
            f"GPU memory. An allocation of 1 GiB failed, but the errors do not contain the memory in use, so {RETRY}",
            id="TensorFlow",
        ),
    ],
)
def test_the_amounts_in_the_errors_of_each_framework_are_used(tmp_path, error, advice):
    write(tmp_path, "a", error=failed(error))

    assert any(f"1 of 1 trial ran out of {advice}" in text for text in load_usage(tmp_path).advice)


@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param(
            ". GPU 0 has a total capacity of 15.77 GiB of which 19.06 MiB is free. Including non-PyTorch memory, this "
            "process has 15.74 GiB memory in use. Of the allocated memory 15.20 GiB is allocated by PyTorch, and "
            "176.99 MiB is reserved by PyTorch but unallocated.",
            id="PyTorch 2.1 or later",
        ),
        pytest.param(
            " (GPU 0; 15.90 GiB total capacity; 14.96 GiB already allocated; 11.75 MiB free; 15.10 GiB reserved in "
            "total by PyTorch)",
            id="PyTorch before 2.1",
        ),
    ],
)
def test_a_trial_that_filled_a_whole_gpu_needs_a_larger_one_and_no_retry(tmp_path, amounts):
    write(
        tmp_path, "a", error=failed(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB{amounts}")
    )
    write(tmp_path, "b")

    (advice,) = [text for text in load_usage(tmp_path).advice if "ran out of GPU memory" in text]

    assert "which needs a larger GPU than a GPU of 15." in advice
    assert not any("OomRetryScheduler" in text for text in load_usage(tmp_path).advice)


def torch_error(*, total, allocated, unallocated, outside, requested):
    """Return an error of PyTorch 2.1 or later in which the process used ``outside`` GiB outside the allocator."""
    in_use = allocated + unallocated + outside
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested:.2f} GiB. GPU 0 has a total "
        f"capacity of {total:.2f} GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has "
        f"{in_use:.2f} GiB memory in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and "
        f"{unallocated:.2f} GiB is reserved by PyTorch but unallocated."
    )


def old_torch_error(*, total, allocated, unallocated, outside, requested):
    """Return an error of PyTorch before 2.1, which does not contain the memory outside the allocator."""
    return (
        f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested:.2f} GiB (GPU 0; {total:.2f} "
        f"GiB total capacity; {allocated:.2f} GiB already allocated; 10.00 MiB free; {allocated + unallocated:.2f} GiB "
        "reserved in total by PyTorch)"
    )


gib = st.integers(1, 4000).map(lambda hundredths: hundredths / 100)


@given(
    text=st.sampled_from([torch_error, old_torch_error]),
    total=st.integers(400, 8000).map(lambda hundredths: hundredths / 100),
    allocated=gib,
    unallocated=st.floats(0, 2),
    outside=st.floats(0.05, 2),
    requested=gib,
)
def test_the_plan_of_an_advised_policy_leaves_tensors_what_the_error_needed(
    tmp_path_factory, text, total, allocated, unallocated, outside, requested
):
    folder = tmp_path_factory.mktemp("run")
    error = text(total=total, allocated=allocated, unallocated=unallocated, outside=outside, requested=requested)
    write(folder, "a", error=failed(error))
    needed_bytes = int((allocated + unallocated + requested) * GIB)

    for advice in load_usage(folder).advice:
        written = re.search(r"rite (Gpu\w*Policy\(.*?\)), (?:with which|because)", advice)
        if written is None:
            continue  # the advice is a larger GPU, or is not about a value
        (slot,) = eval(written[1]).plan(one_gpu(int(total * GIB))).slots
        left_bytes = int(total * GIB)
        if slot.has_gpu_fraction:
            left_bytes = slot.gpu_memory_bytes - safe_overhead_bytes("torch")
        assert left_bytes >= needed_bytes - GIB // 50  # the numbers in an error are rounded to 0.01 GiB


@pytest.mark.parametrize(
    ("num_fit", "gpus", "kept"),
    [
        pytest.param(11, 0.25, "4 per GPU", id="on a simulated GPU"),
        pytest.param(1, None, "the resources of the trials", id="half of the trials, with unknown usage"),
    ],
)
def test_if_at_most_half_of_the_trials_ran_out_the_advice_is_also_to_retry_only_these(num_fit, gpus, kept):
    usage = None
    if gpus:
        usage = GpuMemoryUsage(gpus=gpus)
    failure = MemoryFailure(kind="accelerator", needed_bytes=10 * GIB)
    ran_out = TrialGpuMemory(name="a", usage=usage, failures=(failure,))
    trials = (ran_out, *(TrialGpuMemory(name=f"b{number}", usage=usage) for number in range(num_fit)))

    advice = advice_of_run(RunUsage(trials=trials))

    (position,) = [index for index, text in enumerate(advice) if 'Write GpuMemoryPolicy(gpu_memory="11GiB")' in text]
    assert advice[position + 1] == (
        f"{num_fit} of {num_fit + 1} trials fit, so it may be cheaper to keep {kept}, and to retry the others with "
        "more memory: scheduler=OomRetryScheduler()"
    )


def test_a_trial_that_fits_only_on_a_whole_gpu_is_not_advised_to_get_a_larger_gpu():
    """No overhead is subtracted from a whole GPU."""
    failure = MemoryFailure(
        kind="accelerator", needed_bytes=int(15.5 * GIB), allocator_bytes=int(15.4 * GIB), device_bytes=16 * GIB
    )

    advice = advice_of_run(RunUsage(trials=(TrialGpuMemory(name="a", failures=(failure,)),)))

    assert any("Write GpuPolicy(), because 1 trial fits on a GPU of 16 GiB" in text for text in advice)


@pytest.mark.parametrize(
    ("limit_gib", "advice"),
    [
        pytest.param(3.15, "needed at least 3.7 GiB (4.4 GiB with overhead). Write", id="the safe overhead"),
        pytest.param(3.9, "so the value is a guess", id="a small measured overhead"),
    ],
)
def test_the_fraction_is_too_small_if_what_the_allocator_needed_exceeds_its_limit(limit_gib, advice):
    """The fraction is 4 GiB. The process used 0.2 GiB outside the allocator."""
    failure = MemoryFailure(kind="accelerator", needed_bytes=int(3.7 * GIB), allocator_bytes=int(3.5 * GIB))
    usage = used(3, share_gib=4, gpus=0.25, num_ooms=1, limit_bytes={"torch": int(limit_gib * GIB)})

    (found,) = advice_of_run(RunUsage(trials=(TrialGpuMemory(name="a", usage=usage, failures=(failure,)),)))

    assert advice in found


def test_errors_that_a_record_explains_better_cause_no_second_advice(tmp_path):
    write(tmp_path, "a", error=failed(f"{TORCH_OOM}\n{report(used(7, num_ooms=1))}"))

    assert sum("ran out" in line for line in load_usage(tmp_path).advice) == 1


def torch_failure(usage, *, in_use, allowed=""):
    """Return the failure of a trial that requested 2 GiB. The GPU has 16 GiB, and 1 GiB of them is free."""
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 "
        f"GiB of which 1.00 GiB is free. This process has {in_use} memory in use. {allowed}Of the allocated memory "
        f"{in_use} is allocated by PyTorch."
    )
    return failed(f"{error}\n{OomReport(out_of_memory=classify_oom_text(error), gpu_memory=usage).to_note()}")


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(used(3, num_ooms=1), id="known GPU memory"),
        pytest.param(GpuMemoryUsage(gpus=0.5, num_ooms=1), id="a simulated GPU"),
    ],
)
def test_a_trial_within_its_fraction_on_a_full_gpu_is_not_advised_to_get_a_larger_fraction(tmp_path, usage):
    write(tmp_path, "a", error=torch_failure(usage, in_use="4.00 GiB"))

    advice = [text for text in load_usage(tmp_path).advice if "ran out" in text or "per GPU" in text]

    assert advice == [
        "1 of 1 trial ran out of GPU memory at 6.0 of its 8.0 GiB, because other processes filled the GPU. Stop the "
        "other programs that nvidia-smi lists, or retry such trials: scheduler=OomRetryScheduler()"
    ]


def full_gpu(needed_gib, cause="neighbour"):
    return MemoryFailure(kind="accelerator", needed_bytes=needed_gib * GIB, device_bytes=16 * GIB, cause=cause)


@pytest.mark.parametrize(
    ("failed_last", "failures"),
    [
        pytest.param(False, [full_gpu(3)], id="a retry on another GPU ended"),
        pytest.param(True, [full_gpu(5, cause="own_limit"), full_gpu(7)], id="all retries failed"),
    ],
)
def test_after_retries_no_value_is_advised_if_other_processes_filled_the_gpu(failed_last, failures):
    trial = TrialGpuMemory(
        name="a",
        usage=GpuMemoryUsage(gpus=0.5, num_ooms=int(failed_last)),
        of_smaller_shares=(GpuMemoryUsage(gpus=0.25, num_ooms=1),),
        failures=tuple(failures),
    )
    record = ResourceUsage(trials=TrialCounts(num_retries=1))

    advice = advice_of_run(RunUsage(trials=(trial,)), record)

    assert any("because other processes filled the GPU" in text for text in advice)
    assert not any("rite Gpu" in text or "start with" in text for text in advice)


def test_after_retries_that_failed_the_advice_is_neither_their_amount_nor_retries():
    trial = TrialGpuMemory(
        name="a",
        usage=GpuMemoryUsage(gpus=0.5, num_ooms=1),
        of_smaller_shares=(GpuMemoryUsage(gpus=0.25, num_ooms=1),),
        failures=(MemoryFailure(kind="accelerator", needed_bytes=31 * GIB, device_bytes=40 * GIB),),
    )
    record = ResourceUsage(
        trials=TrialCounts(num_retries=1), raised=RaisedMemory(gpus=0.5), ran_out_with={"a": {"GPU": 0.5}}
    )

    assert advice_of_run(RunUsage(trials=(trial,)), record) == [
        '1 of 1 trial ran out of GPU memory and needed at least 31 GiB. Write GpuMemoryPolicy(gpu_memory="34.1GiB"), '
        "with which 1 trial fits on a GPU of 40 GiB"
    ]


def test_a_whole_gpu_that_other_processes_filled_is_not_too_small(tmp_path):
    write(tmp_path, "a", error=torch_failure(used(3, gpus=1, num_ooms=1), in_use="4.00 GiB"))

    assert not any("use a GPU with more memory" in text for text in load_usage(tmp_path).advice)


def test_the_needed_memory_in_an_error_is_advised_if_it_exceeds_the_fraction(tmp_path):
    usage = used(3.2, share_gib=4, gpus=0.25, num_ooms=1)
    write(tmp_path, "a", error=torch_failure(usage, in_use="3.50 GiB", allowed="3.60 GiB allowed; "))

    assert load_usage(tmp_path).advice[0] == (
        "1 of 1 trial ran out of memory with 4.0 GiB and needed at least 5.5 GiB (6.3 GiB with overhead). Write "
        'GpuMemoryPolicy(gpu_memory="7GiB"), with which 2 trials fit on a GPU of 16 GiB, or retry such trials with '
        "more memory: scheduler=OomRetryScheduler()"
    )


def test_a_run_without_gpus_gets_no_advice_about_gpus_if_a_trial_has_no_result(tmp_path):
    process = {"elapsed_s": 10, "cpus": 1, "cpu_s": 5, "host_memory_bytes": GIB}
    write(tmp_path, "a", json.dumps({"usage": process}) + "\n")
    write(tmp_path, "b", error=failed("ValueError: no"))

    assert not any("GPU" in text for text in load_usage(tmp_path).advice)


def trial_of(name, *gibs_of_failures, last_gib=8, ran_out=False):
    smaller = tuple(used(gib, share_gib=gib, gpus=gib / 16, num_ooms=1) for gib in gibs_of_failures)
    last = used(last_gib - 2, share_gib=last_gib, gpus=last_gib / 16, num_ooms=int(ran_out))
    return TrialGpuMemory(name=name, usage=last, of_smaller_shares=smaller)


def test_no_value_without_retries_is_advised_if_other_trials_failed_with_more():
    trials = (trial_of("a", 4), *(trial_of(name, 4, ran_out=True) for name in "bcd"))

    advice = advice_of_run(RunUsage(trials=trials))

    assert any(text.startswith("3 of 4 trials ran out of memory with 8.0 GiB") for text in advice)
    assert not any("without retries" in text or "keep the retries" in text for text in advice)


def test_the_need_of_host_memory_is_no_need_of_gpu_memory():
    host = MemoryFailure(kind="host", needed_bytes=64 * GIB)
    gpu = MemoryFailure(kind="accelerator", device_bytes=16 * GIB)
    trial = TrialGpuMemory(name="a", usage=used(3.5, share_gib=4, gpus=0.25, num_ooms=1), failures=(host, gpu))

    advice = advice_of_run(RunUsage(trials=(trial,)))

    assert not any("GPU" in text and "64" in text for text in advice)


@pytest.mark.parametrize(("num_failures", "claims_success"), [(1, True), (2, False)])
def test_more_host_memory_was_enough_only_if_the_last_slot_did_not_fail(num_failures, claims_success):
    failure = MemoryFailure(kind="host", needed_bytes=2 * GIB)
    trial = TrialGpuMemory(
        name="a", host_memory_bytes=2 * GIB, slots=("1 CPU, 1 GiB", "1 CPU, 2 GiB"), failures=(failure,) * num_failures
    )

    (advice,) = (text for text in advice_of_run(RunUsage(trials=(trial,))) if "host memory" in text)

    assert ("more memory was enough" in advice) is claims_success


@pytest.mark.parametrize(("failed_with", "is_advised"), [({}, True), ({"a": {"memory": 4 * GIB}}, False)])
def test_an_amount_of_host_memory_with_which_a_retry_failed_is_not_advised(failed_with, is_advised):
    record = ResourceUsage(
        trials=TrialCounts(num_finished=3, num_failed=1, num_retries=1),
        raised=RaisedMemory(memory_bytes=4 * GIB),
        raised_trials={"a": ("memory",)},
        ran_out_with=failed_with,
    )

    assert any("start with memory=" in text for text in record.advice) is is_advised


def test_a_copy_for_publication_has_no_names_of_the_cluster_and_no_errors():
    sources = {"process_bytes": "unknown, because NVIDIA's driver cannot be queried: /home/bob/x on host7"}
    trial = TrialGpuMemory(
        name="a", slots=("1 CPU, 1 acme_secret_node",), usage=GpuMemoryUsage(gpus=0.5, sources=sources)
    )

    text = RunUsage(trials=(trial,)).redacted().to_json()

    assert not any(name in text for name in ("acme", "bob", "host7"))
    assert "cannot be queried" in text


@pytest.mark.parametrize(
    ("requested_gib", "advice"),
    [
        (20, 'needed at least 20.0 GiB (20.8 GiB with overhead). Write GpuMemoryPolicy(gpu_memory="23GiB"), with'),
        (2, "so the value is a guess"),
    ],
)
def test_a_failed_request_alone_is_the_need_only_if_it_exceeds_the_fraction(requested_gib, advice):
    failure = MemoryFailure(kind="accelerator", requested_bytes=requested_gib * GIB)
    usage = GpuMemoryUsage(gpus=0.125, share_bytes=5 * GIB, device_bytes=40 * GIB, num_ooms=1)

    found = advice_of_run(RunUsage(trials=(TrialGpuMemory(name="a", usage=usage, failures=(failure,)),)))

    assert advice in found[0]
