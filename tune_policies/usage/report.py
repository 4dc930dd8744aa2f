"""How the use of a run looks on the shell: a line a trial, and the advice below."""

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.names import counted
from tune_policies.tables import empty_table
from tune_policies.units import format_bytes

from .advice import advise
from .record import GpuMemoryUsage
from .trials import RunUsage


def usage_view(run: RunUsage) -> RenderableType:
    """Return the table and the lines that ``tune-policies usage`` shows."""
    view = empty_table(counted(len(run.trials), "trial"), "Trial", "Share", "Limit", "Peak", "Process", "Kept", "OOMs")
    for trial in run.trials:
        view.add_row(trial.name, *(_cells(trial.usage) if trial.usage else ["-"] * 6))
    return Group(view, *(Text(f"- {line}", overflow="fold") for line in advise(run)))


def _cells(usage: GpuMemoryUsage) -> list[str]:
    peak = usage.peak_allocated_bytes if usage.peak_reserved_bytes is None else usage.peak_reserved_bytes
    gpus = f"{usage.gpus:g} GPU" if usage.gpus else "not known"
    return [
        format_bytes(usage.share_bytes) if usage.share_bytes else gpus,
        # Each framework has its own limit; nobody uses two, as a rule.
        "\n".join(_one_limit(name, amount, usage) for name, amount in sorted(usage.limit_bytes.items())) or "none",
        _known(peak),
        _known(usage.process_bytes),
        {True: "yes", False: "no", None: "-" if usage.share_bytes is None else "not known"}[usage.share_kept],
        str(usage.num_ooms),
    ]


def _one_limit(framework: str, amount: int, usage: GpuMemoryUsage) -> str:
    return format_bytes(amount) if len(usage.limit_bytes) == 1 else f"{framework} {format_bytes(amount)}"


def _known(amount: int | None) -> str:
    return "not known" if amount is None else format_bytes(amount)
