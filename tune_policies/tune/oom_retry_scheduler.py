"""A Tune scheduler that retries a trial that ran out of memory with more, from its latest checkpoint.

``oom_retry`` decides how much a retry gets. A record for each time that a trial ran out says which other trials need as
much: those whose memory settings, what of a config can decide how much memory its trial needs, are alike.
``ray_compat.tune_controller`` changes Tune's trials.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from numbers import Integral, Real
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.oom import OutOfMemory, classify_oom
from tune_policies.ray_compat.gcs import read_cluster_state
from tune_policies.ray_compat.kernel_kills import was_killed_by_kernel
from tune_policies.ray_compat.tune_controller import (
    drop_change,
    install_hook,
    pending_change,
    requeued_by,
    save_experiment,
)
from tune_policies.ray_compat.tune_queue import request_instead
from tune_policies.ray_compat.tune_request import bundles_of, planned_of, reservation_of, with_bundles
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.resources import Count, check_gpus
from tune_policies.values.units import is_number
from tune_policies.values.value import Value, check_names, suggest

from .oom_retry import MemoryFloor, decide_retry, floor_of, limit_floor, next_floor
from .wrapping_scheduler import WrappingScheduler, nested_schedulers

_logger = logging.getLogger(__name__)

Setting = bool | int | float | str | None

MemorySettings = dict[str, Setting]
"""The entries of a config that can decide how much memory its trial needs, each by its path in the config."""


def memory_settings(config: Mapping[str, object], memory_keys: Sequence[str] | None = None) -> MemorySettings:
    """Return the entries of ``config`` that can decide how much memory its trial needs.

    Without ``memory_keys``, such as ``"model/width"`` for a nested one, these are all entries but fractions. A learning
    rate decides no memory. A batch size does, even as a float: some searchers give whole numbers as floats.
    """
    settings = dict(_flatten("", config, keep_fractions=memory_keys is not None))
    if memory_keys is None:
        return settings
    return {
        path: value for path, value in settings.items() if any(f"{path}/".startswith(f"{key}/") for key in memory_keys)
    }


def _flatten(path: str, value: object, *, keep_fractions: bool) -> Iterable[tuple[str, Setting]]:
    match value:
        case Mapping():
            items = [(_encodable(str(key)), each) for key, each in value.items()]
        case list() | tuple():
            items = [(str(index), each) for index, each in enumerate(value)]
        case str():
            return [(path, _encodable(value))]
        case None | bool():
            return [(path, value)]
        case Integral():
            return [(path, int(value))]
        case Real():
            if not math.isfinite(value):
                return [(path, repr(value))] if keep_fractions else []
            return [(path, float(value))] if keep_fractions or float(value).is_integer() else []
        case _:
            named = value if hasattr(value, "__qualname__") else type(value)
            return [(path, f"{getattr(named, '__module__', None)}.{named.__qualname__}")]
    found: list[tuple[str, Setting]] = []
    for key, each in items:
        found += _flatten(f"{path}/{key}" if path else key, each, keep_fractions=keep_fractions)
    return found


def unknown_keys(memory_keys: Iterable[str], configs: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return the keys that no config contains, each with ``"; did you mean 'width'?"`` or ``""``."""
    paths = {path for config in configs for path, _ in _flatten("", config, keep_fractions=True)}
    known = {prefix for path in paths for prefix in accumulate(path.split("/"), "{}/{}".format)}
    return {key: suggest(key, known) for key in memory_keys if key not in known}


