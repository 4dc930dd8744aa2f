"""The table of a comparison, with a column for each policy."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.kuberay.design.comparison import ComparedPolicy, PolicyComparison
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_money
from tune_policies.values.value import counted


def comparison_view(comparison: PolicyComparison) -> RenderableType:
    """Return a table with a column for each policy and a row for each fact."""
    columns = [_compared_columns(compared, comparison) for compared in comparison.policies]
    below = [f"caution: {caution}" for caution in comparison.cautions]
    if comparison.priced is not None:
        below.append(f"the price per hour is for {comparison.priced}")
    if comparison.hint:
        below.append(f"note: {comparison.hint}")
    table = side_by_side([compared.policy for compared in comparison.policies], columns)
    return Group(table, *map(line, below))


def side_by_side(names: Sequence[str], columns: Sequence[Mapping[str, list[str]]]) -> Table:
    """Return a table with a column of lines for each name. Rows without any text are omitted."""
    table = empty_table("", "", *names)
    for heading in columns[0]:
        if any(column[heading] for column in columns):
            cells = ("\n".join(map(one_line, column[heading])) or "-" for column in columns)
            table.add_row(heading, *(Text(cell) for cell in cells))
    return table


def _compared_columns(compared: ComparedPolicy, comparison: PolicyComparison) -> dict[str, list[str]]:
    plan, per_hour, per_trial = compared.plan, compared.price_per_hour, compared.price_of_trial_hour
    currency = comparison.currency
    is_partly_used = plan is not None and compared.running_trials < compared.trials_at_once
    shared = f" with {counted(compared.running_trials, 'trial')}" if is_partly_used else ""
    rows = {} if plan is None else plan.rows
    each_trial = list(rows) if len(rows) == 1 else [f"{number} with {text}" for text, number in rows.items()]
    return {
        "Trials at once": [str(compared.trials_at_once)],
        "Each trial": each_trial,
        "Limited by": [] if plan is None else [plan.limited_by],
        "Why not": [] if compared.why_not is None else [compared.why_not],
        "Nodes": [counted(number, f"{name} node") for name, number in compared.nodes.items() if number],
        "Stays idle": list(map(str, compared.idle)),
        "Rounds": [] if compared.num_rounds is None else [str(compared.num_rounds)],
        "Price per hour": [] if per_hour is None else [f"{format_money(per_hour)} {currency}"],
        "Price of a trial hour": [] if per_trial is None else [f"{format_money(per_trial)} {currency}{shared}"],
    }
