"""Resources of a trainable that also hold for trials that Tune restores with saved resources.

Tune saves ``resources_per_trial`` with each trial and for those to come. A trainable with resources of its own does not
go with them: Tune says so in its log only, and then begins the experiment anew, or waits for ever.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.execution.tune_controller import TuneController

from tune_policies.ray_compat.unpickled_once import UnpickledOnce
from tune_policies.tune.task_watch import watch_tasks

_Request = Callable[[Mapping[str, Any]], PlacementGroupFactory]


class ResumeSafeResources:
    """Resources as a function of a trial's config, which hold for a resumed experiment's trials too.

    Tune still refuses ``resources_per_trial`` that the current run is given.
    """

    def __init__(self, resources: dict[str, float] | PlacementGroupFactory | _Request) -> None:
        self._resources = UnpickledOnce(
            resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        )

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return what Tune reserves for a trial with this config. Tune asks in the program, as it adds the trial."""
        watch_tasks()
        _drop_saved_resources()
        resources = self._resources.value
        return resources if isinstance(resources, PlacementGroupFactory) else resources(config)


def _drop_saved_resources() -> None:
    """Drop the saved resources of the trial that Tune is about to add, if its run is resumed.

    Tune asks the trainable (``default_resource_request``, which is public) with the trial's config alone, before any
    scheduler or callback hears of the trial, and refuses what the trial has saved at once. To answer nothing would
    leave the trial just that. So the trial is looked for where Tune adds it: on the interpreter's stack. Nothing is
    written there, but to the trial. The same in Ray 2.50 and 2.60.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not TuneController.add_trial.__code__:
        frame = frame.f_back
    if frame is None:
        return
    is_requeued = frame.f_back is not None and frame.f_back.f_code is TuneController._requeue_restored_trials.__code__
    if is_requeued or frame.f_locals["self"].resumed:
        frame.f_locals["trial"]._default_placement_group_factory = None
