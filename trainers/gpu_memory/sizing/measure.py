"""The right size by measuring: short trials on whole GPUs say how much memory each config needs."""

import tempfile
import warnings
from collections.abc import Callable
from typing import Any, Final

import ray
from ray import tune

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies import GpuMemoryPolicy, GpuPolicy
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.connection import connection
from tune_policies.values.errors import InvalidResourcesError, MeasurementError
from tune_policies.values.resources import check_count
from tune_policies.values.units import is_number
from tune_policies.values.value import shorten

from ...tune_trainable import with_plan
from ..limits.overhead import load_overheads
from .configs import Configs, check_trainable, configs_to_measure
from .measured_trial import MEASURED, Caps, Reading, Recorder, measured_trial

_CONNECT_S: Final = 30.0
_START_S: Final = 120.0
"""Deadline for a trial to start and to end, beside the seconds that it may run."""

Trainable = Callable[..., Any] | type[tune.Trainable]


def measure_gpu_memory(
    trainable: Trainable,
    configs: Configs,
    *,
    max_steps: int = 5,
    max_seconds: float = 60.0,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    policy: GpuPolicy | None = None,
) -> GpuMemoryProfile:
    """Return how much GPU memory trials need, measured by short ones, each alone on a whole GPU.

    Uses the Ray that the program is connected to, or else one as :func:`tune_policies.probe_cluster` does. What the
    trials report is thrown away.

    Args:
        trainable: A function of a config, or a ``tune.Trainable`` class, as Tune takes it.
        configs: The configs to measure; or a search space of Tune's, of which ``num_samples`` are drawn. Memory is
            predicted from what varies in them, so let them differ in what it depends on, and take the largest in; of a
            space, the largest and the smallest whole numbers are.
        max_steps: Each trial ends after so many results.
        max_seconds: Each trial ends after so many seconds, whether it has reported or not.
        num_samples: Configs to draw from a search space; a grid in it counts once for each.
        seed: Of the draws.
        capacity: The cluster; ``None``: it is probed.
        policy: CPUs of each trial and the type of GPU; ``None``: ``GpuPolicy()``, one whole GPU of any type.

    Raises:
        InvalidResourcesError: An argument is wrong.
        InfeasibleRequestError: There is no such GPU; nothing has started.
        MeasurementError: Some trials failed, did not start, or used no GPU. Its ``profile`` has what was measured.
        ProbeError: Ray cannot be reached.
    """
    caps = Caps(max_steps=check_count(max_steps, least=1, name="max_steps"), max_seconds=_seconds(max_seconds))
    policy = GpuPolicy() if policy is None else policy
    if not isinstance(policy, GpuPolicy):
        raise InvalidResourcesError(f"policy must be a GpuPolicy, got {shorten(policy)}")
    if policy.gpus != 1 or policy.num_workers:
        raise InvalidResourcesError(
            "memory is measured on one whole GPU, in the trial itself: leave gpus and num_workers"
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
    max_seconds: float = 60.0,
    num_samples: int = 8,
    seed: int = 0,
    capacity: ClusterCapacity | None = None,
    **policy_fields: Any,
) -> TrialPlan:
    """Return a plan that gives each trial the GPU memory that its config needs, after measuring some configs.

    It is :func:`measure_gpu_memory` and ``GpuMemoryPolicy(profile=…)`` in one call; ``plan.explain()`` says what was
    measured and chosen, and ``plan.by_config.profile`` is the profile, to be kept for the next time.

    Args:
        trainable: As for :func:`measure_gpu_memory`.
        configs: As for :func:`measure_gpu_memory`.
        headroom: How much more than measured a trial gets: 0.1 is a tenth more.
        max_steps: As for :func:`measure_gpu_memory`.
        max_seconds: As for :func:`measure_gpu_memory`.
        num_samples: As for :func:`measure_gpu_memory`.
        seed: As for :func:`measure_gpu_memory`.
        capacity: As for :func:`measure_gpu_memory`.
        **policy_fields: Further fields of ``GpuMemoryPolicy``, such as ``cpus`` and ``accelerator_type``.

    Raises:
        InvalidResourcesError: An argument is wrong.
        InfeasibleRequestError: There is no such GPU, or its memory is not known: nothing has started. Or none is large
            enough for what was measured.
        MeasurementError: As for :func:`measure_gpu_memory`.
        ProbeError: Ray cannot be reached.
    """
    if set_here := policy_fields.keys() & {"gpu_memory", "profile"}:
        raise InvalidResourcesError(
            f"plan_by_measuring measures what it plans from: leave {' and '.join(sorted(set_here))} out, or plan with "
            "GpuMemoryPolicy"
        )
    # Made of what is no profile yet, so that a wrong field is found before anything runs.
    known = GpuMemoryPolicy(gpu_memory=1, headroom=headroom, **policy_fields)
    measuring = GpuPolicy(cpus=known.cpus, accelerator_type=known.accelerator_type, custom=known.custom)
    with connection(None, _CONNECT_S, local="starts a Ray for the moment"):
        capacity = probe_cluster() if capacity is None else capacity
        known.plan(capacity)  # raises before anything starts, where no plan by memory could be made afterwards
        profile = measure_gpu_memory(
            trainable,
            configs,
            max_steps=max_steps,
            max_seconds=max_seconds,
            num_samples=num_samples,
            seed=seed,
            capacity=capacity,
            policy=measuring,
        )
    return known.model_copy(update={"gpu_memory": None, "profile": profile}).plan(capacity)


