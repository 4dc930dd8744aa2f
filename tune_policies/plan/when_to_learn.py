"""When a run has observed enough to learn what its trials need, for the first time and again."""

from collections.abc import Sequence

from tune_policies.plan.learned_needs import LearnedNeeds
from tune_policies.plan.trial_observation import TrialObservation


def is_time_to_learn(
    remembered: Sequence[TrialObservation],
    new: Sequence[TrialObservation],
    needs: LearnedNeeds | None,
    num_pilots: int,
) -> bool:
    """Return whether a run should learn from all observed trials.

    Args:
        remembered: The observed trials.
        new: The trials that were observed since the last call.
        needs: What the run has learned, or ``None``.
        num_pilots: The number of trials from which a run learns first. Two are enough if no other
            trial was observed.
    """
    counting = sum(seen.counts for seen in remembered)
    if needs is None:
        have_all_reported = counting == len(remembered)
        return counting >= num_pilots or (counting >= 2 and have_all_reported)
    # With twice as many trials each time, even a long run learns only a few times.
    if counting >= 2 * needs.num_trials:
        return True
    # Only a trial that has ended shows how its memory grows until the end, which was assumed until now.
    if not needs.num_ended and any(seen.ended for seen in new):
        return True
    # A trial contradicts what was learned: it failed or used more, or its config is of a new kind.
    return any(seen.ran_out or not needs.observed.covers(seen.used) or needs.is_outside(seen.config) for seen in new)
