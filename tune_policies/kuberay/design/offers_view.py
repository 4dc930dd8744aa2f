"""The table of the nodes that can be rented for a number of trials."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType

from tune_policies.files.terminal import empty_table, line
from tune_policies.kuberay.design.design_cluster import NO_TRIAL_FITS
from tune_policies.kuberay.design.offers import NodeOffers
from tune_policies.kuberay.design.policy_comparison_view import slot_texts
from tune_policies.values.units import format_money
from tune_policies.values.wording import counted, shorten_names

_MOST_ROWS: Final = 6


def offers_view(ranked: NodeOffers) -> RenderableType:
    """Return a table with a row for each offer, the best offer first, and the notes below it.

    Cheaper nodes for trials with slightly less memory are above the table.
    """

    def price(amount: float | None) -> str:
        if amount is None:
            return "unknown"
        return f"{format_money(amount)} {ranked.currency}"

    last = ["Price of a trial hour"]
    if ranked.duration is not None:  # these columns replace the last one, so that the table is not too wide
        last = ["Time for the trials", "Price of the trials"]
    table = empty_table("", "Nodes to rent", "Trials at once", "Each trial", "Price per hour", *last)
    for offer in ranked.offers[:_MOST_ROWS]:
        at_once = f"{offer.trials_at_once} of {ranked.num_trials}"
        cells = [price(offer.price_of_trial_hour)]
        if ranked.duration is not None:
            num_rounds = offer.trials.num_rounds(ranked.num_trials)
            cells = [ranked.duration.describe(num_rounds), price(offer.price)]
        table.add_row(str(offer), at_once, "; ".join(slot_texts(offer.trials)), price(offer.price_per_hour), *cells)
    above = [line(f"cheaper: {text}") for text in ranked.cheaper]
    return Group(*above, table, *map(line, _below(ranked)))


def _below(ranked: NodeOffers) -> Iterator[str]:
    more = len(ranked.offers) - _MOST_ROWS
    if more > 0:
        yield f"and {counted(more, 'choice')} with fewer trials at once or a higher price"
    others = [name for name in ranked.unusable if not _is_explained(name, ranked)]
    if others:
        yield f"{NO_TRIAL_FITS}{shorten_names(others)}"
    date = "" if ranked.date is None else f" of {ranked.date}"
    head = "include the head node" if ranked.has_head else "do not include a head node"
    yield f"the prices{date} {head}"
    for note in ranked.notes:
        yield f"note: {note}"


def _is_explained(name: str, ranked: NodeOffers) -> bool:
    return any(note.startswith(f"{NO_TRIAL_FITS}{name}:") for note in ranked.notes)
