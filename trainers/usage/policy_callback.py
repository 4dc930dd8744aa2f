"""A Tune callback that prints and saves the resource use of a run.

``run_monitor`` computes the resource use. This module reads the clock, runs background threads and writes the files.
"""

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ray.tune import Callback
from ray.tune.experiment import Trial

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, get_text, read_bytes, read_text
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import put_text
from tune_policies.oom import OutOfMemory, classify_oom, classify_oom_text
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.probe.probe_cluster import is_printed
from tune_policies.ray_compat.background import BackgroundTask, answer_within
from tune_policies.ray_compat.gcs import READ_TIMEOUT_S, read_cluster_state
from tune_policies.ray_compat.run_control import handler_of_trial, number_of_trials
from tune_policies.ray_compat.tune_schedulers import actor_of, longest_trials
from tune_policies.ray_compat.tune_trial import is_function_class, unpickled_error
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten

from ..scheduling.own_slots import requested_plan
from ..scheduling.wrapping_scheduler import nested_schedulers
from ..watches.run_watch import ClusterReading, RunWatch
from .gpu_memory_records import GPU_MEMORY_KEY, OOM_NOTE, GpuMemoryUsage, RunUsage, read_usage
from .load_usage import LoadedUsage, learned_in
from .oom_report import OomReport
from .process_usage import USAGE_KEY, ProcessUsage
from .resource_usage import USAGE_FILE, ResourceUsage
from .run_facts import Machines
from .run_forecast import deadline_warning, describe_forecast, progress_of_run
from .run_metrics import RunMetrics
from .run_monitor import PlanFollower, RunMonitor
from .trial_reader import TrialReader
from .usage_report import summary_view

_logger = logging.getLogger(__name__)

_READ_EVERY_S: Final = 5.0
_STEP_EVERY_S: Final = 0.1
"""The interval for reading the states of trials, in seconds, while no trial starts, ends or fails.

Tune may take hundreds of steps per second, one for each result.
"""
_WRITE_EVERY_S: Final = 10.0
_FORECAST_EVERY_S: Final = 60.0
"""The interval for printing when the run will end, in seconds."""
_FORECASTS_BEFORE_DEADLINE: Final = 10
"""The minimum number of forecasts until a deadline, so that a short run is warned in time."""
_REPORT_EVERY_S: Final = 2.0
"""The interval for setting the metrics, in seconds. By default, Ray exports them every ten seconds."""
_WRITE_AFTER_FAILURE_S: Final = 1.0
"""The maximum delay of the next write after a failure, in seconds.

Tune's own state may be ten seconds old when a program is killed, so it may not include the latest failures.
"""
_END_TIMEOUT_S: Final = 10.0

_STATE_KEY: Final = "resource_usage"

_Hook = Callable[..., Any]


def _guarded(hook: _Hook) -> _Hook:
    """Return a hook whose first error is logged and disables it, because an observer must not end a run."""

    @functools.wraps(hook)
    def guarded(self: "PolicyCallback", *args: Any, **kwargs: Any) -> Any:
        if hook.__name__ in self._failed_hooks:
            return None
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:
            self._failed_hooks.add(hook.__name__)
            if self._run is not None:
                self._run.warn(f"the counts are not complete, because {hook.__name__} failed: {error}")
            _logger.exception("the counts of the resource use are not complete, because %s failed", hook.__name__)
            return None

    return guarded


