"""Looks into the schedulers of Tune, and hides Tune's warning about unused GPUs.

The private members used here are the same in Ray 2.50 and 2.60.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from ray.actor import ActorHandle
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

_tune_logger: Final = logging.getLogger("ray.tune.tune")


def _is_not_gpu_warning(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Tune detects GPUs")


def hide_gpu_warning() -> None:
    """Hide Tune's warning that no trial uses GPUs, because Tune checks only the trainable's own request."""
    _tune_logger.addFilter(_is_not_gpu_warning)


def show_gpu_warning() -> None:
    """Let Tune print its warning again, for runs without a policy."""
    _tune_logger.removeFilter(_is_not_gpu_warning)


def scheduler_inside(scheduler: TrialScheduler) -> TrialScheduler | None:
    """Return the scheduler inside Ray's ``ResourceChangingScheduler``, or ``None`` for other schedulers."""
    if isinstance(scheduler, ResourceChangingScheduler):
        return scheduler._base_scheduler
    return None


def show_schedulers(scheduler: TrialScheduler, names: Sequence[str]) -> None:
    """Let Tune's table show a scheduler and its inner schedulers, such as ``PolicyScheduler(AsyncHyperBandScheduler)``.

    Until :func:`show_class_again`, the class of the object is a subclass with this name. There is no other way, because
    ``tune.run`` passes ``scheduler.__class__.__name__`` to the function that prints the table. It calls this function
    before the first step, and no callback or reporter can change the name. A subclass for the whole life of the object
    would need a new name whenever ``applied`` replaces the inner scheduler, and ``type(scheduler)`` would differ from
    the class that the user has called. A copy of the object, also by pickle, has the class of the user.
    """
    shown = names[0] + "".join(f"({name}" for name in names[1:]) + ")" * (len(names) - 1)
    cls = _class_of(scheduler)

    def reduced(self: TrialScheduler, _protocol: object) -> tuple[Any, ...]:
        return object.__new__, (cls,), self.__getstate__()

    members = {"__module__": cls.__module__, "__reduce_ex__": reduced, _SHOWN_FOR: cls}
    scheduler.__class__ = type(shown, (cls,), members)


def show_class_again(scheduler: TrialScheduler) -> None:
    """Give a scheduler its own class again."""
    scheduler.__class__ = _class_of(scheduler)


def _class_of(scheduler: TrialScheduler) -> type:
    shown_for: type = vars(type(scheduler)).get(_SHOWN_FOR, type(scheduler))
    return shown_for


_SHOWN_FOR: Final = "_shown_for"
"""The attribute of a renamed class with the original class."""


def longest_trials(scheduler: TrialScheduler) -> dict[str, float]:
    """Return the ``max_t`` at which ``scheduler`` stops every trial, by time attribute, or ``{}`` if it has none."""
    key = getattr(scheduler, "_time_attr", None)
    # ``AsyncHyperBandScheduler`` stores it as ``_max_t``, and ``HyperBandScheduler`` as ``_max_t_attr``.
    max_t = getattr(scheduler, "_max_t", getattr(scheduler, "_max_t_attr", None))
    stops = getattr(scheduler, "_stop_last_trials", False)
    if stops and isinstance(key, str) and isinstance(max_t, int | float):
        return {key: max_t}
    return {}


def actor_of(trial: Trial) -> str | None:
    """Return the ID of the actor that runs ``trial``, or ``None`` if it has none."""
    actor = trial.temporary_state.ray_actor
    if isinstance(actor, ActorHandle):
        return str(actor._actor_id.hex())
    return None
