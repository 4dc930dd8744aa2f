"""The table of a comparison, with a column for each policy."""

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.kuberay.design.comparison import ComparedPolicy, PolicyComparison
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_money
from tune_policies.values.value import counted


def comparison_view(comparison: PolicyComparison) -> RenderableType:
    """Return a table with a column for each policy and a row for each fact."""
    columns = [_compared_columns(each, comparison.currency) for each in comparison.policies]
    table = empty_table("", "", *(each.policy for each in comparison.policies))
    for heading in columns[0]:
        if any(column[heading] for column in columns):
            cells = ("\n".join(map(one_line, column[heading])) or "-" for column in columns)
            table.add_row(heading, *(Text(cell) for cell in cells))
    return Group(table, *(line(f"caution: {caution}") for caution in comparison.cautions))


def _compared_columns(compared: ComparedPolicy, currency: str) -> dict[str, list[str]]:
    plan, per_hour, per_trial = compared.plan, compared.price_per_hour, compared.price_of_trial_hour
    slots = () if plan is None else plan.slots if plan.by_config is None else plan.by_config.slots
    each_trial = [str(slot) if len(slots) == 1 else f"{slot.max_concurrent_trials} with {slot}" for slot in slots]
    return {
        "Trials at once": [str(compared.trials_at_once)],
        "Each trial": each_trial,
        "Limited by": [] if plan is None else [plan.limited_by],
        "Why not": [] if compared.why_not is None else [compared.why_not],
        "Nodes": [counted(number, f"{name} node") for name, number in compared.nodes.items() if number],
        "Stays idle": list(map(str, compared.idle)),
        "Rounds": [] if compared.num_rounds is None else [str(compared.num_rounds)],
        "Price per hour": [] if per_hour is None else [f"{format_money(per_hour)} {currency}"],
        "Price of a trial hour": [] if per_trial is None else [f"{format_money(per_trial)} {currency}"],
    }
