"""The processes of a run's trials: what they are started with, and which of their failures Tune gets to see.

``TuneController`` starts, resets and calls its processes only through an actor manager. This subclass of Tune's own
actor manager adds arguments to the start and the reset of a process, and lets a ``FailureHandler`` look at each failure
before Tune counts it. The private members used here are the same in Ray 2.50 and 2.60.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ray.exceptions import RayActorError, RayError, RayTaskError

from tune_policies.ray_compat.background import BackgroundTask
from tune_policies.ray_compat.placement_groups import PlacementGroups
from tune_policies.ray_compat.version import Gone

try:
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.air.execution._internal.tracked_actor import TrackedActor
    from ray.tune.result import TRIAL_INFO
except ImportError as error:
    RayActorManager = TrackedActor = TRIAL_INFO = Gone(error, "a scheduler that assigns slots to trials")

_Report = Callable[[Any, Exception], None]

_LATE_INTERVAL_S = 0.02
"""The time to wait for other events while the cause of a failure is being looked up, in seconds."""


class FailureHandler(Protocol):
    """Decides what a process is started with, and what happens when it fails. Trials are identified by their IDs."""

    @property
    def starts_more(self) -> bool:
        """Whether another trial can start at once, so that Tune must not wait for events."""

    def arguments_of(self, trial_id: str) -> dict[str, Any]:
        """Return additional arguments for the process that starts a trial, or that is reset for it."""

    def start_error(self, trial_id: str) -> Exception | None:
        """Return the error with which a trial fails instead of being started, or ``None``."""

    def is_running(self, trial_id: str) -> bool:
        """Return whether Tune considers the trial to be running."""

    def note_death(self, trial_id: str) -> None:
        """Note that the process of a running trial has died. The failed call reports the failure afterwards."""

    def look_up(self, trial_id: str, error: Exception) -> Callable[[], object] | None:
        """Return a function that looks up the cause of an error and may take seconds, or ``None`` if none is needed."""

    def report_failure(self, trial_id: str, error: Exception, cause: object, report: Callable[[], None]) -> None:
        """Decide about a failure, and call ``report`` so that Tune handles it."""

    def end(self) -> None:
        """Handle the end of the run, after its last process."""


class _LateFailure(NamedTuple):
    """A failure whose cause is being looked up."""

    trial_id: str
    error: Exception
    report: Callable[[], None]
    cause: BackgroundTask[object]


class TrialActors(RayActorManager):  # type: ignore[misc]  # Ray has no types
    """Tune's actor manager, with a ``FailureHandler`` between the processes and Tune.

    Attributes:
        handler: The decisions about processes.
        is_handling_event: Whether Tune is handling an event of a process.
    """

    handler: FailureHandler
    is_handling_event = False

    def __init__(self, resource_manager: PlacementGroups) -> None:  # Ray calls it again at the end of a run
        super().__init__(resource_manager=resource_manager)
        self._actor_of: dict[str, Any] = {}
        self._trial_of: dict[Any, str] = {}
        self._resets: dict[Any, Callable[[Any, bool], None]] = {}
        self._never_started: deque[tuple[Any, Exception, _Report]] = deque()
        self._failed_starts: set[Any] = set()
        self._late: list[_LateFailure] = []

    def has_process(self, trial_id: str) -> bool:
        """Return whether Ray has granted the trial's request, so that its process runs or is starting."""
        actor = self._actor_of.get(trial_id)
        return actor is not None and (self.is_actor_started(actor) or self._is_late(trial_id))

    def group_of(self, trial_id: str) -> str | None:
        """Return the ID of the placement group of a trial's process, or ``None`` if it has no process."""
        actor = self._actor_of.get(trial_id)
        if actor is None:
            return None
        acquired = self.get_actor_resources(actor)
        if acquired is None:
            return None
        return str(acquired.placement_group.id.hex())

    def _is_late(self, trial_id: str) -> bool:
        return any(failure.trial_id == trial_id for failure in self._late)

    def next(self, timeout: float | None = None) -> bool:
        """Handle the next event. If another trial can start at once, do not wait for events."""
        # Ray's own ``next`` calls this method again after each granted request.
        self.is_handling_event = True
        try:
            return self._handle_next(timeout)
        finally:
            self.is_handling_event = False

    def cleanup(self) -> None:
        """End the remaining processes. Tune calls this method once, when the run ends for any reason."""
        super().cleanup()
        self.handler.end()

    def _handle_next(self, timeout: float | None) -> bool:
        # Without an event, ``TuneController.step`` may warn that the resources are insufficient.
        if self._report_late_failures():
            return True
        if self._never_started:
            # One per step, as Tune handles one event per step.
            actor, error, report = self._never_started.popleft()
            report(actor, error)
            return True
        if self.handler.starts_more:
            timeout = 0
        elif self._late:
            timeout = _LATE_INTERVAL_S
        began_s = time.monotonic()
        if super().next(timeout):
            return True
        if timeout:
            # ``ray.wait`` returns at once without futures, for example while all trials wait for nodes. Plain Tune
            # always waits for the requests of its pending trials.
            time.sleep(max(0.0, began_s + timeout - time.monotonic()))
        return False

    def _report_late_failures(self) -> bool:
        known = [failure for failure in self._late if failure.cause.wait(0)]
        for failure in known:
            # Removed first, because the report may look for late failures (``has_process``).
            self._late.remove(failure)
            cause = failure.cause.take()
            self.handler.report_failure(failure.trial_id, failure.error, cause, failure.report)
        return bool(known)

    def add_actor(
        self, cls: Any, kwargs: Mapping[str, Any], resource_request: Any, *, on_error: _Report, **callbacks: Any
    ) -> Any:
        """Request a process for a trial. A trial that cannot start fails in the next step."""
        # Tune passes the trial only inside the config (``_get_trainable_kwargs``).
        trial_id = kwargs["config"][TRIAL_INFO].trial_id
        error = self.handler.start_error(trial_id)
        if error is not None:
            # Tune's controller expects an actor for each request, so this trial gets one that has no process.
            actor = TrackedActor(hash(trial_id), on_error=on_error)
            self._failed_starts.add(actor)
            self._never_started.append((actor, error, self._deciding_start(on_error)))
        else:
            actor = super().add_actor(
                cls,
                {**kwargs, **self.handler.arguments_of(trial_id)},
                resource_request,
                on_error=self._deciding_start(on_error),
                **callbacks,
            )
        self._assign(actor, trial_id)
        return actor

    def _assign(self, actor: Any, trial_id: str) -> None:
        self._forget(actor)
        self._trial_of[actor] = trial_id
        self._actor_of[trial_id] = actor

    def _forget(self, actor: Any) -> None:
        trial_id = self._trial_of.pop(actor, None)
        if trial_id is not None and self._actor_of.get(trial_id) is actor:
            del self._actor_of[trial_id]

    def remove_actor(self, tracked_actor: Any, *args: Any, **kwargs: Any) -> bool:
        """Stop a process, or cancel its request."""
        self._forget(tracked_actor)
        if tracked_actor in self._failed_starts:
            # The trial no longer waits for this failure, for example because its request was withdrawn.
            left = (failed for failed in self._never_started if failed[0] is not tracked_actor)
            self._never_started = deque(left)
            # After True, Tune would wait for the process to stop (``TuneController._remove_actor``).
            return False
        return bool(super().remove_actor(tracked_actor, *args, **kwargs))

    def schedule_actor_task(
        self,
        tracked_actor: Any,
        method_name: str,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        on_result: Callable[..., None] | None = None,
        on_error: _Report | None = None,
        **options: Any,
    ) -> Any:
        """Call a method of a process."""
        if tracked_actor in self._failed_starts:
            return None
        # With reset, Tune reuses the process for another trial, whose ID is only in the new config.
        if method_name == "reset" and args and on_result is not None:
            next_id = args[0][TRIAL_INFO].trial_id
            self._assign(tracked_actor, next_id)
            kwargs = {**(kwargs or {}), **self.handler.arguments_of(next_id)}
            self._resets[tracked_actor] = on_result
            on_result = self._ending_reset(on_result)
        # Looked up now, because a dead process is removed before the callback of its failed call.
        trial_id = self._trial_of.get(tracked_actor)
        if on_error is not None and trial_id is not None:
            on_error = self._deciding(trial_id, on_error)
        return super().schedule_actor_task(
            tracked_actor, method_name, args, kwargs, on_result=on_result, on_error=on_error, **options
        )

    def _ending_reset(self, on_result: Callable[..., None]) -> Callable[..., None]:
        def end_reset(actor: Any, *result: Any) -> None:
            self._resets.pop(actor, None)
            on_result(actor, *result)

        return end_reset

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        """Handle a failed call.

        A process that dies while it is reset for another trial is treated as started, so that its death is reported by
        its next call. Otherwise Tune would report it twice, and the second report would end the trial. Tune also ends
        the whole run after an error of Ray that it does not know, for example if Ray's memory monitor kills a process.
        """
        actor = tracked_actor_task._tracked_actor
        on_result = self._resets.pop(actor, None)
        if on_result is not None and not isinstance(exception, RayTaskError):
            on_result(actor, True)
            return
        if isinstance(exception, RayError) and not isinstance(exception, RayTaskError | RayActorError):
            # Tune handles the death of a process only as a ``RayActorError``. Its cause is used to classify the
            # failure.
            cause, exception = exception, RayActorError(error_msg=str(exception))
            exception.__cause__ = cause
        super()._actor_task_failed(tracked_actor_task, exception)

    def _deciding_start(self, report: _Report) -> _Report:
        """Return a callback for the death of a process.

        If the process runs a trial, the failed call reports the failure, so only the process is removed here.
        """

        def report_start(actor: Any, error: Exception) -> None:
            trial_id = self._trial_of[actor]
            # ``RayActorManager._actor_task_failed`` calls this callback first, and then the callback of the failed
            # call.
            if self.handler.is_running(trial_id):
                self.handler.note_death(trial_id)
                report(actor, error)
            else:
                self._decide(trial_id, error, lambda: report(actor, error))

        return report_start

    def _deciding(self, trial_id: str, report: _Report) -> _Report:
        """Return a callback for a failed call."""

        def report_call(actor: Any, error: Exception) -> None:
            self._decide(trial_id, error, lambda: report(actor, error))

        return report_call

    def _decide(self, trial_id: str, error: Exception, report: Callable[[], None]) -> None:
        # The look-up may take seconds, and Tune must handle the events of other trials meanwhile.
        look_up = self.handler.look_up(trial_id, error)
        if look_up is None:
            self.handler.report_failure(trial_id, error, None, report)
            return
        cause: BackgroundTask[object] = BackgroundTask()
        cause.start(look_up)
        # ``_handle_next`` reports it when the cause is known. Until then, Tune does not see the failure.
        self._late.append(_LateFailure(trial_id, error, report, cause))
