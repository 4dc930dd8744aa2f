"""How the use of a run looks on the shell: a line a trial, a bar a trial, and the advice below."""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.names import counted
from tune_policies.terminal import empty_table, line
from tune_policies.text_out import one_line
from tune_policies.units import format_bytes

from .advice import advise, device_bytes, needed_bytes
from .record import GpuMemoryUsage, rests_on_assumption
from .trials import RunUsage

_BAR: Final = 40
"""Characters of a bar that fills the share."""


def usage_view(run: RunUsage) -> RenderableType:
    """Return the tables and the lines that ``tune-policies usage`` shows."""
    view = empty_table(counted(len(run.trials), "trial"), "Trial", "Share", "Limit", "Peak", "Process", "Kept", "OOMs")
    for trial in run.trials:
        cells: list[RenderableType] = _cells(trial.usage) if trial.usage else ["-"] * 6
        view.add_row(trial.name, *cells)
    return Group(view, *_bars(run), *(line(f"- {text}") for text in advise(run)))


def _bars(run: RunUsage) -> list[RenderableType]:
    """Return the picture of what was used against the shares; nothing, where nothing is known."""
    view = empty_table("Used of the share", "Trial", "", "")
    for trial in run.trials:
        had = trial.usage and (trial.usage.share_bytes or device_bytes(trial.usage))
        need = trial.usage and needed_bytes(trial.usage)
        if had and need:
            filled = min(round(need / had * _BAR), _BAR)
            view.add_row(trial.name, "#" * filled + "." * (_BAR - filled), f"{need / had:.0%}")
    return ["", view] if view.row_count else []


def _cells(usage: GpuMemoryUsage) -> list[RenderableType]:
    peak = usage.peak_allocated_bytes if usage.peak_reserved_bytes is None else usage.peak_reserved_bytes
    gpus = f"{usage.gpus:g} GPU" if usage.gpus else "not known"
    return [
        format_bytes(usage.share_bytes) if usage.share_bytes else gpus,
        # Each framework has its own limit; nobody uses two, as a rule.
        Text("\n".join(_one_limit(*limit, usage) for limit in sorted(usage.limit_bytes.items())) or "none"),
        _known(peak),
        _known(usage.process_bytes),
        _kept(usage),
        str(usage.num_ooms),
    ]


def _kept(usage: GpuMemoryUsage) -> str:
    if usage.share_kept is None:
        return "-" if usage.share_bytes is None else "not known"
    return ("likely" if rests_on_assumption(usage) else "yes") if usage.share_kept else "no"


def _one_limit(framework: str, amount: int, usage: GpuMemoryUsage) -> str:
    return format_bytes(amount) if len(usage.limit_bytes) == 1 else f"{one_line(framework)} {format_bytes(amount)}"


def _known(amount: int | None) -> str:
    return "not known" if amount is None else format_bytes(amount)
