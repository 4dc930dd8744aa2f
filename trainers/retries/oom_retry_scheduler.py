"""A Tune scheduler that retries a trial with more memory, from its last checkpoint, after an out-of-memory error.

``oom_retry`` decides how much memory a retry gets. ``oom_history`` decides to which other trials a retry applies, so
that they start with the same memory. ``RunCore`` carries the decisions out.
"""

import logging
from collections.abc import Callable, Sequence

from ray.tune.schedulers import TrialScheduler

from tune_policies.cluster.node import NodeCapacity
from tune_policies.oom import OutOfMemory
from tune_policies.ray_compat.gcs import READ_TIMEOUT_S, read_cluster_state
from tune_policies.ray_compat.tune_request import bundles_of, group_of
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.field_types import check_names
from tune_policies.values.resources import check_gpus
from tune_policies.values.units import is_number

from ..scheduling.run_events import RunCore
from ..scheduling.run_failures import FailureDecision
from ..scheduling.run_scheduler import RunScheduler
from ..scheduling.trial_record import TrialRecord, request_of
from .memory_floor import MemoryFloor, floor_of, limit_gpus
from .oom_history import OomRecord, floor_for, memory_settings, unknown_keys
from .oom_retry import GROWTH, decide_retry, history_after

_logger = logging.getLogger(__name__)


