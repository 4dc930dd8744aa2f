"""What one of Tune's trials remembers of running out of memory.

It is kept in the trial itself, which Tune saves with the experiment wherever that is, and which comes back when the
experiment is restored.
"""

import logging

from ray.tune.experiment import Trial

from tune_policies.errors import InvalidResourcesError
from tune_policies.resources import Count
from tune_policies.values import Value

from .lessons import Lesson

_logger = logging.getLogger(__name__)


class TrialMemory(Value):
    """What a trial remembers of running out.

    Attributes:
        lessons: What it got each time, and for which config.
        num_same_share: How often it went back with the share that it had.
    """

    lessons: tuple[Lesson, ...] = ()
    num_same_share: Count = 0


def recall(trial: Trial) -> TrialMemory:
    """Return what ``trial`` remembers, also from before it was restored."""
    text = getattr(trial, "escalation_memory", None)
    try:
        return TrialMemory() if text is None else TrialMemory.from_json(text)
    except InvalidResourcesError as error:  # saved by another version of this
        _logger.warning("what %s remembers cannot be read: %s", trial, error)
        return TrialMemory()


def remember(trial: Trial, memory: TrialMemory) -> None:
    """Have ``trial`` remember ``memory``, also once it is restored."""
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.escalation_memory = memory.to_json()
    trial.invalidate_json_state()
