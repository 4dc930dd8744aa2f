"""A Tune scheduler that retries a trial with more memory, from its last checkpoint, after an out-of-memory error.

``oom_retry`` decides how much memory a retry gets. The scheduler records each retry, and raises the memory of other
trials with similar memory settings to the same amount. Memory settings are the entries of a config that can affect the
memory use of its trial. ``ray_compat`` contains the code that depends on Tune's private APIs.
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

from ..scheduling.wrapping_scheduler import WrappingScheduler, nested_schedulers
from .oom_retry import MemoryFloor, decide_retry, floor_of, limit_floor, next_floor

_logger = logging.getLogger(__name__)

Setting = bool | int | float | str | None

MemorySettings = dict[str, Setting]
"""The entries of a config that can affect the memory use of its trial, keyed by their paths in the config."""


def memory_settings(config: Mapping[str, object], memory_keys: Sequence[str] | None = None) -> MemorySettings:
    """Return the entries of ``config`` that can affect the memory use of its trial.

    ``memory_keys`` are the keys of these entries, such as ``"model/width"`` for a nested key. By default, all entries
    except fractional numbers are returned, because a number such as a learning rate of 0.1 does not affect memory. A
    float with a whole value is included, because some searchers suggest values such as a batch size of 64.0.
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
    """Return the ``memory_keys`` that no config contains, with suggestions such as ``"; did you mean 'width'?"``."""
    paths = {path for config in configs for path, _ in _flatten("", config, keep_fractions=True)}
    known = {prefix for path in paths for prefix in accumulate(path.split("/"), "{}/{}".format)}
    return {key: suggest(key, known) for key in memory_keys if key not in known}