class OomRetryScheduler(RunScheduler):
    """Wraps a Tune scheduler and retries trials with more memory after out-of-memory errors.

    The trial resumes from its latest checkpoint with a larger GPU fraction, or more host memory. For
    ``max_failures`` and ``fail_fast``, the error does not count as a failure. The failure is reported to the inner
    scheduler only if that scheduler is HyperBand, or if memory ran out while the trial saved a checkpoint.

    Later trials with a similar config start with the memory of the retry. A config is similar if none of its whole
    numbers is smaller than in the retried config, and all other entries, except fractional numbers, are equal. If
    Tune restores the experiment, the trials keep this memory.

    If a trial was within its GPU fraction but other processes filled the GPU, it is first retried up to two times with
    the same fraction. If Ray's memory monitor kills a trial that was within its reserved host memory, the trial is
    retried up to two times with the same memory, and then the error counts as a failure.

    Args:
        inner: The scheduler that makes all other decisions. The default is Tune's ``FIFOScheduler``.
        growth: The factor by which a trial's memory grows. A GPU fraction is rounded up to the next fraction 1/k.
        max_gpus: The maximum number of GPUs of a trial. A trial that runs out of memory with this many GPUs fails with
            an error that explains the limit.
        memory_keys: A list of the config keys that affect the memory of a trial, such as ``["model/width"]`` for a
            nested key. The values may be fractional numbers. By default, all keys whose values are not fractional
            numbers are used. The scheduler logs a warning for each key that no config of the first trials contains.

    Raises:
        InvalidResourcesError: ``inner`` is no scheduler, ``growth`` is not above 1, ``max_gpus`` is not a valid number
            of GPUs, or ``memory_keys`` is not a list of strings.
    """

    def __init__(
        self,
        inner: TrialScheduler | None = None,
        *,
        growth: float = GROWTH,
        max_gpus: float = 1.0,
        memory_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(inner)
        self._growth = check_growth(growth)
        self._max_gpus = check_max_gpus(max_gpus)
        self._memory_keys: Sequence[str] | None = None
        if memory_keys is not None:
            self._memory_keys = check_names(memory_keys, name="memory_keys")

    def _join(self, core: RunCore) -> None:
        super()._join(core)
        core.retries = OomRetries(self._growth, self._max_gpus, self._memory_keys)


class OomRetries:
    """The out-of-memory retries of one run.

    Args:
        growth: The factor by which a trial's memory grows.
        max_gpus: The maximum number of GPUs of a trial.
        memory_keys: The config keys that affect the memory, or ``None``.
        learned_growth: Returns the factor for a failed trial, according to what the run has learned, or ``None`` if it
            has not learned yet. Once it has, the policy decides how much memory other trials get.
    """

    def __init__(
        self,
        growth: float = GROWTH,
        max_gpus: float = 1.0,
        memory_keys: Sequence[str] | None = None,
        learned_growth: Callable[[TrialRecord], float | None] | None = None,
    ) -> None:
        self._growth = growth
        self._learned_growth = learned_growth
        self._has_learned = False
        self._max_gpus = max_gpus
        self._memory_keys = memory_keys
        self._unchecked_keys = memory_keys or ()
        self._records: list[OomRecord] = []
        self._warned: set[str] = set()

    @property
    def num_records(self) -> int:
        """The number of retries that may apply to other trials."""
        return len(self._records)

    def remember(self, record: TrialRecord) -> None:
        """Apply the earlier retries of a restored trial to other trials."""
        self._records += [oom for oom in record.oom.records if oom not in self._records]

    def check_keys(self, records: Sequence[TrialRecord]) -> None:
        """Log a warning for each key of ``memory_keys`` that no config of the first trials contains."""
        if not self._unchecked_keys or not records:
            return
        configs = [record.trial.config for record in records]
        for key, suggestion in unknown_keys(self._unchecked_keys, configs).items():
            _logger.warning("no config of the first trials contains the key %r of memory_keys%s", key, suggestion)
        # Only the first trials are checked, so that the warning comes once, and before the first error.
        self._unchecked_keys = ()

    def decide(
        self, record: TrialRecord, out_of_memory: OutOfMemory, nodes: Sequence[NodeCapacity] | None
    ) -> FailureDecision:
        """Decide whether to retry a trial that ran out of memory, and with how much memory.

        Raises:
            InfeasibleRequestError: The trial ran out of memory and cannot get more memory.
        """
        if out_of_memory.kind == "none":
            return FailureDecision("count")
        growth = None
        if self._learned_growth is not None:
            growth = self._learned_growth(record)
        self._has_learned |= growth is not None
        reservation = group_of(request_of(record))
        has_got_all = record.floor == record.needed
        if has_got_all and record.slot is not None and not record.keeps_own_bundles:
            # Another node may have more memory than the one to which the slot was bound. A trial that got less than it
            # needs already had the slot with the most, so only the nodes of its slot count.
            selector = record.slot.label_selector
            reservation = reservation._replace(selectors=[selector] * len(reservation.bundles))
        decision = decide_retry(
            reservation,
            out_of_memory,
            record.oom,
            growth=growth or self._growth,
            max_gpus=self._max_gpus,
            nodes=nodes or _read_nodes(),
        )
        if decision.kind == "leave_to_tune":
            _logger.warning(
                "%s ran out of memory, and the error counts as a failure: %s", record.trial, decision.reason
            )
            return FailureDecision("count", decision.reason)
        settings = memory_settings(record.trial.config, self._memory_keys)
        # The record is kept with the trial, so that a restored run knows it (``TrialRecord.save``).
        record.oom = history_after(record.oom, decision, out_of_memory, settings)
        self.remember(record)
        return FailureDecision("requeue", decision.reason, decision.pause_s)

    def floor_of(self, record: TrialRecord, nodes: Sequence[NodeCapacity] | None) -> MemoryFloor:
        """Return the minimum memory that earlier errors require for a trial, as far as ``max_gpus`` allows."""
        return limit_gpus(
            self._required_by_errors(record), group_of(record.planned), max_gpus=self._max_gpus, nodes=nodes
        )

    def _required_by_errors(self, record: TrialRecord) -> MemoryFloor:
        trial = record.trial
        try:
            # A policy that has learned plans what earlier trials needed.
            records = record.oom.records if self._has_learned else self._records
            return floor_for(memory_settings(trial.config, self._memory_keys), records)
        except Exception:  # an error in an object of the config must not stop the other trials
            if trial.trial_id not in self._warned:
                _logger.exception(
                    "%s gets the planned memory, because comparing its config with earlier configs failed", trial
                )
            self._warned.add(trial.trial_id)
            return MemoryFloor()

    def warn_if_limited(self, record: TrialRecord) -> None:
        """Log a warning if a trial starts with less memory than earlier errors require. It is logged once per trial."""
        trial = record.trial
        if not self._records or trial.trial_id in self._warned:
            return
        required = self._required_by_errors(record)
        if record.floor != required:
            _logger.warning(
                "%s needs %s according to earlier out-of-memory errors, but gets %s, because max_gpus or the nodes do "
                "not allow more",
                trial,
                required,
                floor_of(record.floor.apply_to(bundles_of(record.planned))),
            )
            self._warned.add(trial.trial_id)


def _read_nodes() -> Sequence[NodeCapacity] | None:
    """Return the nodes if the run has not read them yet."""
    try:
        return read_cluster_state(READ_TIMEOUT_S).nodes
    except ProbeError as error:
        _logger.warning("a trial needs more memory, but the nodes could not be read: %s", error)
        return None


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
