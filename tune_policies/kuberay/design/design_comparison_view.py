"""The table of compared cluster designs, with a column for each policy."""

from rich.console import Group, RenderableType

from tune_policies.files.terminal import line
from tune_policies.kuberay.design.design_comparison import DesignComparison, DesignedPolicy
from tune_policies.kuberay.design.policy_comparison_view import side_by_side, slot_texts
from tune_policies.values.units import format_money
from tune_policies.values.wording import counted


def design_comparison_view(comparison: DesignComparison) -> RenderableType:
    """Return a table with a column for each policy and a row for each fact."""
    columns = [_columns(designed) for designed in comparison.policies]
    table = side_by_side([designed.policy for designed in comparison.policies], columns)
    return Group(table, *(line(f"caution: {caution}") for caution in comparison.cautions))


def _columns(designed: DesignedPolicy) -> dict[str, list[str]]:
    design, per_trial = designed.design, designed.price_of_trial_hour
    if design is None:
        names = ("Nodes", "Price per hour", "Price of a trial hour", "Trials at once", "Each trial")
        infeasible = {name: list[str]() for name in (*names, "Time for the trials", "Price of the trials")}
        return {**infeasible, "Trials at once": ["0"], "Why not": [designed.why_not or ""]}

    def price(amount: float | None) -> list[str]:
        if amount is None:
            return []
        return [f"{format_money(amount)} {design.currency}"]

    at_once = f"{min(design.num_trials, design.trials.max_concurrent_trials)} of {design.num_trials}"
    return {
        "Nodes": [counted(group.max_nodes, f"{group.node_type.name} node") for group in design.groups],
        "Price per hour": price(design.price_per_hour),
        "Price of a trial hour": price(per_trial),
        "Trials at once": [at_once],
        "Each trial": slot_texts(design.trials),
        "Time for the trials": [_time(designed)],
        "Price of the trials": price(design.price),
        "Why not": [],
    }


def _time(designed: DesignedPolicy) -> str:
    """Return the hours of all trials or, if their durations were not measured, the number of rounds."""
    rounds = counted(designed.num_rounds or 0, "round")
    if designed.design is None or designed.design.hours is None:
        return rounds
    return f"{designed.design.hours:.3g} h in {rounds}"
