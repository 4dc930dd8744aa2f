"""Each advice in a message of a run of Tune or Train, or about the results of a run, works as it is written."""

import json
import tempfile
from pathlib import Path

import ray
from ray import tune
from ray.train import ScalingConfig

from tests.advice import CPUS, ROOT, SHARED, AdviceTable, Row, named
from tests.clusters import GIB
from tests.unit.oom_errors import TORCH_OOM, torch_text
from tune_policies import CpuPolicy, PolicyCallback, tuner
from tune_policies.files.plain_data import parse_data
from tune_policies.oom import OutOfMemory
from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.gang_deadlock import WaitingRun
from tune_policies.trainers import with_limits
from tune_policies.trainers.scheduling.own_slots import slot_of_bundles
from tune_policies.trainers.train.scaling_config_check import check_workers
from tune_policies.trainers.usage.advice import Advice, advise
from tune_policies.trainers.usage.audit_callback import audit_lines
from tune_policies.trainers.usage.gpu_memory_records import GPU_MEMORY_KEY, GpuMemoryUsage, RunUsage, worker_file
from tune_policies.trainers.usage.load_usage import load_usage
from tune_policies.trainers.usage.oom_report import OomReport
from tune_policies.trainers.usage.process_usage import ProcessUsage
from tune_policies.trainers.usage.resource_usage import (
    STARTING,
    USAGE_FILE,
    IdleHours,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
)
from tune_policies.trainers.usage.run_facts import RunFacts, TrialFacts
from tune_policies.trainers.usage.run_page import build_run_page
from tune_policies.trainers.usage.usage_pictures import plot_usage
from tune_policies.trainers.watches import run_watch, task_watch


def tell():
    """Do nothing, in a task."""


def audited(policy):
    """Return what an audit says about a policy with which more trials would run at once."""
    return "\n".join(audit_lines(Advice(policy, 4, 2)))


def advised(most_open):
    """Return the advice for a run whose search algorithm had at most this number of unfinished trials."""
    used = ProcessUsage(elapsed_s=100, cpus=2, cpu_s=10, host_memory_bytes=2**20)
    trials = [TrialFacts(str(number), ran_s=60, told_s=2, process=used) for number in range(16)]
    return advise(trials, CPUS, RunFacts(elapsed_s=0, at_once=4, num_trials=16, most_open=most_open))


def starting(*, reuses_processes):
    """Return the usage of a run whose CPUs were mostly idle because trials were starting."""
    hours = ResourceHours(resource="CPU", total_hours=10, used_hours=4, idle=(IdleHours(reason=STARTING, hours=6),))
    slots = (SlotHours(slot="1 CPU", num_starts=4),)
    return ResourceUsage(
        resources=(hours,),
        slots=slots,
        max_trials_at_once=2,
        reuses_processes=reuses_processes,
        trials=TrialCounts(num_finished=4),
    )


def slot_of(policy):
    return policy.plan(CPUS).common_slot


def a_results_folder(*, error=None, has_record=False):
    """Return the folder of a run with one trial, which may have failed, and whose run may have had a callback."""
    trial = Path(tempfile.mkdtemp(), "train_0")
    trial.mkdir()
    (trial / "result.json").write_text("{}")
    if error is not None:
        (trial / "error.txt").write_text(error)
    if has_record:
        (trial.parent / USAGE_FILE).write_text(ResourceUsage().to_json())
    return trial.parent


def a_train_folder(peak_gib):
    """Return the folder of a Train run with one worker, which used this much memory of a GPU of 16 GiB."""
    used = GpuMemoryUsage(gpus=1, device_bytes=16 * GIB, peak_reserved_bytes=peak_gib * GIB)
    folder = Path(tempfile.mkdtemp())
    (folder / worker_file(0, 1)).write_text(json.dumps({GPU_MEMORY_KEY: used.model_dump(mode="json")}))
    return folder


def page_of(folder):
    """Return the text of the page of a run."""
    usage = load_usage(folder)
    sections = build_run_page("a", usage, usage.resource_usage).sections
    return "\n".join(text for section in sections for text in section.texts)


def recording():
    """Return a tuner whose run records its usage."""
    return tuner(print, CpuPolicy(), run_config=tune.RunConfig(callbacks=[PolicyCallback()]))


OUT_OF_GPU_MEMORY = (
    "Failure # 1 (occurred at 2026-01-02_03-04-05)\nTraceback (most recent call last):\n"
    f"{TORCH_OOM}: {torch_text(in_use='18.00 GiB')}\n\n"
)

