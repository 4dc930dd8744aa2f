"""Measures how much memory each config needs, by short trials on whole GPUs.

A trial sends its readings to an actor, because a trial that is ended at a cap reports no result.
"""

import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

import ray
from ray import tune

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.terminal import tell
from tune_policies.oom import classify_oom
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile, flat
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies import GpuMemoryPolicy, GpuPolicy
from tune_policies.probe.nvml import NvmlError, bytes_of_process, read_device_use, read_gpus
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.connection import connection
from tune_policies.ray_compat.tune_trial import class_of_function, draw, extremes, is_domain, is_duplicate
from tune_policies.tune.usage.resource_usage import format_hours
from tune_policies.values.errors import InvalidResourcesError, MeasurementError
from tune_policies.values.resources import Bytes, Count, UsedBytes, check_count
from tune_policies.values.sanitize import redacted
from tune_policies.values.units import MIB, is_number
from tune_policies.values.value import Value, counted, shorten

from ..policy_scheduler import PolicyScheduler
from .counters import FrameworkMemory, read_counters
from .free_memory import shipped_psutil
from .overhead import Overheads, load_overheads

Configs = Sequence[Mapping[str, Any]] | Mapping[str, Any]

_MOST_SEED: Final = 2**32 - 1


def configs_to_measure(configs: Configs, num_samples: int, seed: int) -> list[dict[str, Any]]:
    """Return the configs to measure, each once.

    ``num_samples`` configs are drawn from a search space. The integers have their largest values in the first and their
    smallest in the second, because memory grows with them and is only extrapolated beyond the measured range.
    """
    check_count(num_samples, least=1, name="num_samples")
    if check_count(seed, least=0, name="seed") > _MOST_SEED:
        raise InvalidResourcesError(f"seed must be a whole number from 0 to {_MOST_SEED}, got {shorten(seed)}")
    drawn = _drawn(configs, num_samples, seed) if isinstance(configs, Mapping) else list(_given(configs))
    different = list({repr(flat(config)): config for config in drawn}.values())
    if not different:
        raise InvalidResourcesError("no configs to measure: give at least one, or a search space")
    return different


def _given(configs: Any) -> Iterator[dict[str, Any]]:
    if isinstance(configs, str | bytes) or not hasattr(configs, "__iter__"):
        raise InvalidResourcesError(f"configs must be a list of configs or a search space, got {shorten(configs)}")
    for number, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise InvalidResourcesError(
                f"configs[{number}] must be a mapping of names to values, got {shorten(config)}"
            )
        if (name := _name_of_space(config)) is not None:
            raise InvalidResourcesError(
                f"configs[{number}] has a search space for {name!r}, not a value: give values, or pass one search "
                "space as configs, from which num_samples are drawn"
            )
        yield dict(config)


def _name_of_space(config: Mapping[str, Any]) -> str | None:
    for name, value in config.items():
        if is_domain(value) or name == "grid_search":
            return str(name)
        if isinstance(value, Mapping) and (within := _name_of_space(value)) is not None:
            return str(name) if within == "grid_search" else f"{name}/{within}"
    return None


def _drawn(space: Mapping[str, Any], num_samples: int, seed: int) -> list[dict[str, Any]]:
    import numpy as np

    state = np.random.RandomState(seed)  # with the seed itself, all draws would be equal
    spaces = [_with_whole_numbers(space, max), _with_whole_numbers(space, min), *[space] * num_samples]
    try:
        return [config for each in spaces[:num_samples] for config in draw(each, state)]
    except Exception as error:  # of the user's functions in the space, or of Tune
        raise InvalidResourcesError(
            f"no configs can be drawn from the search space: {type(error).__name__}: {error}"
        ) from error


def _with_whole_numbers(space: Any, choose: Callable[[list[int]], int]) -> Any:
    """Return the space with the chosen value in place of each domain of integers. Grids stay, and are measured."""
    if isinstance(space, Mapping):
        if space.keys() == {"grid_search"}:
            return dict(space)
        return {name: _with_whole_numbers(value, choose) for name, value in space.items()}
    if isinstance(space, list):
        return [_with_whole_numbers(value, choose) for value in space]
    return choose(values) if (values := extremes(space)) else space


