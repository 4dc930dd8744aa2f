"""Resources of a trainable that also hold for trials that Tune restores with saved resources.

Tune saves ``resources_per_trial`` with each trial and for those to come. A trainable with resources of its own does not
go with them: Tune says so in its log only, and then begins the experiment anew, or waits for ever.
"""

import inspect
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.execution.tune_controller import TuneController

from tune_policies.ray_compat.unpickled_once import UnpickledOnce
from tune_policies.tune.task_watch import watch_tasks
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import counted

_Request = Callable[[Mapping[str, Any]], PlacementGroupFactory]


class ResumeSafeResources:
    """Resources as a function of a trial's config, which hold for a resumed experiment's trials too.

    Tune still refuses ``resources_per_trial`` that the current run is given.

    Args:
        resources: What each trial reserves.
        max_concurrent_trials: How many trials may run at once, where resources alone do not hold further ones back;
            ``None``: they do.
    """

    def __init__(
        self,
        resources: dict[str, float] | PlacementGroupFactory | _Request,
        *,
        max_concurrent_trials: int | None = None,
    ) -> None:
        self._at_once = max_concurrent_trials
        self._resources = UnpickledOnce(
            resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        )

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return what Tune reserves for a trial with this config. Tune asks in the program, as it adds the trial.

        Raises:
            InvalidResourcesError: The run needs ``max_concurrent_trials``, and has none.
        """
        watch_tasks()
        adding = _adding_frame()
        if adding is not None:
            _drop_saved_resources(adding)
            if self._at_once is not None:
                _check_cap(adding.f_locals["self"], self._at_once)
        resources = self._resources.value
        return resources if isinstance(resources, PlacementGroupFactory) else resources(config)


def _adding_frame() -> FrameType | None:
    """Return the call in which Tune adds the trial; ``None``: it adds none.

    Tune asks the trainable (``default_resource_request``, which is public) with the trial's config alone, before any
    scheduler or callback hears of the trial. So the trial and its run are looked for where Tune adds it: on the
    interpreter's stack. Nothing is written there, but to the trial. The same in Ray 2.50 and 2.60.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not TuneController.add_trial.__code__:
        frame = frame.f_back
    return frame


def _check_cap(controller: TuneController, at_once: int) -> None:
    """Raise ``InvalidResourcesError`` unless the run is held to so many trials at once.

    A searcher of the user's own class may hold back trials in its own way, so only those that say how are judged.
    """
    if getattr(controller._scheduler_alg, "caps_trials", False):
        return
    search = controller.search_alg
    searcher = getattr(search, "searcher", search)
    cap = getattr(search, "max_concurrent", None) or getattr(searcher, "max_concurrent", None) or 0
    total = getattr(search, "total_samples", None) or 0
    if 0 < cap <= at_once or 0 < total <= at_once:
        return
    given = f"max_concurrent_trials={cap}" if cap else "no max_concurrent_trials"
    raise InvalidResourcesError(
        f"the plan lets {counted(at_once, 'trial')} run at once, which resources alone do not ensure, and the run has "
        f"{given}: use tune_policies.run(trainable, policy, …) or tune_policies.tuner(…) instead of Tune's own, or "
        f"pass max_concurrent_trials={at_once}"
    )


def _drop_saved_resources(frame: FrameType) -> None:
    """Drop the saved resources of the trial that Tune is about to add, if its run is resumed.

    Tune refuses at once what the trial has saved. To answer nothing would leave the trial just that.
    """
    is_requeued = frame.f_back is not None and frame.f_back.f_code is TuneController._requeue_restored_trials.__code__
    if is_requeued or frame.f_locals["self"].resumed:
        frame.f_locals["trial"]._default_placement_group_factory = None