def _encodable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: Python reads a path that is no UTF-8 with lone surrogates in it."""
    return text.encode("utf-8", "backslashreplace").decode()


class OomRecord(Value):
    """A trial ran out of memory, and this is what its next try got.

    Attributes:
        settings: The memory settings of its config.
        floor: The least memory for a trial with such settings.
    """

    settings: MemorySettings
    floor: MemoryFloor

    def applies_to(self, settings: MemorySettings) -> bool:
        """Return whether a trial with ``settings`` needs as much: no number is smaller, and all else is equal."""
        both = self.settings.keys() & settings.keys()
        # A float that is whole in one config and a fraction in the other decides no memory: dropouts of 0.0 and 0.5.
        in_one_only = [found[path] for found in (self.settings, settings) for path in found.keys() - both]
        return all(isinstance(value, float) and value.is_integer() for value in in_one_only) and all(
            _is_no_less(settings[path], self.settings[path]) for path in both
        )


def _is_no_less(value: object, recorded: object) -> bool:
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (value, recorded)):
        return type(value) is type(recorded) and value == recorded
    return value >= recorded  # type: ignore[operator, no-any-return]


def floor_for(settings: MemorySettings, records: Iterable[OomRecord]) -> MemoryFloor:
    """Return the least memory for a trial with ``settings``: the most that any record about such a trial says."""
    floor = MemoryFloor()
    for record in records:
        if record.applies_to(settings):
            floor |= record.floor
    return floor


class TrialOomHistory(Value):
    """How often one trial ran out of memory, and what it got then.

    Attributes:
        records: One for each retry with more memory.
        num_same_share_retries: How many retries had the same fraction again, since the last one with more.
    """

    records: tuple[OomRecord, ...] = ()
    num_same_share_retries: Count = 0


def load_history(trial: Trial) -> TrialOomHistory:
    """Return the history of ``trial``, which may be from before Tune restored it."""
    text = getattr(trial, "oom_history", None)
    try:
        return TrialOomHistory() if text is None else TrialOomHistory.from_json(text)
    except InvalidResourcesError as error:  # another version of this package saved it
        _logger.warning("cannot read how often %s ran out of memory, so it counts as never: %s", trial, error)
        return TrialOomHistory()


def save_history(trial: Trial, history: TrialOomHistory) -> None:
    """Save ``history`` with ``trial``, so that a restored trial has it."""
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.oom_history = history.to_json()
    trial.invalidate_json_state()


_READ_TIMEOUT_S: Final = 10.0


class OomRetryScheduler(WrappingScheduler):
    """Wraps a Tune scheduler, and retries a trial that ran out of memory with more.

    The trial resumes from its latest checkpoint with a larger fraction of a GPU, or more host memory. That counts as no
    failure: ``max_failures`` and ``fail_fast`` are for all other errors, and work for them as without this scheduler.
    The inner scheduler does not see the failure, with two exceptions: HyperBand does, and any scheduler does if the
    trial ran out while it saved a checkpoint.

    When a trial has run out, later trials with a config like its own start with what it got. A config is like it if no
    whole number is smaller, and all else but fractions is equal. A restored experiment remembers this.

    If neighbours had filled the GPU and the trial was within its share, it is first retried twice with the same.

    Args:
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
        growth: The factor by which a trial's memory grows. A share is rounded up to the next equal part of a GPU.
        max_gpus: The most GPUs of a trial. A trial that runs out with as many fails, and its error says so.
        memory_keys: A list of the keys of the config that decide how much memory a trial needs, such as
            ``["model/width"]`` for a nested one, fractions among them. With ``None``, these are all keys whose values
            are not fractions. If no config of the first trials contains a key, the scheduler logs a warning.

    Raises:
        InvalidResourcesError: ``growth`` is not above 1, ``max_gpus`` is not an amount of GPUs above 0, or
            ``memory_keys`` is a text or contains something else than texts.
    """

    def __init__(
        self,
        inner: TrialScheduler | None = None,
        *,
        growth: float = 2.0,
        max_gpus: float = 1.0,
        memory_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(inner)
        self._growth = check_growth(growth)
        self._max_gpus = check_max_gpus(max_gpus)
        self._memory_keys = None if memory_keys is None else check_names(memory_keys, name="memory_keys")
        self._unchecked_keys = self._memory_keys or ()
        self._records: list[OomRecord] = []
        self._planned: dict[Trial, PlacementGroupFactory] = {}
        self._has_new_records = False
        self._nodes: Sequence[NodeCapacity] | None = None
        self._warned: set[Trial] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Give a new or restored trial the memory that its config is known to need."""
        if trial in self._planned:  # it is requeued
            save_experiment(tune_controller)
            super().on_trial_add(tune_controller, trial)
            return
        resources = trial.placement_group_factory
        # The inner scheduler sees what was planned: Ray's ResourceChangingScheduler takes no trials that differ.
        trial.update_resources(planned_of(resources))
        super().on_trial_add(tune_controller, trial)
        self._planned[trial] = planned_of(trial.placement_group_factory)  # a PolicyScheduler inside may have changed it
        install_hook(trial, self, tune_controller)
        records = load_history(trial).records
        if resources != planned_of(resources):  # a restored trial that had more
            settings = memory_settings(trial.config, self._memory_keys)
            records = (*records, OomRecord(settings=settings, floor=floor_of(bundles_of(resources))))
        if records and self._nodes is None:
            self._read_nodes()
        self._add_records(records)
        trial.update_resources(self._planned[trial])

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Raise the resources of a trial that this scheduler requeued; tell the inner scheduler of any other error."""
        if requeued_by(trial) is self:
            self._add_records(load_history(trial).records)
            trial.update_resources(self._planned[trial])
        super().on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the inner scheduler decide, but pause no trial for resources that it already has, with more memory."""
        decision = super().on_trial_result(tune_controller, trial, result)
        for scheduler in nested_schedulers(self):
            if isinstance(scheduler, ResourceChangingScheduler):
                wanted = pending_change(scheduler, trial)
                if wanted is not None and self._with_needed_memory(trial, wanted) == trial.placement_group_factory:
                    drop_change(scheduler, trial)
                    return str(TrialScheduler.CONTINUE)
        return decision

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Raise the resources of waiting trials by the newest records, then let the inner scheduler choose."""
        if self._unchecked_keys and self._planned:
            for key, suggestion in unknown_keys(self._unchecked_keys, [each.config for each in self._planned]).items():
                _logger.warning("memory_keys: no config of the first trials contains %r%s", key, suggestion)
            self._unchecked_keys = ()
        if self._records:
            for trial in list(tune_controller.get_live_trials()):
                # A paused trial may have taken over another's config.
                if trial.status == Trial.PAUSED or (self._has_new_records and trial.status == Trial.PENDING):
                    planned = self._planned[trial]
                    if self._with_needed_memory(trial, planned) == trial.placement_group_factory:
                        continue
                    if trial.status == Trial.PENDING:
                        request_instead(tune_controller, trial, planned)
                    else:
                        trial.update_resources(planned)
        self._has_new_records = False
        return super().choose_trial_to_run(tune_controller)

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Keep ``planned`` as the trial's own resources, and return them with the memory that its config needs."""
        self._planned[trial] = planned
        return self._with_needed_memory(trial, planned)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether a failed trial ran out of memory and is retried; save with it how much it gets then.

        Raises:
            InfeasibleRequestError: The trial ran out of memory, and there is no more for it.
        """
        history, out_of_memory = load_history(trial), classify_oom(error)
        if out_of_memory.kind == "none" and was_killed_by_kernel(error):
            out_of_memory = OutOfMemory(kind="host")
        bundles = bundles_of(trial.placement_group_factory)
        match decide_retry(bundles, out_of_memory, history.num_same_share_retries):
            case "leave_to_tune":
                return False
            case "same_share":
                _logger.warning("%s is retried with the same fraction: its neighbours had filled the GPU", trial)
                history = history.model_copy(update={"num_same_share_retries": history.num_same_share_retries + 1})
            case "more_memory":
                record = self._new_record(trial, out_of_memory)
                if record is None:
                    return False
                history = TrialOomHistory(records=(*history.records, record))
        save_history(trial, history)
        return True

    def _new_record(self, trial: Trial, out_of_memory: OutOfMemory) -> OomRecord | None:
        reservation = reservation_of(trial.placement_group_factory)
        nodes = self._read_nodes()
        if nodes is None:  # otherwise, more memory might exceed every node, and the trial would wait indefinitely
            return None
        floor = next_floor(reservation, out_of_memory, growth=self._growth, max_gpus=self._max_gpus, nodes=nodes)
        _logger.warning(
            "%s ran out of %s memory: from %s to %s",
            trial,
            "host" if out_of_memory.kind == "host" else "GPU",
            floor_of(reservation.bundles),
            floor_of(floor.apply_to(reservation.bundles)),
        )
        return OomRecord(settings=memory_settings(trial.config, self._memory_keys), floor=floor)

    def _read_nodes(self) -> Sequence[NodeCapacity] | None:
        try:
            self._nodes = read_cluster_state(_READ_TIMEOUT_S).nodes
        except ProbeError as error:
            _logger.warning("a trial needs more memory, but the nodes could not be read: %s", error)
            return None
        return self._nodes

    def _add_records(self, records: Sequence[OomRecord]) -> None:
        new = [record for record in records if record not in self._records]
        self._records += new
        self._has_new_records |= bool(new)

    def _with_needed_memory(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        bundles = bundles_of(planned)
        try:
            raised = self._needed_floor(trial, planned).apply_to(bundles)
        except Exception:  # a config may hold anything, and must not end the other trials
            if trial not in self._warned:
                _logger.exception("%s gets what was planned: its config does not tell how much it needs", trial)
            self._warned.add(trial)
            return planned
        return planned if raised == bundles else with_bundles(planned, raised)

    def _needed_floor(self, trial: Trial, planned: PlacementGroupFactory) -> MemoryFloor:
        if not self._records:
            return MemoryFloor()
        needed = floor_for(memory_settings(trial.config, self._memory_keys), self._records)
        floor = limit_floor(needed, reservation_of(planned), max_gpus=self._max_gpus, nodes=self._nodes)
        if floor != needed and trial not in self._warned:
            _logger.warning("%s is known to need %s, of which %s is allowed here", trial, needed, floor)
            self._warned.add(trial)
        return floor


def check_growth(growth: float) -> float:
    """Return ``growth`` if it is a number above 1, else raise ``InvalidResourcesError``."""
    if not is_number(growth) or not 1 < growth < float("inf"):
        raise InvalidResourcesError(f"growth must be a number above 1, got {growth!r}")
    return float(growth)


def check_max_gpus(max_gpus: float) -> float:
    """Return ``max_gpus`` if it is an amount of GPUs above 0, else raise ``InvalidResourcesError``."""
    checked = check_gpus(max_gpus, name="max_gpus")
    if checked == 0:
        raise InvalidResourcesError("max_gpus must be above 0, got 0")
    return checked