def check_trainable(trainable: Any) -> None:
    """Raise an ``InvalidResourcesError`` if it is not a function of a config or a ``tune.Trainable``."""
    is_class = isinstance(trainable, type)
    if not callable(trainable) or (is_class and not issubclass(trainable, tune.Trainable)):
        raise InvalidResourcesError(
            f"a trainable must be a function of a config or a subclass of ray.tune.Trainable, got {shorten(trainable)}"
        )
    if not is_class:
        try:
            class_of_function(trainable)
        except ValueError as error:  # it takes no config
            raise InvalidResourcesError(f"{shorten(trainable)} is not a trainable: {error}") from error


MEASURED: Final = "measured"
"""The only key of Tune's config, with the number of the measured config, and this config."""

_SAMPLE_S: Final = 0.25
"""The interval of readings between results, for frameworks that keep no peaks."""

_HAND_OVER_S: Final = 10.0
"""The deadline for sending a reading."""

_TAKE_MORE_THAN_NEEDED: Final = ("tensorflow", "jax")
"""Frameworks that reserve most of a device at the start, so that only the memory of their tensors counts."""

Ended = Literal["finished", "max_steps", "timeout", "out_of_memory", "failed"]


class Reading(Value):
    """The memory that a trial has used so far.

    Attributes:
        peak_bytes: The peak of each framework's allocator, or of its tensors if it reserves more than it needs.
        total_bytes: Peaks and overhead, or the driver's figure for the process if that is larger.
        overhead_bytes: The memory outside the allocators, measured or a safe default.
        host_memory_bytes: The peak host memory of the process and its children.
        num_steps: Results so far.
        ended_by: Why the trial ended, or ``None`` if it still runs.
        device_bytes: The GPU's memory.
        versions: The versions of the frameworks that use the GPU.
    """

    peak_bytes: dict[str, UsedBytes]
    total_bytes: UsedBytes
    overhead_bytes: UsedBytes
    host_memory_bytes: Bytes
    num_steps: Count
    ended_by: Ended | None
    error: str | None
    gpu_model: str | None
    device_bytes: Bytes | None
    versions: dict[str, str]


class Recorder:
    """An actor that keeps the last reading of each trial."""

    def __init__(self) -> None:
        self._readings: dict[int, Reading] = {}

    def record(self, number: int, reading: Reading) -> None:
        """Keep a trial's reading by the number of its config, unless an earlier reading says why it ended."""
        before = self._readings.get(number)
        if before is None or before.ended_by is None:
            self._readings[number] = reading

    def readings(self) -> dict[int, Reading]:
        """Return all readings by the numbers of their configs."""
        return self._readings


class _Caps(NamedTuple):
    """When a measured trial ends."""

    max_steps: int
    timeout_s: float


def _measured_trial(
    trainable: Callable[..., Any] | type[tune.Trainable], recorder: Any, caps: _Caps, overheads: Overheads
) -> type[tune.Trainable]:
    """Return a class of trials that measure themselves."""
    cls = trainable if isinstance(trainable, type) else class_of_function(trainable)
    fields = {"_recorder": recorder, "_caps": caps, "_overheads": overheads}
    return type(f"measured_{getattr(trainable, '__name__', cls.__name__)}", (_Measured, cls), fields)


