"""Advises on the trials of a run by what they used: how many would fit on a GPU, and what went wrong."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tune_policies.values.resources import TICKS, to_ticks
from tune_policies.values.units import GIB
from tune_policies.values.value import counted, shorten_names

from .gpu_memory_of_run import RunUsage, TrialUsage
from .gpu_memory_usage import GpuMemoryUsage

HEADROOM: Final = 0.1
"""What a trial gets above the most that it used, as a fraction of that."""


def needed_bytes(usage: GpuMemoryUsage) -> int | None:
    """Return the most that the whole process took on a device, its frameworks' own use included; ``None``: not known.

    The allocator's peak alone would be too little where the driver does not count: memory outside the allocator counts.
    """
    peak = usage.peak_allocated_bytes if usage.peak_reserved_bytes is None else usage.peak_reserved_bytes
    amounts = [peak + (usage.overhead_bytes or 0)] if peak else []
    if usage.process_bytes is not None:
        amounts.append(usage.process_bytes)
    return max(amounts, default=None)


def device_bytes(usage: GpuMemoryUsage) -> int | None:
    """Return the memory of one device; ``None``: not known."""
    if usage.device_bytes is not None or usage.share_bytes is None or not usage.gpus:
        return usage.device_bytes
    return int(usage.share_bytes / usage.gpus)


def advise(run: RunUsage) -> list[str]:
    """Return advice about the run, each item a sentence."""
    known = [trial for trial in run.trials if trial.usage is not None]
    if not known:
        return ["no trial says what it used: only trials with GPUs do, of a trainable made by with_plan"]
    return [*_advise_on_share(known), *_advise_on_outgrown_shares(known), *_advise_on_problems(known)]


def _advise_on_share(trials: list[TrialUsage]) -> Iterator[str]:
    alike: dict[tuple[int, float], list[GpuMemoryUsage]] = defaultdict(list)
    for trial in trials:
        usage = trial.usage
        device = device_bytes(usage) if usage else None
        if usage and device and usage.gpus:
            alike[device, usage.gpus].append(usage)
    for (device, gpus), usages in sorted(alike.items()):
        yield from _advise_on_group(device, gpus, usages)


def _advise_on_group(device: int, gpus: float, usages: list[GpuMemoryUsage]) -> Iterator[str]:
    """Advise on trials with the same share of devices of the same size."""
    now = TICKS // to_ticks(gpus) if gpus < 1 else 1
    share = usages[0].share_bytes or device
    ran_out = sum(usage.num_ooms > 0 for usage in usages)
    if ran_out:
        has = f"{ran_out} of {counted(len(usages), 'trial')} ran out of {_gib(share)} GiB"
        yield (
            f"{has}: {_trials_per_gpu(now - 1)} instead of {now}"
            if now > 1
            else f"{has}, a whole GPU: take a larger one"
        )
        return
    needs = [need for need in (needed_bytes(usage) for usage in usages) if need]
    if not needs or gpus > 1:
        return  # nobody knows how much of several GPUs a trial needs on each
    peak = max(needs)
    fit = min(int(device / (peak * (1 + HEADROOM))), TICKS)
    said = f"peak {_gib(peak)} of {_gib(share)} GiB"
    if fit > now:
        yield f"{said}: {_trials_per_gpu(fit)} instead of {now}"
    elif fit < now:
        yield f"{said}, with little to spare: {_trials_per_gpu(max(1, fit))} instead of {now}" if now > 1 else said
    else:
        yield f"{said}: {_trials_per_gpu(now)} is right"


def _advise_on_outgrown_shares(trials: list[TrialUsage]) -> Iterator[str]:
    """Name the trials that ran out of memory with one share and ended well with a larger one."""
    fitted: dict[tuple[int, int], list[TrialUsage]] = defaultdict(list)
    for trial in trials:
        ran_out_of = [usage for usage in trial.of_smaller_shares if usage.num_ooms]
        if ran_out_of and trial.usage and not trial.usage.num_ooms:
            fitted[_share_bytes(ran_out_of[-1]), _share_bytes(trial.usage)].append(trial)
    for (small, large), chosen in sorted(fitted.items()):
        yield f"{counted(len(chosen), 'trial')} ran out of {_gib(small)} GiB and fit in {_gib(large)}: {_names(chosen)}"


def _share_bytes(usage: GpuMemoryUsage) -> int:
    return usage.share_bytes or device_bytes(usage) or 0


def _advise_on_problems(trials: list[TrialUsage]) -> Iterator[str]:
    beyond = [trial for trial in trials if any(usage.share_kept is False for usage in trial.usages)]
    if beyond:
        yield f"{counted(len(beyond), 'trial')} did not keep the share: {_names(beyond)}"
    leaking = [trial for trial in trials if any(usage.left_over_bytes for usage in trial.usages)]
    if leaking:
        yield f"{counted(len(leaking), 'trial')} began with memory that an earlier trial had left: {_names(leaking)}"
    loose = [trial for trial in trials if any(usage.not_enforceable for usage in trial.usages)]
    if loose:
        frameworks = sorted({name for trial in loose for usage in trial.usages for name in usage.not_enforceable})
        yield f"nothing limits {', '.join(frameworks)}: {_names(loose)}"
    yield from dict.fromkeys(warning for trial in trials for usage in trial.usages for warning in usage.warnings)


def _names(trials: list[TrialUsage]) -> str:
    return shorten_names([trial.name for trial in trials])


def _trials_per_gpu(count: int) -> str:
    return f"{counted(count, 'trial')} a GPU"


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f}"
