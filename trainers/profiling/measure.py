"""Measures how much memory each config needs, in short trials on whole GPUs."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray import tune

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.terminal import print_to_stderr
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.plan.headroom import HEADROOM
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies import GpuMemoryPolicy, GpuPolicy
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.connection import connection
from tune_policies.ray_compat.tune_trial import class_of_function
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, MeasurementError
from tune_policies.values.resources import check_count
from tune_policies.values.units import MIB, is_number
from tune_policies.values.wording import counted, shorten

from ..gpu_memory.framework_overhead import load_overheads
from ..scheduling.policy_scheduler import PolicyScheduler
from .configs_to_measure import Configs, configs_to_measure
from .measured_trial import DEFAULT_CAPS, MEASURED, Caps, Reading, Recorder, measured_trial

Trainable = Callable[..., Any] | type[tune.Trainable]

_CONNECT_S: Final = 30.0
_START_S: Final = 120.0
"""The time that a trial may take to start and to end, in addition to its timeout, in seconds."""


def measure_gpu_memory(
    trainable: Trainable,
    configs: Configs | None = None,
    *,
    max_steps: int = DEFAULT_CAPS.max_steps,
    timeout_s: float = DEFAULT_CAPS.timeout_s,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    policy: GpuPolicy | None = None,
) -> GpuMemoryProfile:
    """Measure the GPU and host memory of configs in short trials, each alone on a whole GPU.

    The function uses the program's connection to Ray, or connects like :func:`tune_policies.probe_cluster`. The results
    of the trials are discarded. For each trial that starts, a line is printed to stderr.

    Args:
        trainable: A function of a config, or a ``tune.Trainable`` class.
        configs: Required. The configs to measure, or a search space of Tune from which ``num_samples`` configs are
            drawn. Memory is predicted from the values that vary, so vary the values that affect memory, and include
            their largest values. The largest and the smallest integers of a space are measured first.
        max_steps: The number of results after which each trial ends.
        timeout_s: The time after which each trial ends, in seconds.
        num_samples: The number of configs to draw from a search space. A grid multiplies this number.
        seed: The random seed of the draws.
        capacity: The capacity of the cluster. By default, the cluster is probed.
        policy: The policy that defines the CPUs, host memory and GPU type of each trial. The default is one whole GPU
            of any type.

    Raises:
        InvalidResourcesError: An argument is invalid.
        InfeasibleRequestError: No GPU matches the policy. No trial was started.
        MeasurementError: Some trials failed, did not start, or used no GPU. The error's ``profile`` contains the
            measurements of the other trials.
        ProbeError: Ray cannot be reached.
    """
    if not is_number(timeout_s) or not 0 < timeout_s < float("inf"):
        raise InvalidResourcesError(f"timeout_s must be above 0 seconds and finite, got {shorten(timeout_s)}")
    caps = Caps(max_steps=check_count(max_steps, least=1, name="max_steps"), timeout_s=float(timeout_s))
    if policy is None:
        policy = GpuPolicy()
    if not isinstance(policy, GpuPolicy):
        raise InvalidResourcesError(f"policy must be a GpuPolicy, got {shorten(policy)}")
    if policy.gpus != 1 or policy.num_workers:
        raise InvalidResourcesError(
            "memory is measured on one whole GPU, in the trial itself. Omit gpus and num_workers in the policy"
        )
    check_trainable(trainable)
    wanted = configs_to_measure(configs, num_samples, seed)
    with _cluster_with_gpu(capacity, policy) as cluster:
        plan = policy.plan(cluster)
        readings = _run(trainable, wanted, caps, plan)
    return _profile(wanted, readings, caps, plan)


def plan_by_measuring(
    trainable: Trainable,
    configs: Configs | None = None,
    *,
    headroom: float = HEADROOM,
    max_steps: int = DEFAULT_CAPS.max_steps,
    timeout_s: float = DEFAULT_CAPS.timeout_s,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    **policy: Any,
) -> TrialPlan:
    """Measure some configs, and return a plan in which each trial gets the GPU memory that its config needs.

    The function combines :func:`measure_gpu_memory` and ``GpuMemoryPolicy(profile=…)``. ``headroom`` is the memory that
    a trial gets in addition to its measured need, as a fraction of this need. ``plan.explain()`` describes the result,
    and ``plan.by_config.profile`` is the profile.
    ``**policy``: Further fields of ``GpuMemoryPolicy``, such as ``cpus`` and ``num_workers``.

    Raises:
        InvalidResourcesError: An argument is invalid.
        InfeasibleRequestError: No GPU matches the policy, or the memory of the GPU is unknown or too small for the
            measured need.
        MeasurementError: See :func:`measure_gpu_memory`.
        ProbeError: Ray cannot be reached.
    """
    # Find invalid arguments before any trial runs.
    check_trainable(trainable)
    configs_to_measure(configs, num_samples, seed)
    unmeasured = GpuMemoryPolicy(gpu_memory=MIB, headroom=headroom, **policy)
    measuring = GpuPolicy(
        **{name: getattr(unmeasured, name) for name in ("cpus", "memory", "accelerator_type", "custom")}
    )
    with _cluster_with_gpu(capacity, measuring) as cluster:
        unmeasured.plan(cluster)  # raises an error early if even 1 MiB per trial is infeasible
        profile = measure_gpu_memory(
            trainable,
            configs,
            max_steps=max_steps,
            timeout_s=timeout_s,
            num_samples=num_samples,
            seed=seed,
            capacity=cluster,
            policy=measuring,
        )
    return unmeasured.model_copy(update={"gpu_memory": None, "profile": profile}).plan(cluster)


@contextmanager
def _cluster_with_gpu(capacity: ClusterCapacity | None, policy: GpuPolicy) -> Iterator[ClusterCapacity]:
    """Connect to Ray, and yield the given capacity, or else that of the cluster."""
    if capacity is not None:
        require_gpu(policy, capacity)  # raises an error before Ray starts
    with connection(None, _CONNECT_S, local="starts a temporary Ray instance"):
        if capacity is None:
            capacity = probe_cluster()
            require_gpu(policy, capacity)
        yield capacity


def require_gpu(policy: GpuPolicy, capacity: ClusterCapacity) -> None:
    """Raise an error with an alternative if the cluster has no GPU on which memory can be measured.

    Raises:
        InfeasibleRequestError: The cluster has no GPU, or its GPUs are simulated.
    """
    if capacity.node_types is None:
        return  # the autoscaler may add a node with a GPU
    to_add = [node_type.as_node() for node_type in capacity.node_types if node_type.max_nodes_to_add]
    nodes = [*capacity.nodes, *to_add]
    if any(node.resources.gpus and not node.has_simulated_gpus for node in nodes):
        return
    why = "the cluster has no GPU"
    if any(node.has_simulated_gpus for node in nodes):
        why = "the GPUs of the cluster are simulated"
    raise InfeasibleRequestError(
        f"{policy.gpus:g} GPU, because memory is measured on a GPU",
        why,
        "GPU",
        "Run this on a machine with a GPU. Without a GPU, estimate_gpu_memory(model_fn, batch) estimates the memory of "
        "a PyTorch model, and its explain() ends with the policy to write.",
    )


def check_trainable(trainable: Any) -> None:
    """Raise an ``InvalidResourcesError`` unless ``trainable`` is a function of a config or a ``tune.Trainable``."""
    is_class = isinstance(trainable, type)
    if any(base.__module__.startswith("torch.nn.") for base in type(trainable).__mro__):
        raise InvalidResourcesError(
            f"a trainable must be a function of a config, but {type(trainable).__name__} is a model. Pass a function "
            "that trains the model, or write estimate_gpu_memory(lambda: model, batch)"
        )
    if not callable(trainable) or (is_class and not issubclass(trainable, tune.Trainable)):
        raise InvalidResourcesError(
            f"a trainable must be a function of a config or a subclass of ray.tune.Trainable, got {shorten(trainable)}"
        )
    if not is_class:
        try:
            class_of_function(trainable)
        except ValueError as error:  # the function takes no config
            raise InvalidResourcesError(
                f"{shorten(trainable)} is not a trainable: {error} Write a function such as def train_fn(config): …"
            ) from error


def _run(trainable: Trainable, configs: list[dict[str, Any]], caps: Caps, plan: TrialPlan) -> dict[int, Reading]:
    """Run a trial for each config, and return the readings, keyed by the number of the config."""
    # The actor only stores readings, so it takes no CPU from the trials.
    recorder = ray.remote(num_cpus=0)(Recorder).remote()
    numbered = [{"number": number, "config": config} for number, config in enumerate(configs)]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="measure-", ignore_cleanup_errors=True) as folder,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", ResourceWarning)  # Tune leaves its log files open
            tune.run(
                measured_trial(trainable, recorder, caps, load_overheads()),
                scheduler=PolicyScheduler(plan),
                # One trial for each config.
                config={MEASURED: tune.grid_search(numbered)},
                stop={"training_iteration": caps.max_steps, "time_total_s": caps.timeout_s},
                callbacks=[_Progress(len(configs))],
                time_budget_s=_budget_s(plan, len(configs), caps),
                storage_path=folder,
                reuse_actors=False,  # a process may keep memory of an earlier trial
                raise_on_failed_trial=False,
                verbose=0,
            )
        readings: dict[int, Reading] = ray.get(recorder.readings.remote(), timeout=_CONNECT_S)
        return readings
    finally:
        ray.kill(recorder)


def _budget_s(plan: TrialPlan, num_configs: int, caps: Caps) -> float:
    """Return the time in which all configs must be measured, in seconds."""
    return plan.num_rounds(num_configs) * (caps.timeout_s + _START_S)


class _Progress(tune.Callback):  # type: ignore[misc]  # Ray's classes are untyped
    """Prints each measured config to stderr."""

    def __init__(self, num_configs: int) -> None:
        self._num_configs = num_configs

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        measured = trial.config[MEASURED]
        which = f"config {measured['number'] + 1} of {self._num_configs}, {shorten(measured['config'])}"
        print_to_stderr(f"measuring GPU memory: {which}")


def _profile(
    configs: list[dict[str, Any]], readings: dict[int, Reading], caps: Caps, plan: TrialPlan
) -> GpuMemoryProfile:
    """Return the profile of all readings, or raise a ``MeasurementError`` if a config was not measured."""
    measurements, failures = [], []
    for number, config in enumerate(configs):
        reading = readings.get(number)
        why = _failure_of(reading, _budget_s(plan, len(configs), caps))
        if reading is None or why is not None:
            failures.append(f"{config}: {why}")
        else:
            total = reading.total_bytes
            if reading.ended_by == "out_of_memory":
                # A trial that ran out of memory needs at least the total memory of the device.
                total = reading.device_bytes or plan.gpu_memory_bytes or total
            fields = reading.model_dump(exclude={"total_bytes", "error", "device_bytes", "versions"})
            measurements.append(GpuMemoryMeasurement(config=config, total_bytes=max(1, total), **fields))
    versions = {"ray": ray.__version__}
    for reading in readings.values():
        versions |= reading.versions
    profile = None
    if measurements:
        profile = GpuMemoryProfile(measurements=tuple(measurements), versions=versions)
    if failures or profile is None:
        many = f"{len(failures)} of {counted(len(configs), 'config')}"
        text = f"{many} could not be measured: {'; '.join(failures)}"
        if profile is not None:
            text += ". The error's profile contains the measurements of the other configs"
        raise MeasurementError(text, profile)
    return profile


def _failure_of(reading: Reading | None, budget_s: float) -> str | None:
    if reading is None:
        return (
            f"the trial did not start within {budget_s:g} s, or its process ended immediately. Check "
            "whether other processes use the GPUs, and read Ray's logs"
        )
    if reading.ended_by == "failed":
        return reading.error or "the trial failed"
    if reading.ended_by is None:
        return "the trial's process ended without an error, possibly because the host ran out of memory"
    if not reading.peak_bytes and reading.ended_by != "out_of_memory":
        return "the trial did not use the GPU with PyTorch, TensorFlow, JAX or CuPy"
    return None