class _Measured(tune.Trainable):  # type: ignore[misc]  # Ray is not followed
    _recorder: Any
    _caps: _Caps
    _overheads: Overheads

    def __init__(self, config: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        config = dict(config)  # Tune keeps the original
        measured = config.pop(MEASURED)
        self._number: int = measured["number"]
        self._num_steps = 0
        self._peaks: dict[str, int] = {}
        self._most_of_process = 0
        self._host_memory_bytes = 0
        self._lock = threading.Lock()
        self._ends_at = time.monotonic() + self._caps.timeout_s
        # Before the user's constructor, which may use all memory, or hang.
        threading.Thread(target=self._watch, daemon=True).start()
        with self._failures_recorded():
            super().__init__({**measured["config"], **config}, *args, **kwargs)

    def step(self) -> dict[str, Any]:
        with self._failures_recorded():
            result: dict[str, Any] = super().step()
        is_last = is_duplicate(result)
        self._num_steps += not is_last
        ended_by: Ended | None = None
        if is_last or result.get("done"):
            ended_by = "finished"
        elif self._num_steps >= self._caps.max_steps:
            ended_by = "max_steps"
        elif time.monotonic() >= self._ends_at:
            ended_by = "timeout"
        self._record(ended_by)
        return result

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ran_out = classify_oom(error).kind == "accelerator"
            said: BaseException = error
            while not str(said) and said.__cause__ is not None:  # wrapped by Tune
                said = said.__cause__
            self._record("out_of_memory" if ran_out else "failed", redacted(f"{type(said).__name__}: {said}"))
            raise

    def _watch(self) -> None:
        """Read the memory regularly, and end the process at the deadline, because Tune waits for the next result."""
        while time.monotonic() < self._ends_at:
            time.sleep(max(0.0, min(_SAMPLE_S, self._ends_at - time.monotonic())))
            # Reading a framework while it starts may fail, but the trial must still end.
            with suppress(Exception):
                self._look()
        try:
            self._record("timeout")
        finally:  # even if the reading cannot be sent
            os._exit(0)

    def _record(self, ended_by: Ended | None, error: str | None = None) -> None:
        reading = self._reading(ended_by, error)
        ray.get(self._recorder.record.remote(self._number, reading), timeout=_HAND_OVER_S)

    def _look(self) -> dict[str, FrameworkMemory]:
        with self._lock:
            self._host_memory_bytes = max(host_memory_in_use(), self._host_memory_bytes)
            counters = read_counters()
            for name, memory in counters.items():
                self._peaks[name] = max(_peak(name, memory), self._peaks.get(name, 0))
            return counters

    def _reading(self, ended_by: Ended | None, error: str | None) -> Reading:
        counters = self._look()
        gpu: dict[str, Any] = {}
        with suppress(NvmlError, IndexError):
            gpu = read_gpus()[0]
        versions = {name: str(getattr(sys.modules[name], "__version__", "")) for name in self._peaks}
        overhead = sum(self._overheads.bytes_for(gpu.get("name"), name, versions[name])[0] for name in versions)
        held = sum(memory.held_bytes for memory in counters.values())
        process = _process_bytes(held) if counters and not counters.keys() & set(_TAKE_MORE_THAN_NEEDED) else None
        if process is not None:
            self._most_of_process = max(process, self._most_of_process)
            overhead = process - held
        return Reading(
            peak_bytes=dict(self._peaks),
            total_bytes=max(self._most_of_process, sum(self._peaks.values()) + overhead if self._peaks else 0),
            overhead_bytes=overhead,
            host_memory_bytes=self._host_memory_bytes,
            num_steps=self._num_steps,
            ended_by=ended_by,
            error=error,
            gpu_model=gpu.get("name"),
            device_bytes=gpu.get("memory_bytes"),
            versions=versions,
        )


def _peak(name: str, memory: FrameworkMemory) -> int:
    known = memory.peak_allocated_bytes
    if memory.peak_reserved_bytes is not None and (known is None or name not in _TAKE_MORE_THAN_NEEDED):
        known = memory.peak_reserved_bytes
    return memory.held_bytes if known is None else known


def _process_bytes(held_bytes: int) -> int | None:
    """Return the driver's figure for this process, or ``None`` if the driver does not list it."""
    with suppress(NvmlError):
        found = bytes_of_process(read_device_use())
        # A smaller figure is that of another process, which has this ID on the host.
        return found if found is not None and found >= held_bytes else None
    return None


def host_memory_in_use() -> int:
    """Return the host memory of this process and its children in bytes.

    Forked children share memory with their parent, so a process with children counts only its part of shared memory.
    """
    psutil = shipped_psutil()
    process = psutil.Process()
    children = process.children(recursive=True)
    if not children:
        return int(process.memory_info().rss)
    total = 0
    for each in (process, *children):
        with suppress(psutil.Error):  # it has ended
            memory = each.memory_full_info()
            total += getattr(memory, "pss", memory.rss)  # only Linux has pss
    return total


_CONNECT_S: Final = 30.0
_START_S: Final = 120.0
"""The deadline for a trial to start and to end, in addition to the time that it may run."""

Trainable = Callable[..., Any] | type[tune.Trainable]


def measure_gpu_memory(
    trainable: Trainable,
    configs: Configs,
    *,
    max_steps: int = 5,
    timeout_s: float = 60.0,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    policy: GpuPolicy | None = None,
) -> GpuMemoryProfile:
    """Measure the GPU and host memory of trials by short trials, each alone on a whole GPU.

    Uses the program's connection to Ray, or connects like :func:`tune_policies.probe_cluster`. Results of the trials
    are discarded. Each start prints a line with the remaining time to stderr.

    Args:
        trainable: A function of a config, or a ``tune.Trainable`` class.
        configs: The configs to measure, or a search space of Tune from which ``num_samples`` configs are drawn. Memory
            is predicted from the values that vary, so vary those on which it depends, and include the largest. The
            largest and the smallest integers of a space are always measured.
        max_steps: The number of results after which each trial ends.
        timeout_s: The time after which each trial ends.
        num_samples: The number of configs to draw from a search space, each with all values of a grid.
        seed: The seed of the draws.
        capacity: The cluster, which is probed by default.
        policy: The CPUs and host memory of each trial and the type of GPU. The default is one whole GPU of any type.

    Raises:
        InvalidResourcesError: An argument is invalid.
        InfeasibleRequestError: There is no such GPU. No trial has started.
        MeasurementError: Some trials failed, did not start, or used no GPU. Its ``profile`` has the other trials.
        ProbeError: Ray cannot be reached.
    """
    if not is_number(timeout_s) or not 0 < timeout_s < float("inf"):
        raise InvalidResourcesError(f"timeout_s must be above 0 seconds and finite, got {shorten(timeout_s)}")
    caps = _Caps(max_steps=check_count(max_steps, least=1, name="max_steps"), timeout_s=float(timeout_s))
    policy = GpuPolicy() if policy is None else policy
    if not isinstance(policy, GpuPolicy):
        raise InvalidResourcesError(f"policy must be a GpuPolicy, got {shorten(policy)}")
    if policy.gpus != 1 or policy.num_workers:
        raise InvalidResourcesError(
            "memory is measured on one whole GPU, in the trial itself: leave gpus and num_workers out of the policy"
        )
    check_trainable(trainable)
    wanted = configs_to_measure(configs, num_samples, seed)
    with connection(None, _CONNECT_S, local="starts a Ray for the moment"):
        plan = policy.plan(probe_cluster() if capacity is None else capacity)
        readings = _run(trainable, wanted, caps, plan)
    return _profile(wanted, readings, caps, plan)


def plan_by_measuring(
    trainable: Trainable,
    configs: Configs,
    *,
    headroom: float = 0.1,
    max_steps: int = 5,
    timeout_s: float = 60.0,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    cpus: float | None = None,
    memory: int | str | None = None,
    accelerator_type: str | tuple[str, ...] | None = None,
    min_trials: int = 1,
    num_workers: int | tuple[int, int] = 0,
    max_trials_per_gpu: int | None = None,
    custom: Mapping[str, float] | None = None,
) -> TrialPlan:
    """Measure some configs, and return a plan in which each trial gets the GPU memory that its config needs.

    This combines :func:`measure_gpu_memory` and ``GpuMemoryPolicy(profile=…)``, whose arguments it takes. ``headroom``
    is the additional memory of a trial as a fraction. ``plan.explain()`` describes the result, and
    ``plan.by_config.profile`` is the profile.

    Raises:
        InvalidResourcesError: An argument is invalid.
        InfeasibleRequestError: There is no such GPU, its memory is not known, or it is too small for the measured need.
        MeasurementError: As for :func:`measure_gpu_memory`.
        ProbeError: Ray cannot be reached.
    """
    # Find invalid fields before any trial runs.
    known = GpuMemoryPolicy(
        gpu_memory=MIB,
        headroom=headroom,
        cpus=cpus,
        memory=memory,
        accelerator_type=accelerator_type,
        min_trials=min_trials,
        num_workers=num_workers,
        max_trials_per_gpu=max_trials_per_gpu,
        custom=dict(custom or {}),
    )
    measuring = GpuPolicy(
        cpus=known.cpus, memory=known.memory, accelerator_type=known.accelerator_type, custom=known.custom
    )
    with connection(None, _CONNECT_S, local="starts a Ray for the moment"):
        capacity = probe_cluster() if capacity is None else capacity
        known.plan(capacity)  # raises before a trial starts if no plan by memory is feasible
        profile = measure_gpu_memory(
            trainable,
            configs,
            max_steps=max_steps,
            timeout_s=timeout_s,
            num_samples=num_samples,
            seed=seed,
            capacity=capacity,
            policy=measuring,
        )
    return known.model_copy(update={"gpu_memory": None, "profile": profile}).plan(capacity)


def _run(trainable: Trainable, configs: list[dict[str, Any]], caps: _Caps, plan: TrialPlan) -> dict[int, Reading]:
    """Run a trial for each config, and return the readings by the numbers of the configs."""
    recorder = ray.remote(num_cpus=0)(Recorder).remote()
    numbered = [{"number": number, "config": config} for number, config in enumerate(configs)]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="measure-", ignore_cleanup_errors=True) as folder,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", ResourceWarning)  # Tune leaves its log files open
            tune.run(
                _measured_trial(trainable, recorder, caps, load_overheads()),
                scheduler=PolicyScheduler(plan),
                config={MEASURED: tune.grid_search(numbered)},
                stop={"training_iteration": caps.max_steps, "time_total_s": caps.timeout_s},
                callbacks=[_Progress(len(configs), plan.max_concurrent_trials, caps.timeout_s)],
                time_budget_s=plan.num_waves(len(configs)) * (caps.timeout_s + _START_S),
                storage_path=folder,
                reuse_actors=False,  # a process may keep memory of an earlier trial
                raise_on_failed_trial=False,
                verbose=0,
            )
        readings: dict[int, Reading] = ray.get(recorder.readings.remote(), timeout=_CONNECT_S)
        return readings
    finally:
        ray.kill(recorder)