def _in_run(hook: _Hook) -> _Hook:
    """Return a guarded hook that passes the current run to ``hook``, if there is one."""
    guarded = _guarded(hook)

    @functools.wraps(hook)
    def in_run(self: "PolicyCallback", *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            return None
        return guarded(self, self._run, *args, **kwargs)

    return in_run


class PolicyCallback(Callback):  # type: ignore[misc]  # Ray has no types
    """Prints the plan of a Tune run, each change of the plan, when the run will end, and the resource use at the end.

    It also writes the resource use to ``resource_usage.json`` in the experiment folder of the first trial, every ten
    seconds and at the end. Ray metrics contain the same data (see ``run_metrics``). A restored run continues from its
    earlier counts. An error in the callback is logged and does not end the run. During and after the run,
    ``callback.usage`` contains the resource use.

    The callback uses the plan of the run's ``PolicyScheduler``. In a run without a ``PolicyScheduler``, each trial gets
    ``plan`` or what the program requests, and the processes of the trials are read from outside.

    Args:
        plan: The plan of a run without a ``PolicyScheduler``.
        deadline_s: The time after which the run should have ended, in seconds since it began. If the 90 % interval of
            its end exceeds the deadline, a warning states what would help.
        price_per_hour: The price of the cluster per hour, as in a catalog, to show the cost at the end of the run.

    Raises:
        InvalidResourcesError: ``plan`` is not a plan, or a number is not positive.
    """

    _is_silent: bool = False
    """Whether nothing is printed or written before the end of the run."""
    _deadline_s: float | None
    _price_per_hour: float | None

    def __init__(
        self, plan: TrialPlan | None = None, *, deadline_s: float | None = None, price_per_hour: float | None = None
    ) -> None:
        if plan is not None and not isinstance(plan, TrialPlan):
            raise InvalidResourcesError(f"plan must be the TrialPlan of a policy, got {shorten(plan)}")
        for name, number in (("deadline_s", deadline_s), ("price_per_hour", price_per_hour)):
            if number is not None and not (isinstance(number, int | float) and number > 0):
                raise InvalidResourcesError(f"{name} must be a number above 0, got {shorten(number)}")
        self._plan = plan
        self._deadline_s = deadline_s
        self._price_per_hour = price_per_hour
        self._before: ResourceUsage | None = None
        self._reset_run()

    def _reset_run(self) -> None:
        self._run: RunMonitor | None = None
        self._final: ResourceUsage | None = None
        self._num_trials: int | None = None
        self._longest_trials: dict[str, float] = {}
        self._failed_hooks: set[str] = set()
        self._reading: BackgroundTask[ClusterCapacity] = BackgroundTask()  # without a scheduler of this package
        self._watch: RunWatch | None = None
        self._reader: TrialReader | None = None  # without a scheduler of this package
        self._last_reading: ClusterReading | None = None
        self._cluster_error: Exception | None = None  # the run cannot be counted before the nodes are known
        self._writing: BackgroundTask[None] = BackgroundTask()
        self._metrics: RunMetrics | None = None
        self._began_s = self._next_step_s = self._next_read_s = self._next_write_s = self._next_report_s = 0.0
        self._next_forecast_s = self._forecast_every_s(0.0)
        self._has_warned = False
        self._storage: Any = None
        self._function_trainables: dict[str, bool] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a ``Tuner`` pickles. :meth:`get_state` returns the counts of the run."""
        names = ("_plan", "_deadline_s", "_price_per_hour", "_before")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._deadline_s = self._price_per_hour = None  # an earlier version had no such options
        self.__dict__.update(state)
        self._reset_run()

    def _forecast_every_s(self, now_s: float) -> float:
        if self._deadline_s is None or now_s >= self._deadline_s:
            return _FORECAST_EVERY_S
        return min(_FORECAST_EVERY_S, self._deadline_s / _FORECASTS_BEFORE_DEADLINE)

    @property
    def usage(self) -> LoadedUsage:
        """What the current run has used so far, or what the latest run used.

        It is what :func:`load_usage` returns for the run's folder. If the folder is on another machine, ``trials`` is
        empty, and ``learned`` is ``None``.

        Raises:
            InvalidResourcesError: No trial of a run with this callback has started.
        """
        record = self._final
        if record is None and self._run is not None:
            record = self._run.record(self._now_s())
        if record is None:
            raise InvalidResourcesError(
                "the callback has no usage yet, because no trial of a run with this callback has started. Pass it to a "
                "run: run(train_fn, policy, callbacks=[callback])"
            )
        folder = Path(self._storage.experiment_fs_path)
        return LoadedUsage(trials=self._read_trials_usage().trials, resource_usage=record, learned=learned_in(folder))

    # Hooks for the run.

    @_guarded
    def setup(
        self, stop: Any = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: Any
    ) -> None:
        """Start a run. Counting starts with its first trial."""
        self._reset_run()
        self._began_s = time.monotonic()
        self._num_trials = number_of_trials(total_num_samples)

    @_guarded
    def _begin(self, trials: Sequence[Any]) -> None:
        """Start counting if the run has trials, and print the plan unless it was already printed."""
        if self._run is not None or not trials:
            return
        run = handler_of_trial(trials[0])
        scheduler = None
        if run is not None:
            self._watch = run.watch
            scheduler = next(
                (part for part in nested_schedulers(run.scheduler) if isinstance(part, PlanFollower)), None
            )
        # A later step of Tune comes here again if the nodes could not be read, and must not wait again.
        is_first = self._cluster_error is None
        self._reading.start(_read_capacity)
        if is_first:
            # Only this reading is waited for, so that the totals are known from the beginning.
            self._reading.wait(READ_TIMEOUT_S)
        cluster = self._reading.take()
        if scheduler is not None:
            plan = scheduler.plan
        else:
            plan = self._plan
            if plan is None and isinstance(cluster, ClusterCapacity):
                plan = requested_plan(trials[0].placement_group_factory, cluster)
        if plan is None:  # Ray may be busy, so a later step of Tune tries again
            no_answer = TimeoutError(f"Ray did not answer within {READ_TIMEOUT_S:g} s")
            self._cluster_error = cluster if isinstance(cluster, Exception) else no_answer
            return
        if scheduler is None:
            self._reader = TrialReader()  # without a policy, trials do not report what they use
        self._storage = trials[0].storage
        self._run = RunMonitor(plan, scheduler, self._num_trials, self._latest_record(), run)
        self._start(scheduler, cluster, trials)

    @_in_run
    def _start(
        self,
        run: RunMonitor,
        scheduler: PlanFollower | None,
        cluster: ClusterCapacity | Exception | None,
        trials: Sequence[Any],
    ) -> None:
        for part in nested_schedulers(scheduler):
            self._longest_trials |= longest_trials(part)
        self._take_reading(run, cluster, 0.0)
        for trial in trials:
            if trial.status == Trial.RUNNING:  # it started before the nodes could be read
                self._count_start(run, trial)
        if not self._is_silent and not is_printed(run.plan):
            TextConsole().print(run.plan.explain(), soft_wrap=True, highlight=False)

    def _latest_record(self) -> ResourceUsage | None:
        """Return the record of a restored run. The file in its folder may be newer than the state that Tune saved."""
        saved, self._before = self._before, None
        if saved is None:
            return None
        try:
            latest = answer_within(READ_TIMEOUT_S, partial(_read_resource_usage, self._storage))
        except Exception:  # noqa: BLE001  # file systems raise various errors, and the saved state can be used
            return saved
        if latest.elapsed_s <= saved.elapsed_s:
            return saved
        # Tune restores the trials from its saved state, so all counts except retries must match that state.
        counts = saved.trials.model_copy(update={"num_retries": latest.trials.num_retries})
        return latest.model_copy(update={"trials": counts})

    def on_step_begin(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Start counting before the first step of a restored run, because it already has trials."""
        self._begin(trials)

    def on_step_end(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Read the state of the trials and, every few seconds, of the cluster."""
        self._begin(trials)
        if time.monotonic() >= self._next_step_s:
            self._read_trials(trials)
            self._read_processes()

    def on_experiment_end(self, trials: Sequence[Any], **info: Any) -> None:
        """Print the resource use and write it to its file."""
        self._begin(trials)  # if no trial was left to run, Tune ran no step
        if self._run is None and self._cluster_error is not None:
            _logger.warning("resource use was not counted, because the nodes were not read: %s", self._cluster_error)
        self._end(trials)

    @_in_run
    def _read_trials(self, run: RunMonitor, trials: Sequence[Any]) -> None:
        now_s = self._now_s()
        self._next_step_s = time.monotonic() + _STEP_EVERY_S
        changes = run.step(trials, now_s)
        if not self._is_silent:
            for change in changes:
                first_line = change.text.partition("\n")[0]
                text = f"the plan changed ({change.why}): {first_line}"
                TextConsole().print(text, soft_wrap=True, highlight=False)
        self._read_cluster(run, now_s)
        if now_s >= min(self._next_forecast_s, self._next_write_s):
            self._forecast(run, trials, now_s)
        if self._is_silent:
            return
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_EVERY_S
            self._report_metrics()
        if now_s >= self._next_write_s:
            self._next_write_s = now_s + _WRITE_EVERY_S
            failure = self._writing.take()
            if isinstance(failure, Exception):
                run.warn(f"{USAGE_FILE} could not be written: {failure}")
            self._writing.start(usage_writer(self._storage, run.record(now_s).model_dump_json()))

    @_in_run
    def _read_processes(self, run: RunMonitor) -> None:
        """Read what the processes of trials use, if the trials do not report it."""
        if self._reader is None:
            return
        trials = run.running_trials()
        actors = {}
        for trial_id, trial in trials.items():
            actor_id = actor_of(trial)
            if actor_id is not None:
                actors[trial_id] = actor_id
        for trial_id in self._reader.read(actors):
            trial = trials.get(trial_id)
            if trial is not None:
                amounts = trial.placement_group_factory.required_resources
                cpus, gpus = amounts.get("CPU", 0.0), amounts.get("GPU", 0.0)
                run.note_use(trial, *self._reader.usage(trial_id, cpus=cpus, gpus=gpus))
        run.machines = Machines(self._reader.usable_cpus, self._reader.load, self._reader.start_cpu_s)

    def _forecast(self, run: RunMonitor, trials: Sequence[Any], now_s: float) -> None:
        """Forecast the end of the run for the record, print it, and warn of a missed deadline."""
        num_stopped = run.status().trials.num_stopped_early
        progress = progress_of_run(
            trials,
            num_trials=self._num_trials,
            ends=self._longest_trials,
            num_stopped=num_stopped,
            times=run.slot_times(now_s),
        )
        if progress is None:
            return
        at_once = run.plan.max_concurrent_trials
        forecast = progress.forecast(at_once)
        if forecast is None:
            return
        text = describe_forecast(forecast, self._price_per_hour, run.elapsed_s(now_s))
        run.note_forecast(text, now_s)
        # The record contains every forecast, and the terminal shows only some of them.
        if now_s < self._next_forecast_s:
            return
        self._next_forecast_s = now_s + self._forecast_every_s(now_s)
        if not self._is_silent:
            ended = str(sum(trial.is_finished() for trial in trials))
            text = f"{ended} of {self._num_trials} trials have ended, and the run {run.forecast}"
            TextConsole().print(text, soft_wrap=True, highlight=False)
        if self._deadline_s is not None:
            warning = deadline_warning(progress, self._deadline_s - now_s, at_once=at_once, num_nodes=run.num_nodes)
            if warning and not self._has_warned:
                _logger.warning("%s", warning)
            # After a forecast that meets the deadline, the next missed one is a new warning.
            self._has_warned = bool(warning)

    @_in_run
    def _end(self, run: RunMonitor, trials: Sequence[Any]) -> None:
        now_s = self._now_s()
        run.end(trials, now_s)
        if not self._is_silent:
            self._report_metrics(is_end=True)
        usage = self._final = run.record(now_s, is_final=True)
        self._show(run, usage)
        if not self._is_silent:
            self._write_at_end(usage)

    def _show(self, run: RunMonitor, usage: ResourceUsage) -> None:
        """Print the resource use at the end of the run, with the advice of ``tune-policies usage``."""
        try:
            trials = answer_within(_END_TIMEOUT_S, self._read_trials_usage)
        except Exception as error:  # noqa: BLE001  # file systems raise various errors, and the record can be shown
            _logger.warning("the results of the trials could not be read for the summary: %s", error)
            trials = RunUsage(trials=())
        TextConsole().print(summary_view(trials, usage))

    def _read_trials_usage(self) -> RunUsage:
        try:
            return read_usage(Path(self._storage.experiment_fs_path))
        except InvalidResourcesError:  # no trial has a file yet, or the folder is not on this machine
            return RunUsage(trials=())

    @_in_run
    def _report_metrics(self, run: RunMonitor, *, is_end: bool = False) -> None:
        if self._metrics is None:
            self._metrics = RunMetrics(str(self._storage.experiment_dir_name))
        self._metrics.report(run.status())
        if is_end:
            self._metrics.end()

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _read_cluster(self, run: RunMonitor, now_s: float) -> None:
        """Use the latest reading of the run's watch, or read the nodes if the run has no watch."""
        if self._watch is not None:
            latest = self._watch.latest
            if latest is not None and latest is not self._last_reading:
                self._last_reading = latest
                run.read_cluster(ClusterCapacity(nodes=latest.nodes, draining=latest.draining), now_s)
            return
        self._take_reading(run, self._reading.take(), now_s)
        if now_s >= self._next_read_s and self._reading.start(_read_capacity):
            # If an earlier reading is still running, the next step of Tune tries again.
            self._next_read_s = now_s + _READ_EVERY_S

    def _take_reading(self, run: RunMonitor, reading: ClusterCapacity | Exception | None, now_s: float) -> None:
        match reading:
            case None:
                pass
            case Exception() as error:
                run.warn(f"the nodes of the cluster could not be read: {error}")
            case cluster:
                run.read_cluster(cluster, now_s)

    def _write_at_end(self, usage: ResourceUsage) -> None:
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        # An earlier record that is still being written must not replace the last record.
        self._writing.wait(_END_TIMEOUT_S)
        while self._writing.take() is not None:  # errors of earlier records no longer matter
            pass
        self._writing.start(usage_writer(self._storage, usage.model_dump_json()))
        is_done = self._writing.wait(max(0.1, deadline_s - time.monotonic()))
        failure = self._writing.take()
        if not is_done or failure is not None:
            why: object = failure
            if not is_done:
                why = f"writing was not completed within {_END_TIMEOUT_S:g} s"
            _logger.warning("%s could not be written: %s", USAGE_FILE, why)

    # Hooks for trials.

    @_in_run
    def on_trial_start(self, run: RunMonitor, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Count a trial that starts or resumes."""
        self._next_step_s = 0.0
        self._count_start(run, trial)

    def _count_start(self, run: RunMonitor, trial: Any) -> None:
        run.start(trial, self._now_s())
        if self._reader is not None:
            self._reader.begin(trial.trial_id)

    @_in_run
    def on_trial_result(
        self, run: RunMonitor, iteration: int, trials: Sequence[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record the resource use and the failed allocations in a result, and whether the trial was stopped."""
        # A function trainable ends without a last result, so a "done" result means that a scheduler or ``stop={…}``
        # stopped the trial.
        if result.get("done") and self._is_function(trial):
            run.complete(trial, is_stopped=True, is_at_end=self._is_at_end(trial, result))
        run.note_result(trial, result)
        if USAGE_KEY in result or GPU_MEMORY_KEY in result:  # most results contain no usage
            process = _value_of(ProcessUsage, result.get(USAGE_KEY))
            run.note_use(trial, process, _value_of(GpuMemoryUsage, result.get(GPU_MEMORY_KEY)))

    @_in_run
    def on_trial_complete(
        self, run: RunMonitor, iteration: int, trials: Sequence[Any], trial: Any, **info: Any
    ) -> None:
        """Count a trial that completed."""
        self._next_step_s = 0.0
        run.complete(trial, is_stopped=False, is_at_end=self._is_at_end(trial, trial.last_result))

    def _is_at_end(self, trial: Any, result: Mapping[str, Any]) -> bool:
        """Return whether the trial has reached ``stop={…}`` or the scheduler's ``max_t``."""
        ends = (*trial.stopping_criterion.items(), *self._longest_trials.items())
        return any(name in result and result[name] >= end for name, end in ends)

    @_in_run
    def on_trial_recover(self, run: RunMonitor, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Count a failure of a trial that is requeued."""
        self._next_step_s = 0.0
        run.fail(trial, last_failure(trial), _last_line(trial), is_requeued=True)
        self._next_write_s = min(self._next_write_s, self._now_s() + _WRITE_AFTER_FAILURE_S)

    @_in_run
    def on_trial_error(self, run: RunMonitor, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Count a trial that has failed."""
        self._next_step_s = 0.0
        run.fail(trial, last_failure(trial), _last_line(trial), is_requeued=False)

    def _is_function(self, trial: Any) -> bool:
        name = trial.trainable_name
        if name not in self._function_trainables:  # the lookup unpickles the trainable
            self._function_trainables[name] = is_function_class(trial.get_trainable_cls())
        return self._function_trainables[name]

    # Saving and restoring.

    @_guarded
    def get_state(self) -> dict[str, Any] | None:
        """Return the counts of the run, so that a restored run can continue from them."""
        if self._run is None:
            return None
        return {_STATE_KEY: self._run.record(self._now_s()).model_dump_json()}

    @_guarded
    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the counts of a restored run."""
        try:
            self._before = ResourceUsage.from_json(state[_STATE_KEY])
        except (InvalidResourcesError, KeyError, TypeError) as error:  # another version of this package saved it
            _logger.warning("the saved resource use cannot be read, so counting starts again: %s", error)


_V = TypeVar("_V", bound=Value)


def _value_of(kind: type[_V], data: object) -> _V | None:
    """Parse ``data`` as ``kind``. Return ``None`` if it is missing, or if a user reported other data under its key."""
    try:
        if data is None:
            return None
        return kind.from_dict(data)
    except InvalidResourcesError:
        return None


def _read_capacity() -> ClusterCapacity:
    state = read_cluster_state(READ_TIMEOUT_S)
    return ClusterCapacity(nodes=state.nodes, draining=state.draining)


def last_failure(trial: Any) -> OutOfMemory:
    """Return the latest failure of ``trial`` as its scheduler classified it, or classify it from Tune's error files.

    The file with the pickled error is ignored if it belongs to an earlier failure.
    """
    run = handler_of_trial(trial)
    if run is not None:
        record = run.records.get(trial)
        if record is not None and record.failure is not None:
            return record.failure  # type: ignore[no-any-return]
    text = _failure_text(trial)
    report = OomReport.from_text(text)
    if report is not None:
        return report.out_of_memory
    error = None
    if trial.pickled_error_file:
        # If the pickled error cannot be read, its text is classified below.
        with suppress(UnreadableFileError):
            error = unpickled_error(read_bytes(trial.pickled_error_file, max_bytes=MAX_RECORD_BYTES))
    if error is not None and str(error) in text:
        return classify_oom(error)
    return classify_oom_text(text)


def _failure_text(trial: Any) -> str:
    file = trial.error_file
    if file:
        return read_text(file, max_bytes=MAX_RECORD_BYTES, errors="replace").rpartition("Failure #")[2]
    return ""


def _last_line(trial: Any) -> str:
    """Return the last line of the latest error of ``trial``, without the notes that follow the error."""
    lines = (line for line in reversed(_failure_text(trial).splitlines()) if line.strip())
    return next((line for line in lines if not line.startswith(OOM_NOTE)), "")[:200]


def _read_resource_usage(storage: Any) -> ResourceUsage:
    file = f"{storage.experiment_fs_path}/{USAGE_FILE}"
    return ResourceUsage.from_json(get_text(storage.storage_filesystem, file, max_bytes=MAX_RECORD_BYTES))


def usage_writer(storage: Any, text: str) -> Callable[[], None]:
    """Return a function that atomically writes ``text`` to the usage file in the experiment folder."""
    return partial(put_text, storage.storage_filesystem, f"{storage.experiment_fs_path}/{USAGE_FILE}", text)