CROWDED_OUT = (
    OUT_OF_GPU_MEMORY
    + OomReport(
        out_of_memory=OutOfMemory(kind="accelerator", requested_bytes=2 * 2**30, cause="neighbour"),
        gpu_memory=GpuMemoryUsage(gpus=0.5, num_ooms=1),
    ).to_note()
)
"""The error of a trial with half of a GPU, which other processes filled."""


class Trainer:
    """A trainer of Ray Train."""

    def fit(self):
        """Train."""


ROWS = [
    Row("run(print, GpuPolicy)", "Write GpuPolicy(…) instead of the class", "PolicyScheduler(GpuPolicy())"),
    Row(
        "run(tune.Tuner(print), CpuPolicy())",
        "tuner(train_fn, policy, param_space=…, tune_config=…)",
        "tuner(print, CpuPolicy(), param_space={}, tune_config=tune.TuneConfig())",
    ),
    Row(
        "tuner(print, CpuPolicy(), num_samples=2)",
        "Write tune_config=tune.TuneConfig(num_samples=…)",
        "tuner(print, CpuPolicy(), tune_config=tune.TuneConfig(num_samples=2))",
    ),
    Row(
        "tuner(print, CpuPolicy(), name='a')",
        "Write run_config=tune.RunConfig(name=…)",
        "tuner(print, CpuPolicy(), run_config=tune.RunConfig(name='a'))",
    ),
    Row(
        "tuner(print, CpuPolicy(), config={'a': 1})",
        "Write param_space=… in tuner",
        "tuner(print, CpuPolicy(), param_space={'a': 1})",
    ),
    Row("run(print)", "such as AutoPolicy()", "tuner(print, tune_policies.AutoPolicy())"),
    Row(
        "run(print, CpuPolicy(), resources_per_trial={'cpu': 2, 'gpu': 0.5})",
        "GpuPolicy(gpus=0.5, cpus=2)",
        "tuner(print, GpuPolicy(gpus=0.5, cpus=2))",
    ),
    Row(
        "PolicyScheduler(GpuPolicy(), falls_back=True)",
        "Use a policy such as GpuPolicy() | CpuPolicy()",
        "PolicyScheduler(GpuPolicy() | CpuPolicy(), falls_back=True)",
    ),
    Row(
        "PolicyScheduler(CpuPolicy(), PolicyScheduler(GpuPolicy()))",
        "combine the policies, such as GpuPolicy() | CpuPolicy()",
        "PolicyScheduler(GpuPolicy() | CpuPolicy())",
    ),
    Row(
        "tuner(print, CpuPolicy(), tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
        "Omit the second argument",
        "tuner(print, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
    ),
    Row(
        "tuner(print, may_move=True, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
        "Pass may_move to the PolicyScheduler",
        "tuner(print, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy(), may_move=True)))",
    ),
    Row(
        "applied(PolicyScheduler(CpuPolicy(), tune.schedulers.ASHAScheduler())).__enter__()",
        "Pass a PolicyScheduler without an inner scheduler",
        "applied(PolicyScheduler(CpuPolicy()))",
    ),
    Row(
        "run(Trainer(), CpuPolicy())",
        "pass as_trainable(function), and set num_workers in the policy",
        "tuner(as_trainable(lambda config: Trainer()), CpuPolicy(num_workers=1))",
    ),
    Row(
        "with_limits(CpuPolicy().plan(CPUS))(ray.remote(tell))",
        "Write @with_limits below @ray.remote",
        "ray.remote(with_limits(CpuPolicy().plan(CPUS))(tell))",
    ),
    Row(
        "run(print, CpuPolicy(), resources_per_trial=3)",
        "Write the amounts in the policy, such as GpuPolicy(gpus=0.5, cpus=2)",
        "tuner(print, GpuPolicy(gpus=0.5, cpus=2))",
    ),
    Row(
        "tasks_wait({'CPU': 2}, 9, {})",
        "plan with ReservingPolicy(policy, cpus=2)",
        "ReservingPolicy(CpuPolicy(), cpus=2).plan(CPUS)",
    ),
    Row(
        "stuck(WaitingRun(run_id='a', started_at=0))",
        "Set num_workers=1 in the policy.",
        "CpuPolicy(num_workers=1).plan(CPUS)",
    ),
    Row(
        "audited(GpuPolicy(gpus=0.5))",
        "write {kind: GpuPolicy, gpus: 0.5} to policy.yaml, and start tune-policies exec policy.yaml PROGRAM",
        "ResourcePolicy.from_dict(parse_data('{kind: GpuPolicy, gpus: 0.5}', 'policy.yaml')).plan(ONE_GPU)",
    ),
    Row("audited(GpuPolicy(gpus=0.5))", "write run(…, GpuPolicy(gpus=0.5), …)", "tuner(print, GpuPolicy(gpus=0.5))"),
    Row(
        "check_workers(ScalingConfig(num_workers=4), slot_of(CpuPolicy(num_workers=2)))",
        "Set num_workers=4 in the policy, or ScalingConfig(num_workers=2) in the trainer",
        "check_workers(ScalingConfig(num_workers=4), slot_of(CpuPolicy(num_workers=4))),"
        "check_workers(ScalingConfig(num_workers=2), slot_of(CpuPolicy(num_workers=2)))",
    ),
    Row(
        "check_workers(ScalingConfig(num_workers=1, use_gpu=True), slot_of(CpuPolicy(num_workers=1)))",
        "Write ScalingConfig(num_workers=1, use_gpu=False, resources_per_worker={'CPU': 1})",
        "check_workers(ScalingConfig(num_workers=1, use_gpu=False, resources_per_worker={'CPU': 1}), "
        "slot_of(CpuPolicy(num_workers=1)))",
    ),
    Row("load_usage(GpuPolicy())", "load_usage('RESULT_DIR')", "load_usage(a_results_folder())"),
    Row(
        "PolicyCallback().usage",
        "Pass it to a run: run(train_fn, policy, callbacks=[callback])",
        "recording()",
    ),
    Row(
        "plot_usage(RunUsage(trials=()), Path('a.svg'))",
        "run again with callbacks=[PolicyCallback()]",
        "recording()",
    ),
    Row(
        "load_usage(a_results_folder()).advice",
        "Run again with run(train_fn, policy, callbacks=[PolicyCallback()]), or set "
        "RAY_TUNE_CALLBACKS=tune_policies.PolicyCallback for any program",
        "(*load_usage(a_results_folder(has_record=True)).advice, recording())",
    ),
    Row(
        "page_of(a_results_folder())",
        "run again with callbacks=[PolicyCallback()]",
        "page_of(a_results_folder(has_record=True)), recording()",
    ),
    Row(
        "load_usage(a_results_folder(error=OUT_OF_GPU_MEMORY)).advice",
        'Write GpuMemoryPolicy(gpu_memory="22.5GiB"), with which 3 trials fit on a GPU of 79.2 GiB, or retry such '
        "trials with more memory: scheduler=OomRetryScheduler()",
        "tuner(print, GpuMemoryPolicy(gpu_memory='22.5GiB')),"
        "tuner(print, CpuPolicy(), tune_config=tune.TuneConfig(scheduler=OomRetryScheduler()))",
    ),
    Row(
        "load_usage(a_train_folder(3)).advice",
        ', for which GpuMemoryPolicy(gpu_memory="4.3GiB") is enough',
        "GpuMemoryPolicy(gpu_memory='4.3GiB').plan(ONE_GPU)",
    ),
    Row(
        "slot_of_bundles(CpuPolicy().plan(CPUS), BundleGroup([{'CPU': 3}, {'CPU': 3}]), CPUS)",
        "Reserve less, or add nodes.",
        "slot_of_bundles(CpuPolicy().plan(CPUS), BundleGroup([{'CPU': 2}, {'CPU': 2}]), CPUS)",
    ),
    Row(
        "advised(most_open=4)",
        "Omit max_concurrent_trials, or raise the limit of the search algorithm",
        "str(advised(most_open=16))",
    ),
    Row(
        "starting(reuses_processes=False).advice",
        "pass reuse_actors=True to run or TuneConfig",
        "(*starting(reuses_processes=True).advice, tune.TuneConfig(reuse_actors=True))",
    ),
    Row(
        "load_usage(a_results_folder(error=CROWDED_OUT)).advice",
        "Stop the other programs that nvidia-smi lists, or retry such trials: scheduler=OomRetryScheduler()",
        "tuner(print, CpuPolicy(), tune_config=tune.TuneConfig(scheduler=OomRetryScheduler()))",
    ),
]