class _Progress(tune.Callback):  # type: ignore[misc]  # Ray is not followed
    """Prints to stderr which config is measured, and the remaining number and time."""

    def __init__(self, num_configs: int, at_once: int, timeout_s: float) -> None:
        self._num_configs, self._at_once, self._timeout_s = num_configs, at_once, timeout_s
        self._began_s: dict[str, float] = {}
        self._lasted_s: list[float] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._began_s[trial.trial_id] = time.monotonic()
        measured = trial.config[MEASURED]
        num_left = self._num_configs - len(self._lasted_s)
        how_long = time_left(num_left, self._at_once, self._lasted_s, self._timeout_s)
        which = f"config {measured['number'] + 1} of {self._num_configs}, {shorten(measured['config'])}"
        tell(f"measuring GPU memory: {which}; {num_left} to go, {how_long}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._lasted_s.append(time.monotonic() - self._began_s[trial.trial_id])

    on_trial_error = on_trial_complete


def time_left(num_left: int, at_once: int, lasted_s: Sequence[float], timeout_s: float) -> str:
    """Return as text how long the remaining configs may take, estimated from earlier trials."""
    each_s = sum(lasted_s) / len(lasted_s) if lasted_s else timeout_s
    text = format_hours(-(-num_left // at_once) * each_s / 3600)
    return f"about {text}" if lasted_s else f"at most {text}, and the time to start their processes"


def _profile(
    configs: list[dict[str, Any]], readings: dict[int, Reading], caps: _Caps, plan: TrialPlan
) -> GpuMemoryProfile:
    """Return the profile of all readings, or raise a ``MeasurementError`` if a config has none."""
    measurements, failures = [], []
    for number, config in enumerate(configs):
        reading = readings.get(number)
        why = _why_not(reading, caps)
        if reading is None or why is not None:
            failures.append(f"{config}: {why}")
        else:
            # A trial that ran out of memory needs more than the device has.
            device_bytes = reading.device_bytes or plan.gpu_memory_bytes
            at_least = device_bytes if reading.ended_by == "out_of_memory" else None
            fields = reading.model_dump(exclude={"total_bytes", "error", "device_bytes", "versions"})
            measurements.append(
                GpuMemoryMeasurement(config=config, total_bytes=max(1, at_least or reading.total_bytes), **fields)
            )
    versions = {"ray": ray.__version__}
    for reading in readings.values():
        versions |= reading.versions
    profile = GpuMemoryProfile(measurements=tuple(measurements), versions=versions) if measurements else None
    if failures or profile is None:
        many = f"{len(failures)} of {counted(len(configs), 'config')}"
        kept = "" if profile is None else ". What was measured is in the error's profile"
        raise MeasurementError(f"{many} could not be measured: {'; '.join(failures)}{kept}", profile)
    return profile


def _why_not(reading: Reading | None, caps: _Caps) -> str | None:
    if reading is None:
        return (
            f"its trial did not start within {_START_S + caps.timeout_s:g} s, or its process ended at once: check "
            "whether others hold the GPUs, and read Ray's logs"
        )
    if reading.ended_by == "failed":
        return reading.error or "its trial failed"
    if reading.ended_by is None:
        return "its process ended without an error, perhaps as host memory ran out"
    if not reading.peak_bytes and reading.ended_by != "out_of_memory":
        return "none of PyTorch, TensorFlow, JAX and CuPy used the GPU in it"
    return None
