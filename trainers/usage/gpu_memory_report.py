"""Shows the GPU memory of a run's trials as tables with advice.

The advice states how many trials would fit on a GPU, and which trials had problems.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.plan.headroom import memory_to_write
from tune_policies.values.resources import TICKS, amount_of, to_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import counted, shorten_names

from .advice import trials_per_gpu
from .gpu_memory_usage import (
    GpuMemoryUsage,
    RunUsage,
    TrialGpuMemory,
    bytes_to_plan,
    device_bytes,
    has_assumed_overhead,
    needed_bytes,
)
from .memory_to_write import equal_part_to_write, gpu_memory_to_write, gpus_to_write
from .resource_usage import ResourceUsage, resource_usage_view

CALLBACK: Final = "callbacks=[PolicyCallback()]"
"""The argument with which a run records its usage."""

RETRY: Final = "scheduler=OomRetryScheduler()"
"""The argument with which a run retries trials that ran out of memory."""

_RETRY_WITH_MORE: Final = f"retry such trials with more memory: {RETRY}"

_NOTHING_REPORTED: Final = (
    "no trial reported its GPU memory. Only trials that have a GPU and run under a PolicyScheduler report it. With "
    "resources_per_trial alone, a trial's GPU memory is not limited"
)


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


def advice_of_run(run: RunUsage, record: ResourceUsage | None = None) -> list[str]:
    """Return advice about the run, one sentence per item."""
    texts = []
    if record is not None:
        advised = [slot for slot in record.slots if slot.advice]
        texts = [f"trials with {slot.slot} used {slot.use}. {slot.advice.removesuffix('.')}" for slot in advised]
        texts += _without_repetition(run, record).advice_after_retries
    return [*texts, *_about_gpu_memory(run, record), *_advise_on_failures(run, record)]


def _without_repetition(run: RunUsage, record: ResourceUsage) -> ResourceUsage:
    """Return the record without an advice about GPU memory that the usage of the trials contains in more detail."""
    if not any(map(_is_retried_with_larger_share, run.trials)):
        return record
    return record.model_copy(update={"raised": record.raised.model_copy(update={"gpus": 0.0})})


def _advise_on_failures(run: RunUsage, record: ResourceUsage | None) -> Iterator[str]:
    """Yield sentences about trials that ran out of memory according to their error files.

    Failures are omitted if the usage of the trial, or the record of a run with retries, leads to an advice.
    """
    is_host_explained = record is not None and record.raised.memory_bytes > 0
    of_kind: dict[str, list[TrialGpuMemory]] = {"accelerator": [], "host": []}
    for trial in run.trials:
        kinds = {failure.kind for failure in trial.failures}
        if "accelerator" in kinds and not _is_explained_by_usage(trial):
            of_kind["accelerator"].append(trial)
        if "host" in kinds and not is_host_explained:
            of_kind["host"].append(trial)
    if of_kind["accelerator"]:
        yield from _advise_on_gpu_errors(of_kind["accelerator"], len(run.trials))
    if of_kind["host"]:
        yield _advise_on_host_errors(of_kind["host"], len(run.trials))


def _is_explained_by_usage(trial: TrialGpuMemory) -> bool:
    """Return whether the usage of a trial shows with how much GPU memory it ran out of memory, or did not."""
    if _is_retried_with_larger_share(trial):
        return True
    return any(usage.num_ooms and device_bytes(usage) for usage in trial.usages)


def _is_retried_with_larger_share(trial: TrialGpuMemory) -> bool:
    """Return whether a trial ran out of memory with a GPU fraction, and not with its largest fraction."""
    ran_out = any(usage.num_ooms for usage in trial.of_smaller_shares)
    return ran_out and trial.usage is not None and not trial.usage.num_ooms


def _advise_on_gpu_errors(trials: list[TrialGpuMemory], num_trials: int) -> Iterator[str]:
    failures = [failure for trial in trials for failure in trial.failures if failure.kind == "accelerator"]
    needs = [failure.needed_bytes for failure in failures if failure.needed_bytes]
    sizes = [failure.device_bytes for failure in failures if failure.device_bytes]
    text = f"{len(trials)} of {counted(num_trials, 'trial')} ran out of GPU memory"
    if not needs:
        yield f"{text}. The errors do not contain how much they needed, so {_RETRY_WITH_MORE}"
        return
    first, *others = gpu_memory_to_write(max(needs), min(sizes, default=None))
    yield f"{text} and needed at least {format_bytes(max(needs))}. Write {first}, or {_RETRY_WITH_MORE}"
    for choice in others:
        yield f"or write {choice}"


def _advise_on_host_errors(trials: list[TrialGpuMemory], num_trials: int) -> str:
    failures = [failure for trial in trials for failure in trial.failures if failure.kind == "host"]
    needs = [failure.needed_bytes for failure in failures if failure.needed_bytes]
    needs += [trial.host_memory_bytes for trial in trials if trial.host_memory_bytes]
    text = f"{len(trials)} of {counted(num_trials, 'trial')} ran out of host memory"
    if not needs:
        return f"{text}. The errors do not contain how much they needed, so {_RETRY_WITH_MORE}"
    to_write = memory_to_write(max(needs))
    field = f'memory="{to_write}" in the policy, such as CpuPolicy(memory="{to_write}")'
    if all(len(trial.slots) > 1 for trial in trials):
        return f"{text}, and more memory was enough. To run without retries, write {field}"
    return f"{text} and needed at least {format_bytes(max(needs))}. Write {field}, or {_RETRY_WITH_MORE}"


def _about_gpu_memory(run: RunUsage, record: ResourceUsage | None) -> list[str]:
    """Return sentences about GPU memory, or an empty list if ``record`` shows no trial with a GPU."""
    known = [trial for trial in run.trials if trial.usage is not None]
    if is_without_gpus(run, record):
        return []
    if not known:
        return [_NOTHING_REPORTED]
    has_advice = record is not None and any(slot.advice for slot in record.slots)
    about_size = _about_size(known, has_advice=has_advice)
    return [*about_size, *_advise_on_retries(known), *_advise_on_problems(known)]


def _about_size(trials: list[TrialGpuMemory], *, has_advice: bool) -> Iterator[str]:
    alike: dict[tuple[int, float], list[GpuMemoryUsage]] = defaultdict(list)
    for trial in trials:
        usage = trial.usage
        if usage is None or not usage.gpus:
            continue
        device = device_bytes(usage)
        if device:
            alike[device, usage.gpus].append(usage)
    for (device, gpus), usages in sorted(alike.items()):
        yield from _about_group(device, gpus, usages, has_advice=has_advice)


def _about_group(device: int, gpus: float, usages: list[GpuMemoryUsage], *, has_advice: bool) -> Iterator[str]:
    """Yield a sentence about trials with the same GPU fraction and the same device memory."""
    now = TICKS // to_ticks(gpus) if gpus < 1 else 1
    share = usages[0].share_bytes or device
    needs = [need for need in (needed_bytes(usage) for usage in usages) if need]
    ran_out = sum(usage.num_ooms > 0 for usage in usages)
    if gpus > 1 or not (needs or ran_out):
        return  # the memory use of each single GPU is not known
    if ran_out:
        text = f"{ran_out} of {counted(len(usages), 'trial')} ran out of memory with {_gib(share)} GiB"
    else:
        text = f"the peak was {_gib(max(needs))} of {_gib(share)} GiB"
        to_plan = max(filter(None, map(bytes_to_plan, usages)))
        if _gib(to_plan) != _gib(max(needs)):
            text += f" ({_gib(to_plan)} GiB with overhead)"
    if ran_out and now == 1:
        yield f"{text} (a whole GPU), so use a GPU with more memory"
        return
    fit = trials_per_gpu(usages, device)
    if ran_out:
        policy = "GpuPolicy()"
        if fit > 1:
            policy = f'GpuMemoryPolicy(gpu_memory="{equal_part_to_write(device, fit)}")'
        yield f"{text}. Write {policy}, with {fit} per GPU instead of {now}"
        if ran_out <= len(usages) / 2:
            yield (
                f"{len(usages) - ran_out} of {counted(len(usages), 'trial')} fit, so it may be cheaper to keep {now} "
                f"per GPU, and to retry the others with more memory: {RETRY}"
            )
    elif has_advice:  # the record also contains how busy the GPUs were
        yield text
    elif fit == now:
        yield f"{text}, so {counted(now, 'trial')} per GPU is right"
    else:
        yield f"{text}, so LearningPolicy() would run {fit} per GPU instead of {now}"


def _advise_on_retries(trials: list[TrialGpuMemory]) -> Iterator[str]:
    """Yield sentences about trials that ran out of memory with one GPU fraction, but not with a larger fraction."""
    fitted: dict[tuple[str, str], list[TrialGpuMemory]] = defaultdict(list)
    retried = list(filter(_is_retried_with_larger_share, trials))
    for trial in retried:
        ran_out_of = [usage for usage in trial.of_smaller_shares if usage.num_ooms]
        assert trial.usage is not None  # noqa: S101  # such a trial has usage
        fitted[_share(ran_out_of[-1]), _share(trial.usage)].append(trial)
    for (small, large), chosen in sorted(fitted.items()):
        yield f"{counted(len(chosen), 'trial')} ran out of memory with {small}, but not with {large}: {_names(chosen)}"
    if not retried:
        return
    first, *others = _choices_without_retries([trial.usage for trial in retried if trial.usage])
    text = f"to run without retries, write {first}"
    num_fit = len(trials) - len(retried)
    if num_fit > len(retried):
        text += f". Because {num_fit} of {counted(len(trials), 'trial')} fit, it may be cheaper to keep the retries"
    yield text
    for choice in others:
        yield f"or write {choice}"


def _choices_without_retries(usages: list[GpuMemoryUsage]) -> list[str]:
    """Return what to write so that trials with these usages do not run out of memory."""
    needs = [need for need in map(bytes_to_plan, usages) if need]
    sizes = [size for size in map(device_bytes, usages) if size]
    if needs:
        return gpu_memory_to_write(max(needs), min(sizes, default=None))
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
    """Return whether the record of a run shows that no trial had a GPU."""
    if record is None or any(trial.usage for trial in run.trials):
        return False
    return not any(slot.hours.get("GPU") for slot in record.slots)


def usage_view(run: RunUsage, record: ResourceUsage | None = None) -> RenderableType:
    """Return the tables and lines that ``tune-policies usage`` prints."""
    parts: list[RenderableType] = []
    if record is not None:
        parts.append(resource_usage_view(_without_repetition(run, record)))
    if not is_without_gpus(run, record) and _has_row(run):
        if parts:
            parts.append("")
        parts.append(_gpu_memory_view(run))
    texts = [*_about_gpu_memory(run, record), *_advise_on_failures(run, record)]
    parts += [line(f"- {text}") for text in texts]
    return Group(*parts)


def _has_row(run: RunUsage) -> bool:
    """Return whether a trial reported its GPU memory or ran out of memory."""
    return any(trial.usages or trial.failures for trial in run.trials)


_UNKNOWN: Final = "not known"
_NOTHING: Final = "-"


def _gpu_memory_view(run: RunUsage) -> RenderableType:
    """Return the table of trials, without columns in which nothing is known, and the reason below it."""
    headings = ("Fraction", "Limit", "Peak", "Process", "Kept", "OOMs")
    rows = []
    for trial in run.trials:
        cells: list[str | Text] = [_NOTHING] * (len(headings) - 1)
        if trial.usage is not None:
            cells = _cells(trial.usage)
        rows.append((trial.name, (*cells, str(_num_ooms(trial)))))
    columns = [tuple(str(cell) for cell in column) for column in zip(*(cells for _, cells in rows), strict=True)]
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
        had, need = (trial.usage and amount(trial.usage) for amount in (share_or_device_bytes, needed_bytes))
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