NAMES = {
    **SHARED,
    **named(
        BundleGroup,
        Path,
        RunUsage,
        ScalingConfig,
        Trainer,
        WaitingRun,
        a_results_folder,
        a_train_folder,
        advised,
        audited,
        check_workers,
    ),
    **named(
        load_usage, page_of, parse_data, plot_usage, recording, slot_of, slot_of_bundles, starting, tell, with_limits
    ),
    "CROWDED_OUT": CROWDED_OUT,
    "OUT_OF_GPU_MEMORY": OUT_OF_GPU_MEMORY,
    "ray": ray,
    "stuck": run_watch._suggestion,
    "tasks_wait": task_watch._message,
}

ELSEWHERE = {
    "but an earlier task started CUDA in this process": "GPUs",
    "the policy plans trials … a GPU, but the trainable reserves": "a run: tests/unit/runner/test_own_requests.py",
    "the plan uses a decision based on benchmarks with": "other versions: tests/unit/runner/test_measured_versions.py",
    "Write config=… in run": "arguments of tune.run: tests/unit/runner/test_tune_run.py",
    "Pass its fields to run, such as": "arguments of tune.run: tests/unit/runner/test_tune_run.py",
    "requires Keras 2, because it fails with Keras 3": "TensorFlow: tests/on_ray/runner/test_train_frameworks.py",
    "an RLlib learner uses at most one": "RLlib: tests/unit/runner/test_rllib.py",
    "the policy has num_workers=0": "a run of Train: tests/on_ray/runner/test_train_in_tune.py",
    "Ray Train version 1 is active": "another setting of Ray: tests/on_ray/runner/test_trainers.py",
    "the plan has num_workers=0": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "the plan depends on the config of each run": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "so Ray Train would retry workers that ran out of memory": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "a plot requires matplotlib": "a package that is missing",
    **dict.fromkeys(
        (
            "Rename the key in your metrics",
            "Call it in the function that run or tuner runs",
            "Use a policy with one slot type, or omit ResourceChangingScheduler",
            "Add nodes, and resume the run.",
            "Add a choice without a device to the policy",
            "Add nodes or pass a policy instead of a plan",
            "Use a policy by config, such as",
            "Request the same resources for all trials",
            "applied does not affect runs through a Ray Client",
            "Wait until these resources are released",
        ),
        "a run of Tune: tests/unit/runner/test_run_plan.py and test_own_requests.py, and tests/on_ray",
    ),
    **dict.fromkeys(
        (
            "retries with the same memory failed",
            "Plan a GPU fraction for the trial.",
            "Raise max_gpus, use a GPU with more memory",
            "Use a GPU with more memory, or use less memory",
            "Add a node with more host memory",
            "Use fewer workers, add a node",
        ),
        "a trial that runs out of memory: tests/unit/runner/test_oom_retry.py",
    ),
    **dict.fromkeys(
        (
            "Omit the backend, or plan whole GPUs",
            "Plan num_workers=1, or whole GPUs",
            "Remove num_to_keep from the trainer",
            "scaling_config cannot be passed",
        ),
        "a run of Train: tests/on_ray/runner/test_trainers.py and test_train_in_tune.py",
    ),
    "To continue it, write": "a run that Ctrl-C ends: tests/on_ray/runner/test_restore.py",
    "Next time, write ": "a run that has learned: tests/package/runner/test_usage_command.py",
    **dict.fromkeys(
        ("RLlib's old API stack", "RLlib supports no devices except GPUs", "Increase cpus in the policy"),
        "RLlib: tests/unit/runner/test_rllib.py",
    ),
    **dict.fromkeys(
        (
            ", so use a GPU with more memory",
            "use a larger max_gpus, or …s with more memory",
            "use a smaller batch, or …s with more memory",
            "GiB. …. Write …, with … per GPU instead of …",
            "to run without retries, write",
            "To run without retries, write",
            "start with …: … because of GPU memory",
            "Pass the results folder of a Tune or Train run",
            "Pass a folder that contains a folder for each trial",
            "start with memory=",
        ),
        "the results of a run: tests/unit/runner/test_usage.py and tests/package/runner/test_gpu_memory_usage.py",
    ),
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

MEASURING = {"profiling", "gpu_memory"}
"""The folders whose messages are in ``measurements.py``."""

PARTS = tuple(f"trainers/{path.name}" for path in (ROOT / "trainers").iterdir() if path.name not in MEASURING)

TABLE = AdviceTable(parts=PARTS, rows=ROWS, elsewhere=ELSEWHERE, names=NAMES)
