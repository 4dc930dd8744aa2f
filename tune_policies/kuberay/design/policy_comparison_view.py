"""The table of a comparison, with a column for each policy."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.kuberay.design.policy_comparison import ComparedPolicy, PolicyComparison
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_money
from tune_policies.values.wording import counted


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
    plan, currency = compared.plan, comparison.currency
    columns: dict[str, list[str]] = {
        "Trials at once": [str(compared.trials_at_once)],
        "Each trial": [],
        "Limited by": [],
        "Why not": [],
        "Nodes": [counted(number, f"{name} node") for name, number in compared.nodes.items() if number],
        "Stays idle": list(map(str, compared.idle)),
        "Rounds": [],
        "Price per hour": [],
        "Price of a trial hour": [],
        "Time for the trials": [],
        "Price of the trials": [],
    }
    if plan is not None:
        columns["Each trial"] = slot_texts(plan)
        columns["Limited by"] = [plan.limited_by]
    if compared.why_not is not None:
        columns["Why not"] = [compared.why_not]
    if compared.num_rounds is not None:
        columns["Rounds"] = [str(compared.num_rounds)]
    duration = comparison.duration
    if duration is not None and compared.num_rounds:
        columns["Rounds"] = []  # the time contains the rounds
        columns["Time for the trials"] = [duration.describe(compared.num_rounds)]
        if compared.price_per_hour is not None:
            total = compared.price_per_hour * duration.hours(compared.num_rounds)
            columns["Price of the trials"] = [f"{format_money(total)} {currency}"]
    if compared.price_per_hour is not None:
        columns["Price per hour"] = [f"{format_money(compared.price_per_hour)} {currency}"]
    if compared.price_of_trial_hour is not None:
        price = f"{format_money(compared.price_of_trial_hour)} {currency}"
        if compared.running_trials < compared.trials_at_once:
            price += f" with {counted(compared.running_trials, 'trial')}"
        columns["Price of a trial hour"] = [price]
    return columns


def slot_texts(plan: TrialPlan) -> list[str]:
    """Return the text about the slots of each type, with their number if there are several types."""
    rows = plan.rows
    if len(rows) == 1:
        return list(rows)
    return [f"{number} with {text}" for text, number in rows.items()]