def _seconds(amount: object) -> float:
    if not is_number(amount) or not 0 < amount < float("inf"):
        raise InvalidResourcesError(f"max_seconds must be above 0 seconds and have an end, got {shorten(amount)}")
    return float(amount)


def _run(trainable: Trainable, configs: list[dict[str, Any]], caps: Caps, plan: TrialPlan) -> dict[int, Reading]:
    """Run a trial for each config; return the readings by the configs' numbers."""
    recorder = ray.remote(num_cpus=0)(Recorder).remote()
    trial = with_plan(measured_trial(trainable, recorder, caps, load_overheads()), plan)
    numbered = [{"number": number, "config": config} for number, config in enumerate(configs)]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="measure-", ignore_cleanup_errors=True) as folder,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", ResourceWarning)  # Tune leaves its log files open
            tune.run(
                trial,
                config={MEASURED: tune.grid_search(numbered)},
                stop={"training_iteration": caps.max_steps, "time_total_s": caps.max_seconds},
                max_concurrent_trials=plan.max_concurrent_trials,
                time_budget_s=plan.num_waves(len(configs)) * (caps.max_seconds + _START_S),
                storage_path=folder,
                reuse_actors=False,  # a process keeps memory of the trial before
                raise_on_failed_trial=False,
                verbose=0,
            )
        readings: dict[int, Reading] = ray.get(recorder.readings.remote(), timeout=_CONNECT_S)
        return readings
    finally:
        ray.kill(recorder)


def _profile(
    configs: list[dict[str, Any]], readings: dict[int, Reading], caps: Caps, plan: TrialPlan
) -> GpuMemoryProfile:
    """Return the profile of all readings.

    Raises:
        MeasurementError: Some configs have none.
    """
    measurements, failures = [], []
    for number, config in enumerate(configs):
        reading = readings.get(number)
        if (why := _why_not(reading, caps)) is not None:
            failures.append(f"{config}: {why}")
        elif reading is not None:
            measurements.append(_measurement(config, reading, plan))
    versions = {"ray": ray.__version__}
    for reading in readings.values():
        versions |= reading.versions
    profile = GpuMemoryProfile(measurements=tuple(measurements), versions=versions) if measurements else None
    if failures or profile is None:
        many = f"{len(failures)} of {len(configs)} {'config' if len(configs) == 1 else 'configs'}"
        kept = "" if profile is None else ". What was measured is in the error's profile"
        raise MeasurementError(f"{many} could not be measured: {'; '.join(failures)}{kept}", profile)
    return profile


def _why_not(reading: Reading | None, caps: Caps) -> str | None:
    if reading is None:
        return (
            f"its trial did not start within {_START_S + caps.max_seconds:g} s, or its process ended at once: look "
            "whether others hold the GPUs, and into the logs of Ray"
        )
    if reading.ended_by == "failed":
        return reading.error or "its trial failed"
    if reading.ended_by is None:
        return "its process ended without an error, as one does that runs out of host memory"
    if not reading.peak_bytes and reading.ended_by != "out_of_memory":
        return "no framework that is known (PyTorch, TensorFlow, JAX, CuPy) used the GPU in it"
    return None


def _measurement(config: dict[str, Any], reading: Reading, plan: TrialPlan) -> GpuMemoryMeasurement:
    ran_out = reading.ended_by == "out_of_memory"
    device_bytes = reading.device_bytes or plan.gpu_memory_bytes
    return GpuMemoryMeasurement(
        config=config,
        peak_bytes=reading.peak_bytes,
        overhead_bytes=reading.overhead_bytes,
        total_bytes=max(1, (device_bytes if ran_out else None) or reading.total_bytes),
        num_steps=reading.num_steps,
        ended_by=reading.ended_by,
        gpu_model=reading.gpu_model,
    )
