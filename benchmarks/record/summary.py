"""Summarizes raw times by their median and quartiles over processes, and formats times and ratios as text."""

import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

import numpy as np

from tune_policies.values.resources import UsedBytes
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten_names

from ..measuring.default_rounds import QUICK, THOROUGH
from .missing_measurements import num_complete_rounds
from .run_set import Configuration, Phase, RunSet
from .run_set_file import name_for_gpu
from .settings import Settings

_LONG: Final = ((7200, 3600, "h"), (600, 60, "min"))
"""Units for long times: the shortest time in seconds that uses the unit, the unit in seconds, and its name."""
_SHORT: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
"""Units for short times: the unit in seconds, and its name."""


class Spread(Value):
    """The median of several values, with the quartiles ``low`` and ``high``, in the unit of the values."""

    median: float
    low: float
    high: float

    @property
    def iqr(self) -> float:
        """The interquartile range."""
        return self.high - self.low

    def __str__(self) -> str:
        return f"{self.median:.2f} ±{self.iqr / 2:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of one or more values."""
    # ``statistics.quantiles`` needs at least two values before Python 3.13.
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Spread(median=median, low=low, high=high)


def time_of(run_set: RunSet, configuration: Configuration, phase: Phase) -> Spread | None:
    """Return the median and quartiles over processes of the step time or first-epoch time, in seconds.

    Each process contributes the median of its blocks. Return ``None`` if there are no times of this phase.
    """
    medians = [statistics.median(times) for times in run_set.times_s(configuration, phase).values()]
    if medians:
        return spread(medians)
    return None


class ConfigurationSummary(Value):
    """A summary of the measurements of a configuration over its processes. Unknown fields are ``None``.

    Attributes:
        times_s: Times by phase in seconds; see :func:`time_of`.
        samples_per_s: The throughput of steps with transfers, in samples per second.
        peak_host_bytes: The largest peak host memory of a process, in bytes.
        peak_gpu_bytes: The largest peak GPU memory of a process, in bytes.
    """

    configuration: Configuration
    times_s: dict[Phase, Spread]
    samples_per_s: float | None = None
    peak_host_bytes: UsedBytes | None = None
    peak_gpu_bytes: UsedBytes | None = None


def summarize(run_set: RunSet) -> tuple[ConfigurationSummary, ...]:
    """Return a summary of each configuration, sorted by workload, size and device, with a control after its twin."""
    ordered = sorted(
        run_set.configurations,
        key=lambda configuration: (
            configuration.workload,
            configuration.size,
            configuration.device,
            configuration.is_control,
        ),
    )
    return tuple(_summarize(run_set, configuration) for configuration in ordered)


def _summarize(run_set: RunSet, configuration: Configuration) -> ConfigurationSummary:
    processes = run_set.of(configuration)
    times = {phase: time_of(run_set, configuration, phase) for phase in Phase}
    times_s = {phase: time for phase, time in times.items() if time}
    # All processes have the same number, or none.
    samples = _most(run.samples_per_step for run in processes)
    samples_per_s = None
    if samples and Phase.TRANSFERS in times_s:
        samples_per_s = samples / times_s[Phase.TRANSFERS].median
    return ConfigurationSummary(
        configuration=configuration,
        times_s=times_s,
        samples_per_s=samples_per_s,
        peak_host_bytes=_most(run.peak_host_bytes for run in processes),
        peak_gpu_bytes=_most(run.peak_gpu_bytes for run in processes),
    )


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def time_text(seconds: float, half_iqr: float | None = None) -> str:
    """Return a time as text, such as ``"1.23 ms"`` or ``"1.23 ±0.14 ms"``.

    Times of ten minutes or more are in minutes, and times of two hours or more are in hours.
    """
    # Choose the unit by the rounded number, so that 0.9999 ms becomes 1 ms instead of 1000 µs.
    written = float(f"{seconds:.3g}")
    factor, unit = next((unit for unit in _SHORT if written >= unit[0]), _SHORT[-1])
    for least, size, name in _LONG:
        if seconds >= least:
            factor, unit = size, name
            break
    apart = "" if half_iqr is None else f" ±{digits(half_iqr / factor, 2)}"
    return f"{digits(seconds / factor)}{apart} {unit}"


def rounds_text(run_set: RunSet) -> str:
    """Return the number of rounds as text, such as ``"2 of 5 rounds complete (the run was interrupted)"``."""
    total = counted(run_set.num_rounds, "round")
    if not run_set.is_complete:
        return f"{num_complete_rounds(run_set)} of {total} complete (the run was interrupted)"
    measured = len({run.round for run in run_set.runs})
    note = ""
    if run_set.failures and measured < run_set.num_rounds:
        note = " (the other rounds have no times because of failures)"
    return f"{measured} of {total}{note}"


def ratio_text(ratio: float) -> str:
    """Return a ratio as text, such as ``"1.23×"``."""
    return f"{_ratio_digits(ratio)}\N{MULTIPLICATION SIGN}"


def ratio_with_bounds(ratio: float, low: float, high: float) -> str:
    """Return a ratio and its bounds as text, such as ``"1.23× (1.20 to 1.26)"``."""
    return f"{ratio_text(ratio)} ({_ratio_digits(low)} to {_ratio_digits(high)})"


def _ratio_digits(ratio: float) -> str:
    if 0.1 <= ratio < 2:
        return f"{ratio:.2f}"
    if 2 <= ratio < 100:
        return f"{ratio:.1f}"
    return digits(ratio, 2)