def _encodable(text: str) -> str:
    """Return ``text`` with lone surrogates escaped. Python uses lone surrogates in file names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


class OomRecord(Value):
    """The memory with which a trial was retried after an out-of-memory error.

    Attributes:
        settings: The memory settings of the trial's config.
        floor: The minimum memory for a trial with similar settings.
    """

    settings: MemorySettings
    floor: MemoryFloor

    def applies_to(self, settings: MemorySettings) -> bool:
        """Return whether a trial with ``settings`` needs at least the recorded memory.

        It needs this memory if no number is smaller than in the record and all other entries are equal.
        """
        both = self.settings.keys() & settings.keys()
        # If only one config has a whole float, such as a dropout of 0.0, the other config may have a fractional number,
        # which is not a memory setting.
        in_one_only = [found[path] for found in (self.settings, settings) for path in found.keys() - both]
        return all(isinstance(value, float) and value.is_integer() for value in in_one_only) and all(
            _is_no_less(settings[path], self.settings[path]) for path in both
        )


def _is_no_less(value: object, recorded: object) -> bool:
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (value, recorded)):
        return type(value) is type(recorded) and value == recorded
    return value >= recorded  # type: ignore[operator, no-any-return]


def floor_for(settings: MemorySettings, records: Iterable[OomRecord]) -> MemoryFloor:
    """Return the minimum memory for a trial with ``settings``, which is the maximum of all records that apply."""
    floor = MemoryFloor()
    for record in records:
        if record.applies_to(settings):
            floor |= record.floor
    return floor


class TrialOomHistory(Value):
    """The out-of-memory retries of one trial.

    Attributes:
        records: A record for each retry with more memory.
        num_same_share_retries: The number of retries with the same GPU fraction since the last retry with more memory.
    """

    records: tuple[OomRecord, ...] = ()
    num_same_share_retries: Count = 0


def load_history(trial: Trial) -> TrialOomHistory:
    """Return the history of ``trial``, including the retries before Tune restored it."""
    text = getattr(trial, "oom_history", None)
    try:
        return TrialOomHistory() if text is None else TrialOomHistory.from_json(text)
    except InvalidResourcesError as error:  # another version of this package saved it
        _logger.warning("the out-of-memory history of %s cannot be read and is ignored: %s", trial, error)
        return TrialOomHistory()


def save_history(trial: Trial, history: TrialOomHistory) -> None:
    """Save ``history`` with ``trial``, so that a restored trial keeps it."""
    # When Tune saves the experiment, it saves all attributes of each trial as JSON.
    trial.oom_history = history.to_json()
    trial.invalidate_json_state()


_READ_TIMEOUT_S: Final = 10.0


class OomRetryScheduler(WrappingScheduler):
    """Wraps a Tune scheduler and retries trials with more memory after out-of-memory errors.

    The trial resumes from its latest checkpoint with a larger GPU fraction, or more host memory. For
    ``max_failures`` and ``fail_fast``, the error does not count as a failure. The failure is reported to the inner
    scheduler only if that scheduler is HyperBand, or if memory ran out while the trial saved a checkpoint.

    Later trials with a similar config start with the memory of the retry. A config is similar if none of its whole
    numbers is smaller than in the retried config, and all other entries, except fractional numbers, are equal. If
    Tune restores the experiment, the trials keep this memory.

    If a trial was within its GPU fraction but other trials filled the GPU, it is first retried up to two times with the
    same fraction.

    Args:
        inner: The scheduler that makes all other decisions. The default is Tune's ``FIFOScheduler``.
        growth: The factor by which a trial's memory grows. A GPU fraction is rounded up to the next fraction 1/k.
        max_gpus: The maximum number of GPUs of a trial. A trial that runs out of memory with this many GPUs fails with
            an error that explains the limit.
        memory_keys: A list of the config keys that affect the memory of a trial, such as ``["model/width"]`` for a
            nested key. The values may be fractional numbers. By default, all keys whose values are not fractional
            numbers are used. The scheduler logs a warning for each key that no config of the first trials contains.

    Raises:
        InvalidResourcesError: ``growth`` is not above 1, ``max_gpus`` is not a valid number of GPUs, or
            ``memory_keys`` is not a list of strings.
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
        """Add a trial. A new or restored trial gets the memory that the records require for its config."""
        if trial in self._planned:  # the trial was requeued
            save_experiment(tune_controller)
            super().on_trial_add(tune_controller, trial)
            return
        resources = trial.placement_group_factory
        # Ray's ResourceChangingScheduler requires equal requests for all trials, so it gets the planned request.
        trial.update_resources(planned_of(resources))
        super().on_trial_add(tune_controller, trial)
        self._planned[trial] = planned_of(trial.placement_group_factory)  # an inner PolicyScheduler may have changed it
        install_hook(trial, self, tune_controller)
        records = load_history(trial).records
        if resources != planned_of(resources):  # the trial was restored, and had more memory than planned
            settings = memory_settings(trial.config, self._memory_keys)
            records = (*records, OomRecord(settings=settings, floor=floor_of(bundles_of(resources))))
        if records and self._nodes is None:
            self._read_nodes()
        self._add_records(records)
        trial.update_resources(self._planned[trial])

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Raise the memory of a trial that this scheduler requeued, and report the failure as the base class does."""
        if requeued_by(trial) is self:
            self._add_records(load_history(trial).records)
            trial.update_resources(self._planned[trial])
        super().on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the inner scheduler decide, but do not pause a trial for a resource change that has no effect.

        A change has no effect if the trial already has the new resources because its memory was raised.
        """
        decision = super().on_trial_result(tune_controller, trial, result)
        for scheduler in nested_schedulers(self):
            if isinstance(scheduler, ResourceChangingScheduler):
                wanted = pending_change(scheduler, trial)
                if wanted is not None and self._with_needed_memory(trial, wanted) == trial.placement_group_factory:
                    drop_change(scheduler, trial)
                    return str(TrialScheduler.CONTINUE)
        return decision

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Raise the memory of waiting trials according to the newest records, then let the inner scheduler choose."""
        if self._unchecked_keys and self._planned:
            for key, suggestion in unknown_keys(self._unchecked_keys, [each.config for each in self._planned]).items():
                _logger.warning("no config of the first trials contains the key %r of memory_keys%s", key, suggestion)
            self._unchecked_keys = ()
        if self._records:
            for trial in list(tune_controller.get_live_trials()):
                # While a trial is paused, a scheduler such as PBT may replace its config.
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
        """Store ``planned`` as the planned request, and return it with the memory that earlier errors require."""
        self._planned[trial] = planned
        return self._with_needed_memory(trial, planned)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether to retry a trial that ran out of memory, and save the memory of the retry with the trial.

        Raises:
            InfeasibleRequestError: The trial ran out of memory and cannot get more memory.
        """
        history, out_of_memory = load_history(trial), classify_oom(error)
        if out_of_memory.kind == "none" and was_killed_by_kernel(error):
            out_of_memory = OutOfMemory(kind="host")
        bundles = bundles_of(trial.placement_group_factory)
        match decide_retry(bundles, out_of_memory, history.num_same_share_retries):
            case "leave_to_tune":
                return False
            case "same_share":
                _logger.warning("%s is retried with the same GPU fraction because other trials filled the GPU", trial)
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
        if nodes is None:  # more memory might not fit on any node, so the trial could stay pending indefinitely
            return None
        floor = next_floor(reservation, out_of_memory, growth=self._growth, max_gpus=self._max_gpus, nodes=nodes)
        _logger.warning(
            "%s ran out of %s memory and is retried with %s instead of %s",
            trial,
            "host" if out_of_memory.kind == "host" else "GPU",
            floor_of(floor.apply_to(reservation.bundles)),
            floor_of(reservation.bundles),
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
        if not self._records:
            return planned
        bundles = bundles_of(planned)
        try:
            needed = floor_for(memory_settings(trial.config, self._memory_keys), self._records)
            floor = limit_floor(needed, reservation_of(planned), max_gpus=self._max_gpus, nodes=self._nodes)
            raised = floor.apply_to(bundles)
        except Exception:  # an error in an object of the config must not stop the other trials
            if trial not in self._warned:
                _logger.exception(
                    "%s gets the planned memory, because comparing its config with earlier configs failed", trial
                )
            self._warned.add(trial)
            return planned
        if floor != needed and trial not in self._warned:
            _logger.warning(
                "%s needs %s according to earlier out-of-memory errors, but gets %s, because max_gpus or the nodes do "
                "not allow more",
                trial,
                needed,
                floor_of(raised),
            )
            self._warned.add(trial)
        return planned if raised == bundles else with_bundles(planned, raised)


def check_growth(growth: float) -> float:
    """Return ``growth`` if it is a number above 1, else raise ``InvalidResourcesError``."""
    if not is_number(growth) or not 1 < growth < float("inf"):
        raise InvalidResourcesError(f"growth must be a number above 1, got {growth!r}")
    return float(growth)


def check_max_gpus(max_gpus: float) -> float:
    """Return ``max_gpus`` if it is a valid number of GPUs above 0, else raise ``InvalidResourcesError``."""
    checked = check_gpus(max_gpus, name="max_gpus")
    if checked == 0:
        raise InvalidResourcesError("max_gpus must be above 0, got 0")
    return checked
