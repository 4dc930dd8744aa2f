"""The duration of trials, and the number of concurrent trials with which a run ends before its deadline.

All trials are assumed to take equally long. If their durations differ, a run takes longer than its rounds.
"""

from math import ceil, floor
from typing import Annotated, Self

from pydantic import Field, model_validator

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

Hours = Annotated[float, Field(gt=0, le=1e6)]


class TrialDuration(Value):
    """The duration of each trial.

    Attributes:
        trial_hours: The duration of a trial, in hours.
        deadline_hours: The time in which all trials must end, in hours, or ``None`` without a deadline.
    """

    trial_hours: Hours
    deadline_hours: Hours | None = None

    @classmethod
    def of(cls, trial_hours: float | None, deadline_hours: float | None) -> "TrialDuration | None":
        """Return the duration, or ``None`` if it is unknown.

        Raises:
            InvalidResourcesError: A value is not valid, or the deadline is shorter than a trial.
        """
        if trial_hours is not None:
            return cls(trial_hours=trial_hours, deadline_hours=deadline_hours)
        if deadline_hours is not None:
            raise InvalidResourcesError(
                "a deadline requires the duration of a trial. Set trial_hours (--trial-hours), or omit deadline_hours "
                "(--deadline-hours)"
            )
        return None

    @model_validator(mode="after")
    def _check_deadline(self) -> Self:
        if self.deadline_hours is not None and self.deadline_hours < self.trial_hours:
            raise ValueError(
                f"deadline_hours={self.deadline_hours:g} is shorter than a trial of {self.trial_hours:g} h. Set a "
                f"deadline of {self.trial_hours:g} or more"
            )
        return self

    def trials_at_once(self, num_trials: int) -> int:
        """Return the minimum number of concurrent trials with which ``num_trials`` trials end before the deadline.

        Without a deadline, all trials run concurrently.
        """
        if self.deadline_hours is None:
            return num_trials
        num_rounds = floor(self.deadline_hours / self.trial_hours + 1e-9)  # 0.3 / 0.1 is below 3
        return ceil(num_trials / num_rounds)

    def hours(self, num_rounds: int) -> float:
        """Return the hours until the last of ``num_rounds`` rounds ends."""
        return num_rounds * self.trial_hours

    def is_late(self, num_rounds: int) -> bool:
        """Return whether ``num_rounds`` rounds take longer than the deadline."""
        # Three rounds of 0.1 h are 0.30000000000000004 h, which must not count as late for a deadline of 0.3 h.
        return self.deadline_hours is not None and self.hours(num_rounds) > self.deadline_hours * (1 + 1e-9)

    def describe(self, num_rounds: int) -> str:
        """Return the time of all trials as text, such as ``"3 h in 3 rounds"``."""
        text = f"{self.hours(num_rounds):.3g} h in {counted(num_rounds, 'round')}"
        if self.is_late(num_rounds):
            return f"{text}, after the deadline"
        return text