def digits(number: float, count: int = 3) -> str:
    """Return the number as text with ``count`` significant digits, or more if the integer part has more."""
    if abs(number) >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.{count}g}'):f}"


def in_words(device: str) -> str:
    """Return the display name of a device: ``"CPU"`` for ``"cpu"``, and ``"GPU"`` for ``"gpu"``."""
    if device in {"cpu", "gpu"}:
        return device.upper()
    return device


def sentence(text: str) -> str:
    """Return the text as a sentence: with a capital first letter, and a full stop if it has no end punctuation.

    A name at the beginning, such as ``my_steps:net[64]``, is not changed.
    """
    text = text.strip()
    end = "" if text.endswith((".", "!", "?")) else "."
    first = text.split(maxsplit=1)[0] if text else ""
    if first.strip(",;:.").isalpha():
        text = f"{text[0].upper()}{text[1:]}"
    return f"{text}{end}"


def how_to_measure_a_gpu(run_set: RunSet, workload: str | None = None, *, file: Path | None = None) -> str:
    """Return how to measure a workload, or all workloads of a run, on the CPU and a GPU: a line of text and a command.

    The command contains all requested sizes, the requested GPUs, and the options that determine how long a run takes.
    ``file`` contains the run set, for the name of the new file.
    """
    measured = {(configuration.workload, configuration.size) for configuration in run_set.configurations}
    sizes: dict[str, set[int]] = {}
    if run_set.settings is not None:
        # Requested sizes that failed here may work on the other machine.
        sizes = {name: set(requested) for name, requested in run_set.settings.sizes.items()}
    for name, size in measured:
        sizes.setdefault(name, set()).add(size)
    if workload is not None:
        sizes = {workload: sizes[workload]}
    failed = []
    names = []
    for name, requested in sorted(sizes.items()):
        names.append(f"{name}@{','.join(map(str, sorted(requested)))}")
        failed += [f"{name}[{size}]" for size in sorted(requested) if (name, size) not in measured]
    note = ""
    if measured and failed:
        was = "was" if len(failed) == 1 else "were"
        note = f" ({shorten_names(failed)} {was} not measured here)"
    options = [*_options(run_set), "--output", name_for_gpu(file)]
    command = shlex.join(["tune-policies", "bench", "run", *names, *options])
    return f"On a machine with a GPU, run{note}:\n{command}"


def _options(run_set: RunSet) -> list[str]:
    """Return the options that repeat a run on a machine with a GPU. Options with their default value are omitted."""
    settings = run_set.settings
    devices, cpus, length = ["cpu"], 1.0, list[str]()
    if settings is not None:
        devices = list(settings.devices)
        # A comparison needs the CPU, even if this run measured only other devices.
        if "cpu" not in devices:
            devices.insert(0, "cpu")
        has_timed_out = any(failure.kind == "timed_out" for failure in run_set.failures)
        cpus, length = settings.cpus, _length_options(settings, has_timed_out=has_timed_out)
    if devices == ["cpu"]:
        devices.append("gpu")
    by_device = [word for device in devices for word in ("--device", device)]
    return [*by_device, "--cpus", f"{cpus:g}", *length]


_LONGER: Final = 4
"""The factor by which the command for a GPU raises a time limit that processes reached."""


def _length_options(settings: Settings, *, has_timed_out: bool) -> list[str]:
    options = []
    effort = THOROUGH
    if settings.num_blocks == QUICK.num_blocks:  # only --quick changes the number of blocks
        effort = QUICK
        options.append("--quick")
    if settings.num_rounds != effort.num_rounds:
        options += ["--rounds", str(settings.num_rounds)]
    timeout_s = settings.process_timeout_s
    if has_timed_out:
        timeout_s *= _LONGER
    if timeout_s != effort.process_timeout_s:
        options += ["--process-timeout-s", f"{timeout_s:g}"]
    if not settings.has_control:
        options.append("--no-control")
    return options


_WHY_NOT_MEASURED: Final = {
    "timed_out": (
        "processes reached their time limit of {limit}",
        "Start a new run with a longer --process-timeout-s, or with smaller sizes",
    ),
    "raised": ("the workload raised an error", "Correct the workload, and start a new run"),
    "died": ("processes died", "Read the reason above, and start a new run"),
}
"""The reason for missing times and what to do, by the kind of failure. Processes that disagree have times."""


def not_measured(run_set: RunSet) -> Iterator[str]:
    """Yield a sentence for each kind of failure: which configurations lack times in how many rounds, and what to do."""
    limit = "--process-timeout-s"
    if run_set.settings is not None:
        limit = f"{run_set.settings.process_timeout_s:g} s"
    for kind, (why, action) in _WHY_NOT_MEASURED.items():
        failed = [failure.configuration for failure in run_set.failures if failure.kind == kind]
        names = []
        for configuration in dict.fromkeys(failed):
            if configuration.is_control and configuration.model_copy(update={"is_control": False}) in failed:
                continue  # its twin is listed
            num_missing = run_set.num_rounds - len(run_set.of(configuration))
            if num_missing:
                names.append(f"{configuration} ({num_missing} of {counted(run_set.num_rounds, 'round')})")
        if names:
            yield f"not measured: {shorten_names(names)}, because {why.format(limit=limit)}. {action}"
