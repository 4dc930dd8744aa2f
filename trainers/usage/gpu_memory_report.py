"""Shows the GPU memory of a run's trials as tables with advice.

The advice states how many trials would fit on a GPU, and which trials had problems.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.plan.headroom import memory_to_write
from tune_policies.values.resources import TICKS, amount_of, to_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.wording import counted, shorten_names

from .advice import trials_per_gpu
from .advised_memory import (
    amount_to_write,
    equal_part_to_write,
    gpu_memory_to_write,
    gpus_to_write,
    trials_with,
)
from .gpu_memory_records import (
    GpuMemoryUsage,
    MemoryFailure,
    RunUsage,
    TrialGpuMemory,
    bytes_to_plan,
    device_bytes,
    failure_bytes_to_plan,
    has_assumed_overhead,
    needed_bytes,
)
from .resource_usage import ResourceUsage

RETRY: Final = "scheduler=OomRetryScheduler()"
"""The argument with which a run retries trials that ran out of memory."""

_RETRY_WITH_MORE: Final = f"retry such trials with more memory: {RETRY}"

_NOTHING_REPORTED: Final = (
    "no trial reported its GPU memory. Only trials that have a GPU and run under a PolicyScheduler report it. With "
    "resources_per_trial alone, a trial's GPU memory is not limited"
)


_NOTHING_OF_WORKERS: Final = (
    "no worker reported its GPU memory. Only workers that have a GPU report it, and only in trainers of this package, "
    "such as build_torch_trainer"
)

_RETRY_WORKERS: Final = "fit_with_oom_retry(build_trainer, plan)"
"""The call that retries a Train run whose workers ran out of memory."""


class Verdict(Enum):
    """Whether a process stayed within its GPU fraction, exceeded it, or ran out of memory."""

    WITHIN = "within its fraction"
    BEYOND = "beyond its fraction"
    OUT_OF_MEMORY = "ran out of memory"

    @classmethod
    def of(cls, usage: GpuMemoryUsage) -> "Verdict":
        """Return the verdict on the memory use of a process."""
        if usage.num_ooms:
            return cls.OUT_OF_MEMORY
        if usage.share_kept is False:
            return cls.BEYOND
        return cls.WITHIN


def share_or_device_bytes(usage: GpuMemoryUsage) -> int:
    """Return the memory of the GPU fraction, or else of the device, in bytes, or 0 if neither is known."""
    return usage.share_bytes or device_bytes(usage) or 0


def share_text(usage: GpuMemoryUsage) -> str:
    """Return the memory of the GPU fraction as text, or the number of GPUs if the memory is not known."""
    if usage.share_bytes:
        return format_bytes(usage.share_bytes)
    if usage.gpus:
        return amount_of(usage.gpus, "GPU")
    return "not known"


def advise_on_failures(run: RunUsage, record: ResourceUsage | None) -> Iterator[str]:
    """Yield sentences about trials that ran out of memory according to their error files.

    Failures are omitted if the usage of the trial, or the record of a run with retries, leads to an advice.
    """
    crowded = list(filter(is_crowded_out, run.trials))
    has_retries = record is not None and record.trials.num_retries > 0
    if crowded:
        yield _about_full_gpus(crowded, len(run.trials), has_retries=has_retries)
    is_host_explained = record is not None and record.has_enough_memory_after_retries
    of_kind: dict[str, list[TrialGpuMemory]] = {"accelerator": [], "host": []}
    for trial in run.trials:
        kinds = {failure.kind for failure in trial.failures}
        if "accelerator" in kinds and not _is_explained_by_usage(trial):
            of_kind["accelerator"].append(trial)
        if "host" in kinds and not is_host_explained:
            of_kind["host"].append(trial)
    if of_kind["accelerator"]:
        yield from _advise_on_gpu_errors(of_kind["accelerator"], run, has_retries=has_retries)
    if of_kind["host"]:
        yield _advise_on_host_errors(of_kind["host"], len(run.trials), has_retries=has_retries)


def _is_explained_by_usage(trial: TrialGpuMemory) -> bool:
    """Return whether the usage of a trial shows with how much GPU memory it ran out of memory, or did not."""
    if is_retried_with_larger_share(trial) or is_crowded_out(trial):
        return True
    return any(usage.num_ooms and device_bytes(usage) for usage in trial.usages)


def is_retried_with_larger_share(trial: TrialGpuMemory) -> bool:
    """Return whether a trial ran out of memory with a GPU fraction, and not with its largest fraction."""
    ran_out = any(usage.num_ooms for usage in trial.of_smaller_shares)
    return ran_out and trial.usage is not None and not trial.usage.num_ooms


def is_crowded_out(trial: TrialGpuMemory) -> bool:
    """Return whether a trial ran out of GPU memory only because other processes filled the GPU.

    The trial was within its last GPU fraction or its whole GPU, so a larger fraction is not the remedy.
    """
    failures = [failure for failure in trial.failures if failure.kind == "accelerator"]
    had_bytes = _reserved_bytes(trial)
    if not failures or had_bytes is None:
        return False
    last = failures[-1]
    is_by_others = last.cause == "neighbour"
    return is_by_others and last.needed_bytes is not None and 0 < last.needed_bytes <= had_bytes


def _reserved_bytes(trial: TrialGpuMemory) -> int | None:
    """Return the memory that a trial reserved when it last ran out of memory, in bytes, or ``None`` if it is unknown.

    It is the memory of its GPU fraction or of its whole GPU.
    """
    if not trial.usages:
        return None
    ran_out = [usage for usage in trial.usages if usage.num_ooms]
    # If no record contains the failure, the trial had at least its smallest fraction.
    last = ran_out[-1] if ran_out else trial.usages[0]
    had_bytes = share_or_device_bytes(last)
    sizes = [failure.device_bytes for failure in trial.failures if failure.device_bytes]
    if not had_bytes and sizes and last.gpus:  # the GPU is simulated
        had_bytes = int(min(1.0, last.gpus) * min(sizes))
    return had_bytes or None


def _about_full_gpus(trials: list[TrialGpuMemory], num_trials: int, *, has_retries: bool) -> str:
    needs = [failure.needed_bytes for failure in _gpu_failures(trials) if failure.needed_bytes]
    reserved = min(filter(None, map(_reserved_bytes, trials)))
    its = "its" if len(trials) == 1 else "their"
    text = (
        f"{len(trials)} of {counted(num_trials, 'trial')} ran out of GPU memory at {_gib(max(needs))} of {its} "
        f"{_gib(reserved)} GiB, because other processes filled the GPU. Stop the other programs that nvidia-smi lists"
    )
    if has_retries:
        return text
    return f"{text}, or retry such trials: {RETRY}"


def _gpu_failures(trials: list[TrialGpuMemory]) -> list[MemoryFailure]:
    return [failure for trial in trials for failure in trial.failures if failure.kind == "accelerator"]


def _advise_on_gpu_errors(trials: list[TrialGpuMemory], run: RunUsage, *, has_retries: bool) -> Iterator[str]:
    of_device: dict[str, list[TrialGpuMemory]] = defaultdict(list)
    for trial in trials:
        of_device[_gpu_failures([trial])[-1].device].append(trial)
    for device, group in sorted(of_device.items()):
        text = f"{len(group)} of {counted(len(run.trials), 'trial')} ran out of {device} memory"
        failures = [failure for failure in _gpu_failures(group) if failure.device == device]
        needs = [failure.needed_bytes for failure in failures if failure.needed_bytes]
        if not needs:
            yield f"{text}. {_without_needs(failures, has_retries=has_retries)}"
        elif device != "GPU":  # the policies for other devices have no field for memory
            remedy = _remedy_for(failures, has_retries=has_retries)
            yield f"{text} and needed at least {format_bytes(max(needs))}, so {remedy}"
        else:
            yield from _about_needs(text, group, run, has_retries=has_retries)


def _without_needs(failures: list[MemoryFailure], *, has_retries: bool) -> str:
    """Return what to do if the errors do not contain how much memory a trial needed."""
    remedy = _remedy_for(failures, has_retries=has_retries)
    requests = [failure.requested_bytes for failure in failures if failure.requested_bytes]
    if not requests:
        return f"The errors do not contain how much they needed, so {remedy}"
    largest = format_bytes(max(requests))
    return f"An allocation of {largest} failed, but the errors do not contain the memory in use, so {remedy}"


def _remedy_for(failures: list[MemoryFailure], *, has_retries: bool) -> str:
    device = failures[-1].device
    if device not in ("GPU", "NPU"):  # trials have whole devices, and a retry does not get more of them
        return f"use a smaller batch, or {device}s with more memory"
    if has_retries:
        return f"use a larger max_gpus, or {device}s with more memory"
    return _RETRY_WITH_MORE


def _about_needs(text: str, trials: list[TrialGpuMemory], run: RunUsage, *, has_retries: bool) -> Iterator[str]:
    """Yield the policies to write for trials whose errors contain how much GPU memory they needed."""
    failures = _gpu_failures(trials)
    needed = max(failure.needed_bytes for failure in failures if failure.needed_bytes)
    to_plan = max(map(_bytes_to_plan_of, trials))
    size = min((failure.device_bytes for failure in failures if failure.device_bytes), default=None)
    on_whole_gpu = _needed_on_whole_gpu(failures, needed, size)
    first, *others = gpu_memory_to_write(to_plan, size, on_whole_gpu_bytes=on_whole_gpu)
    text += f" and needed at least {_needed_text(format_bytes(needed), format_bytes(to_plan))}. Write {first}"
    hints = []
    needs_larger_gpu = size is not None and on_whole_gpu > size
    if not has_retries and not needs_larger_gpu:  # a retry gets at most a whole GPU
        hints = list(_hint_to_retry(run.trials))
        if not hints:
            text += f", or {_RETRY_WITH_MORE}"
    yield text
    yield from (f"or write {choice}" for choice in others)
    yield from hints


def _needed_on_whole_gpu(failures: list[MemoryFailure], needed_bytes: int, device_bytes: int | None) -> int:
    """Return the memory that a whole GPU must have, in bytes: more than the GPU that a trial filled alone."""
    if device_bytes is not None and any(failure.fills_device for failure in failures):
        return max(needed_bytes, device_bytes + 1)
    return needed_bytes


def _bytes_to_plan_of(trial: TrialGpuMemory, least_request: int | None = None) -> int:
    """Return the memory to plan for a trial that failed, in bytes, or 0 if it is not known.

    Args:
        trial: The trial.
        least_request: The size above which a failed request counts if its error contains no other amount.
    """
    most = 0
    for failure in _gpu_failures([trial]):
        is_large = least_request is not None and (failure.requested_bytes or 0) > least_request
        if failure.needed_bytes or is_large:
            most = max(most, failure_bytes_to_plan(failure, trial.usage) or 0)
    return most


def _needed_text(needed: str, to_plan: str) -> str:
    """Return the memory that a trial needed, and in parentheses the memory to plan if it differs."""
    if needed == to_plan:
        return needed
    return f"{needed} ({to_plan} with overhead)"


def _hint_to_retry(trials: Sequence[TrialGpuMemory]) -> Iterator[str]:
    """Yield the hint to retry only the trials that ran out of GPU memory, if they are at most half of the trials.

    Then a larger amount for all trials may cost more than it saves.
    """
    num_fit = sum(not _has_run_out(trial) for trial in trials)
    if num_fit < len(trials) / 2:
        return
    sizes = {trial.usage.gpus for trial in trials if trial.usage is not None}
    kept = "the resources of the trials"
    if len(sizes) == 1:
        (gpus,) = sizes
        if gpus and gpus <= 1:
            kept = f"{_num_per_gpu(gpus)} per GPU"
    yield _hint_to_keep(kept, num_fit, len(trials))


def _hint_to_keep(kept: str, num_fit: int, num_trials: int) -> str:
    return (
        f"{num_fit} of {counted(num_trials, 'trial')} fit, so it may be cheaper to keep {kept}, and to retry the "
        f"others with more memory: {RETRY}"
    )


def _has_run_out(trial: TrialGpuMemory) -> bool:
    return bool(_gpu_failures([trial])) or any(usage.num_ooms for usage in trial.usages)


def _advise_on_host_errors(trials: list[TrialGpuMemory], num_trials: int, *, has_retries: bool) -> str:
    failures = [failure for trial in trials for failure in trial.failures if failure.kind == "host"]
    needs = [failure.needed_bytes for failure in failures if failure.needed_bytes]
    needs += [trial.host_memory_bytes for trial in trials if trial.host_memory_bytes]
    text = f"{len(trials)} of {counted(num_trials, 'trial')} ran out of host memory"
    if not needs:
        return f"{text}. The errors do not contain how much they needed, so {_RETRY_WITH_MORE}"
    to_write = memory_to_write(max(needs))
    field = f'memory="{to_write}" in the policy, such as CpuPolicy(memory="{to_write}")'
    if all(map(_was_more_memory_enough, trials)):
        return f"{text}, and more memory was enough. To run without retries, write {field}"
    text += f" and needed at least {format_bytes(max(needs))}. Write {field}"
    if has_retries:
        return text
    return f"{text}, or {_RETRY_WITH_MORE}"


def _was_more_memory_enough(trial: TrialGpuMemory) -> bool:
    """Return whether the last slot of a trial is not one in which it ran out of host memory."""
    num_failures = sum(failure.kind == "host" for failure in trial.failures)
    return num_failures < len(trial.slots)


def about_gpu_memory(run: RunUsage, record: ResourceUsage | None) -> list[str]:
    """Return sentences about GPU memory, or an empty list if ``record`` shows no trial with a GPU."""
    known = [trial for trial in run.trials if trial.usage is not None]
    if is_without_gpus(run, record) or not run.trials:
        return []
    if not known:
        return [_NOTHING_OF_WORKERS if run.folder_of == "train" else _NOTHING_REPORTED]
    has_advice = record is not None and any(slot.advice for slot in record.slots)
    about_size = _about_size(known, has_advice=has_advice)
    if _has_workers(run, record):
        about_size = _about_workers(known)
    return [*about_size, *_advise_on_retries(known), *_advise_on_problems(known)]


def _has_workers(run: RunUsage, record: ResourceUsage | None) -> bool:
    """Return whether the run is a Train run, or its trials had Train workers according to the record."""
    if run.folder_of == "train":
        return True
    return record is not None and any(slot.use is not None and slot.use.num_workers for slot in record.slots)


def _about_workers(trials: list[TrialGpuMemory]) -> Iterator[str]:
    """Yield sentences about the memory of Train workers, whose requests no LearningPolicy and no scheduler changes."""
    for (device, gpus), group in sorted(_by_size(trials).items()):
        usages = _usages(group)
        share = _gib(usages[0].share_bytes or device)
        to_plan = max((need for need in map(bytes_to_plan, usages) if need), default=None)
        if _ran_out(group) and gpus == 1:
            yield f"workers ran out of memory with {share} GiB (a whole GPU), so use a GPU with more memory"
        elif _ran_out(group):
            yield f"workers ran out of memory with {share} GiB. Retry the run with more memory: {_RETRY_WORKERS}"
        elif to_plan is not None:
            text = f"the peak of a worker was {_peak_text(usages)} of {share} GiB{_with_overhead(usages)}"
            amount = amount_to_write(to_plan, device)
            if trials_with(amount, device):
                text += f', for which GpuMemoryPolicy(gpu_memory="{amount}") is enough'
            yield text


def _peak_text(usages: list[GpuMemoryUsage]) -> str:
    return _gib(max(need for need in map(needed_bytes, usages) if need))


def _with_overhead(usages: list[GpuMemoryUsage]) -> str:
    """Return the memory to plan as text in parentheses, or an empty text if it is as large as the peak."""
    to_plan = _gib(max(need for need in map(bytes_to_plan, usages) if need))
    if to_plan == _peak_text(usages):
        return ""
    return f" ({to_plan} GiB with overhead)"


def _by_size(trials: list[TrialGpuMemory]) -> dict[tuple[int, float], list[TrialGpuMemory]]:
    """Return the trials with at most one GPU, keyed by the memory of the device and the number of GPUs."""
    alike: dict[tuple[int, float], list[TrialGpuMemory]] = defaultdict(list)
    for trial in trials:
        usage = trial.usage
        if usage is None or not usage.gpus or usage.gpus > 1:  # the memory use of each of several GPUs is not known
            continue
        device = device_bytes(usage)
        if device:
            alike[device, usage.gpus].append(trial)
    return alike


def _about_size(trials: list[TrialGpuMemory], *, has_advice: bool) -> Iterator[str]:
    alike = _by_size(trials)
    of_all = [trial for group in alike.values() for trial in group]
    # The record also contains how busy the GPUs were, and a trial that was crowded out needed more than its peak.
    is_fit_known = not has_advice and not any(map(is_crowded_out, of_all))
    # A LearningPolicy learns from all trials of a run, so what it would do does not follow from one of several groups.
    measured = {key for key, group in alike.items() if any(map(needed_bytes, _usages(group)))}
    if is_fit_known and len(measured) > 1 and not _ran_out(of_all):
        for device in sorted({device for device, _ in measured}):
            fit = trials_per_gpu(of_all, device)
            yield f"LearningPolicy() would run {fit} of these trials at once on a GPU of {format_bytes(device)}"
    is_one_group = len(measured) == 1 and not _ran_out(of_all)
    for (device, gpus), group in sorted(alike.items()):
        ran_out = _ran_out(group)
        if ran_out:
            yield from _about_too_small_share(device, gpus, group, ran_out)
        else:
            yield from _about_peaks(device, gpus, group, is_fit_known=is_fit_known and is_one_group)


def _ran_out(trials: list[TrialGpuMemory]) -> list[TrialGpuMemory]:
    """Return the trials that ran out of memory with their largest GPU fraction, because of their own use."""
    return [trial for trial in trials if trial.usage and trial.usage.num_ooms and not is_crowded_out(trial)]


def _usages(trials: list[TrialGpuMemory]) -> list[GpuMemoryUsage]:
    return [trial.usage for trial in trials if trial.usage is not None]


def _num_per_gpu(gpus: float) -> int:
    return TICKS // to_ticks(gpus) if gpus < 1 else 1


def _about_too_small_share(
    device: int, gpus: float, trials: list[TrialGpuMemory], ran_out: list[TrialGpuMemory]
) -> Iterator[str]:
    """Yield what to write if trials with the same GPU fraction and device memory needed more than this fraction."""
    now = _num_per_gpu(gpus)
    usages = _usages(trials)
    share = usages[0].share_bytes or device
    text = f"{len(ran_out)} of {counted(len(trials), 'trial')} ran out of memory with {_gib(share)} GiB"
    if now == 1:
        yield f"{text} (a whole GPU), so use a GPU with more memory"
        return
    # A failed request alone is also a lower bound, which is useful if it exceeds the fraction.
    amounts = [failure.needed_bytes or failure.requested_bytes for failure in _gpu_failures(ran_out)]
    needed = max((amount for amount in amounts if amount), default=0)
    to_plan = max((_bytes_to_plan_of(trial, least_request=share) for trial in ran_out), default=0)
    needs_larger_gpu = False
    # The errors show how much was needed only if every trial has one, and if the amounts exceed the fraction.
    if all(_gpu_failures([trial]) for trial in ran_out) and to_plan > share:
        with_peaks = max([to_plan, *(need for need in map(bytes_to_plan, usages) if need)])
        on_whole_gpu = _needed_on_whole_gpu(_gpu_failures(ran_out), needed, device)
        on_whole_gpu = max([on_whole_gpu, *(need for need in map(needed_bytes, usages) if need)])
        needs_larger_gpu = on_whole_gpu > device
        first, *others = gpu_memory_to_write(with_peaks, device, on_whole_gpu_bytes=on_whole_gpu)
        text += f" and needed at least {_needed_text(f'{_gib(needed)} GiB', f'{_gib(to_plan)} GiB')}. Write {first}"
        if len(ran_out) > len(trials) / 2 and not needs_larger_gpu:
            text += f", or {_RETRY_WITH_MORE}"
        yield text
        yield from (f"or write {choice}" for choice in others)
    else:
        fit = trials_per_gpu(trials, device)
        policy = "GpuPolicy()"
        if fit > 1:
            policy = f'GpuMemoryPolicy(gpu_memory="{equal_part_to_write(device, fit)}")'
        guess = "How much more is not known, so the value is a guess"
        text += f", and needed at least {_gib(share)} GiB. {guess}. Write {policy}, with {fit} per GPU instead of {now}"
        if len(ran_out) > len(trials) / 2:
            text += f", or {_RETRY_WITH_MORE}"
        yield text
    # A larger fraction for all trials is not worth it if only a few of them need it.
    if len(ran_out) <= len(trials) / 2 and not needs_larger_gpu:
        yield _hint_to_keep(f"{now} per GPU", len(trials) - len(ran_out), len(trials))


def _about_peaks(device: int, gpus: float, trials: list[TrialGpuMemory], *, is_fit_known: bool) -> Iterator[str]:
    """Yield a sentence about the peaks of trials with the same GPU fraction and device memory."""
    now = _num_per_gpu(gpus)
    usages = _usages(trials)
    if not any(map(needed_bytes, usages)):
        return
    share = _gib(usages[0].share_bytes or device)
    text = f"the peak was {_peak_text(usages)} of {share} GiB{_with_overhead(usages)}"
    if not is_fit_known:
        yield text
        return
    fit = trials_per_gpu(trials, device)
    if fit == now:
        yield f"{text}, so {counted(now, 'trial')} per GPU is right"
    else:
        yield f"{text}, so LearningPolicy() would run {fit} per GPU instead of {now}"


def _advise_on_retries(trials: list[TrialGpuMemory]) -> Iterator[str]:
    """Yield sentences about trials that ran out of memory with one GPU fraction, but not with a larger fraction."""
    fitted: dict[tuple[str, str], list[TrialGpuMemory]] = defaultdict(list)
    retried = list(filter(is_retried_with_larger_share, trials))
    for trial in retried:
        ran_out_of = [usage for usage in trial.of_smaller_shares if usage.num_ooms]
        assert trial.usage is not None  # noqa: S101  # such a trial has usage
        fitted[_share(ran_out_of[-1]), _share(trial.usage)].append(trial)
    for (small, large), chosen in sorted(fitted.items()):
        yield f"{counted(len(chosen), 'trial')} ran out of memory with {small}, but not with {large}: {_names(chosen)}"
    needed_more = [trial for trial in retried if not is_crowded_out(trial)]
    is_not_enough = any(trial.usage and trial.usage.num_ooms and not is_crowded_out(trial) for trial in trials)
    if not needed_more or is_not_enough:  # another sentence is about trials that also failed with more
        return
    first, *others = _choices_without_retries(needed_more)
    text = f"to run without retries, write {first}"
    num_fit = sum(not any(usage.num_ooms for usage in trial.usages) for trial in trials)
    if num_fit >= len(trials) / 2:
        text += f". Because {num_fit} of {counted(len(trials), 'trial')} fit, it may be cheaper to keep the retries"
    yield text
    for choice in others:
        yield f"or write {choice}"


def _choices_without_retries(trials: list[TrialGpuMemory]) -> list[str]:
    """Return what to write so that trials like these retried trials do not run out of memory."""
    usages = _usages(trials)
    needs = [need for need in map(bytes_to_plan, usages) if need]
    sizes = [size for size in map(device_bytes, usages) if size]
    if needs:
        on_whole_gpu = max(need for need in map(needed_bytes, usages) if need)
        return gpu_memory_to_write(max(needs), min(sizes, default=None), on_whole_gpu_bytes=on_whole_gpu)
    # The GPUs are simulated. The errors contain only what was too little, so the value is the fraction that was enough.
    return [gpus_to_write(max(usage.gpus or 0 for usage in usages))]


def _advise_on_problems(trials: list[TrialGpuMemory]) -> Iterator[str]:
    beyond = [trial for trial in trials if any(usage.share_kept is False for usage in trial.usages)]
    if beyond:
        yield f"{counted(len(beyond), 'trial')} exceeded the GPU fraction: {_names(beyond)}"
    leaking = [trial for trial in trials if any(usage.left_over_bytes for usage in trial.usages)]
    if leaking:
        started = f"{counted(len(leaking), 'trial')} started with memory that an earlier trial had not released"
        yield f"{started}: {_names(leaking)}"
    loose = [trial for trial in trials if any(usage.not_enforceable for usage in trial.usages)]
    if loose:
        frameworks = sorted({name for trial in loose for usage in trial.usages for name in usage.not_enforceable})
        yield f"the GPU memory of {', '.join(frameworks)} was not limited: {_names(loose)}"
    yield from dict.fromkeys(warning for trial in trials for usage in trial.usages for warning in usage.warnings)


def _names(trials: list[TrialGpuMemory]) -> str:
    return shorten_names([trial.name for trial in trials])


def _share(usage: GpuMemoryUsage) -> str:
    had = share_or_device_bytes(usage)
    if had:
        return f"{_gib(had)} GiB"
    return amount_of(usage.gpus or 0, "GPU")


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f}"


_BAR: Final = 40
"""The length of each bar, in characters. A full bar represents the whole GPU fraction of a trial."""


def is_without_gpus(run: RunUsage, record: ResourceUsage | None) -> bool:
    """Return whether the trials, or the record of their run, show that no trial had a GPU."""
    if any(trial.usage for trial in run.trials):
        return False
    if record is None:  # the results of a trial with a GPU contain its GPU memory next to the usage of its process
        has_gpu_failure = bool(_gpu_failures(list(run.trials)))
        return any(trial.process for trial in run.trials) and not has_gpu_failure
    return not any(slot.hours.get("GPU") for slot in record.slots)


def _has_row(run: RunUsage) -> bool:
    """Return whether a trial reported its GPU memory or ran out of memory."""
    return any(trial.usages or trial.failures for trial in run.trials)


_UNKNOWN: Final = "not known"
_NOTHING: Final = "-"


def gpu_memory_view(run: RunUsage, record: ResourceUsage | None) -> RenderableType | None:
    """Return the table of trials, without columns in which nothing is known, and the reason below it.

    Without GPUs, or if no trial reported its GPU memory or ran out of memory, return ``None``.
    """
    if is_without_gpus(run, record) or not _has_row(run):
        return None
    headings = ("Fraction", "Limit", "Peak", "Process", "Kept", "OOMs")
    rows = []
    for trial in run.trials:
        cells: list[str | Text] = [_NOTHING] * (len(headings) - 1)
        if trial.usage is not None:
            cells = _cells(trial.usage)
        rows.append((trial.name, (*cells, str(_num_ooms(trial)))))
    cells_of_rows = [cells_of_row for _, cells_of_row in rows]
    columns = [tuple(map(str, column)) for column in zip(*cells_of_rows, strict=True)]
    shown = [number for number, column in enumerate(columns) if not {*column} <= {_UNKNOWN, _NOTHING}]
    view = empty_table(counted(len(rows), "trial"), "Trial", *(headings[number] for number in shown))
    for name, row in rows:
        view.add_row(name, *(row[number] for number in shown))
    parts: list[RenderableType] = [view]
    unknown = [heading for heading, column in zip(headings, columns, strict=True) if _UNKNOWN in column]
    hidden = [heading for heading in unknown if headings.index(heading) not in shown]
    if hidden:
        parts.append(line(f"- not known for any trial: {', '.join(hidden)}{_why_unknown(run)}"))
    return Group(*parts, *_bars(run))


def _why_unknown(run: RunUsage) -> str:
    sources = [usage.sources.get("process_bytes", "") for trial in run.trials for usage in trial.usages]
    why = next((text for text in sources if text.startswith("unknown, because")), "")
    if why:
        return f" ({why.removeprefix('unknown, ')})"
    return ", for instance because the GPUs are simulated"


def _num_ooms(trial: TrialGpuMemory) -> int:
    """Return how often a trial ran out of GPU memory or host memory, according to its usage and its error file."""
    of_kind = Counter(failure.kind for failure in trial.failures)
    reported = sum(usage.num_ooms for usage in trial.usages)
    return max(reported, of_kind["accelerator"]) + of_kind["host"]


def _bars(run: RunUsage) -> list[RenderableType]:
    """Return a list with a table of bars for the trials' peaks, or an empty list if no peak is known."""
    view = empty_table("Peaks relative to the GPU fractions", "Trial", "", "")
    for trial in run.trials:
        if trial.usage is None:
            continue
        had, need = share_or_device_bytes(trial.usage), needed_bytes(trial.usage)
        if had and need:
            filled = min(round(need / had * _BAR), _BAR)
            view.add_row(trial.name, "#" * filled + "." * (_BAR - filled), f"{need / had:.0%}")
    if view.row_count:
        return ["", view]
    return []


def _cells(usage: GpuMemoryUsage) -> list[str | Text]:
    peak = usage.peak_reserved_bytes
    if peak is None:
        peak = usage.peak_allocated_bytes
    limits = {one_line(framework): format_bytes(amount) for framework, amount in sorted(usage.limit_bytes.items())}
    lines = list(limits.values())
    if len(limits) > 1:
        lines = [f"{framework} {limit}" for framework, limit in limits.items()]
    return [
        share_text(usage),
        Text("\n".join(lines) or "none"),
        _known(peak),
        _known(usage.process_bytes),
        _kept(usage),
    ]


def _kept(usage: GpuMemoryUsage) -> str:
    if usage.share_kept is None:
        if usage.share_bytes is None:
            return _NOTHING
        return _UNKNOWN
    if not usage.share_kept:
        return "no"
    if has_assumed_overhead(usage):
        return "likely"
    return "yes"


def _known(amount: int | None) -> str:
    if amount is None:
        return _UNKNOWN
    return format_bytes(amount)
