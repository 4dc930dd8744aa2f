"""Advice in messages about benchmarks, their records and decisions between GPU and CPU."""

from pathlib import Path

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.commands_in_folder import A10G, FILES, ON_A10G, command, in_folder
from tests.measured_runs import a_run
from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli.run import _sizes
from tune_policies.benchmarks.compare.compare_devices import control_problem, problems_of_readings
from tune_policies.benchmarks.compare.time_ratio import compare_times
from tune_policies.benchmarks.decide.device_decision import Terms, decide
from tune_policies.benchmarks.decide.price_file import Instance, Prices
from tune_policies.benchmarks.measuring.device_plans import parse_device, parse_devices
from tune_policies.benchmarks.measuring.interleaving import check_same, settings_of
from tune_policies.benchmarks.measuring.packing import find_training
from tune_policies.benchmarks.measuring.rounds import disagreements
from tune_policies.benchmarks.measuring.timed_workload import has_used_gpu
from tune_policies.benchmarks.record.missing_measurements import problems_of
from tune_policies.benchmarks.record.packing_record import ThroughputRecord
from tune_policies.benchmarks.record.run_set import (
    Configuration,
    Environment,
    Failure,
    NoiseReading,
    Phase,
    Settings,
)
from tune_policies.benchmarks.record.run_set_file import file_text, read_run_set, write_run_set
from tune_policies.benchmarks.record.summary import not_measured
from tune_policies.benchmarks.workloads.registry import check_needs, find_workload, load_workload
from tune_policies.benchmarks.workloads.steps import Steps, checked_loss, checked_steps, torch_device


def compared(*first, against=(2.0,) * 5):
    """Compare the times of rounds, and return the reasons for doubts."""
    rounds = [
        dict(enumerate(((time,) if isinstance(time, float) else time) for time in side)) for side in (first, against)
    ]
    return "\n".join(compare_times(*rounds).reasons)


def noise(**reading):
    return "\n".join(problems_of_readings([NoiseReading(round=0, **{"load": 0.0} | reading)], num_cpus=8))


def equal(control):
    """Return the doubt about a run whose control took ``control`` times as long."""
    run = a_run_set(workloads=("mlp",), sizes=(16,), spread=0.0001, has_failure=False)
    first = Configuration(workload="mlp", size=16, device="cpu")
    runs = [
        process.model_copy(
            update={
                "blocks": tuple(
                    block.model_copy(update={"seconds": block.seconds * control}) for block in process.blocks
                )
            }
        )
        if process.configuration.is_control
        else process
        for process in run.runs
    ]
    changed = run.model_copy(update={"runs": tuple(runs)})
    return control_problem(changed, first, Phase.COMPUTE, 0.05) or ""


def with_losses(*losses, **changes):
    """Return the failures of two processes. The second process has these losses."""
    one, other = a_run(("cpu", "gpu"), sizes=(1,), rounds=1).runs
    runs = (
        one.model_copy(update={"losses": (1.0, 0.5)} | changes),
        other.model_copy(update={"losses": losses} | changes),
    )
    return "\n".join(failure.message for failure in disagreements(runs))


def sizes(workloads, given):
    """Return the sizes that ``bench run`` measures."""
    return in_folder(lambda: _sizes(workloads, given, quick=False))


def run_of(**changes):
    """Return the problems of a run with these changes."""
    return "\n".join(problems_of(a_run(**changes), Path("my run.json")))


def without_times(kind):
    """Return the sentence about a configuration whose only process failed."""
    failure = Failure(configuration=Configuration(workload="mlp", size=9, device="cpu"), round=0, kind=kind, message="")
    return "\n".join(not_measured(a_run(failures=(failure,))))


def short():
    """Return a run in which the CPU and the GPU finished different sizes."""
    return a_run().model_copy(update={"runs": a_run(("cpu",), sizes=(1,)).runs + a_run(("gpu",), sizes=(16,)).runs})


def doubtful():
    """Return a run in which the GPU is faster in some rounds and slower in others."""
    runs = []
    for process in a_run(sizes=(1,)).runs:
        is_slow = process.configuration.device == "gpu" and process.round % 2
        runs.append(process.model_copy(update={"first_epoch_s": 9.0 if is_slow else 3.0}))
    return a_run().model_copy(update={"runs": tuple(runs)})


def packed_on(name):
    return ThroughputRecord(gpu=name, machine="", command="", plans={}, samples=[])


def step():
    return 1.0


OWN_WORKLOAD = """\
from tune_policies.benchmarks.workloads.steps import Steps

def net(size, device): return Steps(with_transfers=step)
def step(): return 1.0
"""

SETTINGS = Settings(sizes={"mlp": (16,)}, devices=("cpu",))
TERMS = Terms(steps_per_trial=1000)
OF_PACKAGES = (
    "a package that is missing or new: tests/package/benchmarks/test_run_command.py and tests/package/test_wheel.py"
)

OF_EU = """\
date: 2026-05-01
currency: USD
instances:
  - {name: c, price: 0.8, cpus: 16, region: eu}
  - {name: g, price: 2, cpus: 8, gpus: 1, accelerator_type: A10G, region: eu}
"""

OF_RUNS = "a benchmark on Ray: tests/on_ray/benchmarks/test_measuring.py and test_packing_runs.py"

ROWS = [
    Row(
        "command('bench decide gpu.yaml --steps-per-trial 9 --cluster gpu.yaml')",
        "Write a run set with `tune-policies bench run … --output FILE`",
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json')",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --node-cpus 8')",
        "Pass the number of trials of the run too, or omit --node-cpus",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --node-cpus 8 --num-trials 9'),"
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json')",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --region eu')",
        "Pass a price file too, or omit --region",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --region eu --prices eu.yaml',"
        " eu_yaml=OF_EU),"
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json')",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml '"
        "'--region eu')",
        "Omit --region",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml')",
    ),
    Row(
        "command('bench plot measured.json --output a.svg --phase compute')",
        "Choose another --phase",
        "command('bench plot measured.json --output a.svg --phase with-transfers')",
    ),
    Row(
        "command('bench run --resume run.json --rounds 9')",
        "Omit --rounds",
        "command('bench run --resume run.json')",
    ),
    Row(
        "command('bench run --resume run.json')",
        "`tune-policies bench export run.json --format json --redact --output redacted.json` omits both",
        "command('bench export run.json --format json --redact --output redacted.json')",
    ),
    Row("command('bench run')", "pass your own as module:function", "in_folder(lambda: load_workload('mine:net'))"),
    Row("command('bench run affine@64 --size 16')", "Omit --size", "sizes(['affine@64'], [])"),
    Row("command('bench run mine:net')", "such as --size 64 --size 256", "sizes(['mine:net'], [64, 256])"),
    Row("command('bench run mlp@64,big')", "such as mlp@64,256", "sizes(['mlp@64,256'], [])"),
    Row("command('bench run mpl')", "did you mean 'mlp'?", "sizes(['mlp'], [])"),
    Row(
        "command('bench run affine --output old.txt')",
        "Choose another file, or continue the run with --resume old.txt",
        "command('bench run --resume old.txt', old_txt=FILES['run.json'])",
    ),
    Row(
        "command('bench packing tf-mlp')",
        "such as tune-policies bench packing tf-mlp@64 --steps 1000",
        "find_training('tf-mlp', 64, 1000)",
    ),
    Row("parse_device('cpu@2')", "Write cpu, and set the CPUs of a trial with --cpus", "parse_device('cpu')"),
    Row("parse_device('gpu@x')", "a number above 0, such as 0.25", "parse_device('gpu@0.25')"),
    Row("parse_devices([])", "Write --device cpu --device gpu", "parse_devices(['cpu', 'gpu'])"),
    Row("settings_of(a_run())", "Start a new run", "settings_of(a_run(settings=SETTINGS))"),
    Row(
        "check_same(a_run(), a_run(environment=ENVIRONMENT))",
        "Continue it on the same machine",
        "check_same(a_run(), a_run())",
    ),
    Row(
        "has_used_gpu({}, ('torch',))",
        "Get the device from torch_device(device)",
        "torch_device('cpu')",
    ),
    Row(
        "with_losses(1.0, 9.0)", "or set Steps.tolerance", "with_losses(1.0, 0.7, tolerance=0.5), with_losses(1.0, 0.5)"
    ),
    Row(
        "checked_steps(None, 'mine:net')",
        "must return Steps(with_transfers=…). Import Steps from tune_policies.benchmarks.workloads.steps",
        "checked_steps(Steps(with_transfers=step), 'mine:net')",
    ),
    Row(
        "in_folder(lambda: load_workload('mine:net'), mine_py='def net(config): ...')",
        "Write def net(size, device): return Steps(with_transfers=step), where step is a function without arguments",
        "in_folder(lambda: checked_steps(load_workload('mine:net')(1, 'cpu'), 'mine:net'), mine_py=OWN_WORKLOAD)",
    ),
    Row(
        "checked_steps(Steps(with_transfers=lambda config: 1.0), 'mine:net')",
        "Write a function without arguments inside the workload",
        "checked_steps(Steps(with_transfers=step), 'mine:net')",
    ),
    Row(
        "checked_loss(float('nan'), 'mine:net', 1)",
        "Lower the learning rate, or check the data",
        "checked_loss(1.0, 'mine:net', 1)",
    ),
    Row("compared(1.0, against=())", "Measure both configurations", "compared(*(1.0,) * 5)"),
    Row("compared(0.0, 0.0, 0.0)", "If the file was edited, measure again", "compared(1.0, 1.0, 1.0)"),
    Row("compared(1.0, against=(2.0,))", "Run 3 or more rounds", "compared(1.0, 1.0, 1.0, against=(2.0,) * 3)"),
    Row(
        "compared(1.0, 1.2, 1.4, 1.6, 1.8)",
        "Measure more rounds",
        "compared(*(1.0, 1.2, 1.4, 1.2, 1.0) * 2, against=(2.0,) * 10)",
    ),
    Row(
        "compared(*(1.9, 2.2) * 4, against=(2.0,) * 8)",
        "the range that counts as equal. Run more rounds to narrow the interval",
        "compared(*(1.9, 2.2) * 60, against=(2.0,) * 120)",
    ),
    Row(
        "compared(2.2, 2.6, 2.2, 2.5, 2.3)",
        "Run more rounds to narrow the interval",
        "compared(*(2.2, 2.6, 2.2, 2.5, 2.3) * 4, against=(2.0,) * 20)",
    ),
    Row(
        "compared(*((1.1, 3.9),) * 4)",
        "Run more rounds, or measure on an idle machine",
        "compared(*((2.49, 2.51),) * 4)",
    ),
    Row(
        "run_of(is_complete=False)",
        "run: tune-policies bench run --resume 'my run.json'",
        "run_of(is_complete=True)",
    ),
    Row(
        "without_times('timed_out')",
        "Start a new run with a longer --process-timeout-s, or with smaller sizes",
        "Settings(sizes={'mlp': (1,)}, devices=('cpu',), process_timeout_s=120)",
    ),
    Row("without_times('raised')", "Correct the workload, and start a new run", "run_of()"),
    Row("without_times('died')", "Read the reason above, and start a new run", "run_of()"),
    Row(
        "in_folder(lambda: read_run_set(Path('run.json')), run_json=FILES['run.json'].replace(NOW, NEXT))",
        "Upgrade tune-policies",
        "in_folder(lambda: read_run_set(Path('run.json')))",
    ),
    Row(
        "check_needs(find_workload('boosting')._replace(needs=('xgboost_of_nobody',)))",
        "or omit the workload",
        "check_needs(find_workload('affine'))",
    ),
    Row("torch_device('TPU')", "or omit the device", "torch_device('cpu')"),
    Row(
        "decide(short(), TERMS, A10G)",
        "Measure again, with smaller sizes or a longer timeout",
        "decide(a_run(), TERMS, A10G)",
    ),
    Row(
        "command('bench decide doubtful.json --steps-per-trial 9 --cluster cluster.json', doubtful_json=DOUBTFUL)",
        "Run more rounds on an idle machine",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json')",
    ),
    Row("noise(load=3)", "Stop them, or measure on an idle machine", "noise(load=0.1)"),
    Row("noise(throttled_s=3)", "Use fewer CPUs, or raise the quota", "noise(throttled_s=0)"),
    Row("noise(gpu_throttled=('power',))", "Cool the GPU, or lock its clocks", "noise()"),
    Row("equal(1.5)", "Run more rounds, or measure on an idle machine", "equal(1.0)"),
    Row(
        "decide(a_run(('cpu',)), TERMS, A10G)",
        "run:\ntune-policies bench run mlp@1,16,256 --device cpu --device gpu --cpus 1 --output gpu-run.json",
        "sizes(['mlp@1,16,256'], []), parse_devices(['cpu', 'gpu']), decide(a_run(('cpu', 'gpu')), TERMS, A10G)",
    ),
    Row(
        "decide(a_run(), TERMS, A10G, packing=packed_on('NVIDIA H200'))",
        "Run `tune-policies bench packing --output packing.json` on A10G, or omit the record",
        "decide(a_run(), TERMS, A10G, packing=packed_on('NVIDIA A10G')), decide(a_run(), TERMS, A10G)",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9')",
        "Pass --node-cpus",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 8')",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 1')",
        "Pass --node-cpus 4 or more",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 4')",
    ),
    Row(
        "Instance(name='g', price=1, cpus=8, gpus=1)",
        "Set both fields or neither",
        "Instance(name='g', price=1, cpus=8, gpus=1, accelerator_type='L4'), Instance(name='g', price=1, cpus=8)",
    ),
    Row(
        "Prices(date='2026-11-01', currency='USD')",
        "Set instances, or cpu and gpus",
        "Prices(date='2026-11-01', currency='USD', cpu=1, gpus={'L4': 1})",
    ),
    Row(
        "Prices(date='2026-11-01', currency='USD', cpu=1, gpus={'A100-80G': 3, 'A100-80GB': 4})",
        "Keep one of them",
        "Prices(date='2026-11-01', currency='USD', cpu=1, gpus={'A100-80G': 3})",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1, gpus=1)",
        "Use --gpu-type to pass a name from the price file (known: A10G)",
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10G')",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10')",
        "Add its price, or choose another name with --gpu-type",
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10G')",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1)",
        "or the price of one CPU as `cpu`",
        "ON_A10G.model_copy(update={'cpu': 0.1}).per_hour(cpus=1)",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml --spot')",
        "or omit --spot",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml')",
    ),
    Row(
        "command('bench report run.json --output a.html --decision gpu.yaml')",
        "create a decision with `tune-policies bench decide run.json --steps-per-trial 5000 --output decision.json`",
        "command('bench decide run.json --steps-per-trial 5000 --output decision.json --cluster cluster.json',"
        " run_json=FILES['measured.json'])",
    ),
    Row(
        "command('bench report run.json --output a.html --packing gpu.yaml')",
        "create a record with `tune-policies bench packing --output FILE`",
        "command('bench report run.json --output a.html')",
    ),
    Row(
        "command('bench compare on-cpus.json')",
        "tune-policies bench run mlp@1,16,256 --device cpu --device gpu --cpus 1",
        "sizes(['mlp@1,16,256'], []), parse_devices(['cpu', 'gpu'])",
    ),
    Row(
        "in_folder(lambda: write_run_set(a_run(), Path('old.txt')))",
        "Choose another file, or delete old.txt",
        "in_folder(lambda: write_run_set(a_run(), Path('new.json')))",
    ),
]

NAMES = {
    **named(
        Instance,
        Path,
        Prices,
        Settings,
        Steps,
        a_run,
        check_needs,
        check_same,
        checked_loss,
        checked_steps,
        command,
        compared,
        decide,
        equal,
        find_training,
        find_workload,
        has_used_gpu,
        in_folder,
        load_workload,
        noise,
        packed_on,
        parse_device,
        parse_devices,
        read_run_set,
        run_of,
        settings_of,
        short,
        sizes,
        step,
        torch_device,
        with_losses,
        without_times,
        write_run_set,
    ),
    "A10G": A10G,
    "DOUBTFUL": file_text(doubtful()),
    "OF_EU": OF_EU,
    "ENVIRONMENT": Environment(cpu_model="another CPU", num_cpus=2),
    "FILES": FILES,
    "NEXT": '"schema_version":2',
    "NOW": '"schema_version":1',
    "ON_A10G": ON_A10G,
    "OWN_WORKLOAD": OWN_WORKLOAD,
    "SETTINGS": SETTINGS,
    "TERMS": TERMS,
}

ELSEWHERE = {
    "--steps has no effect without a workload": "a GPU: tests/package/benchmarks/test_benchmark_commands.py",
    "Run pip install 'tune-policies[…]'": OF_PACKAGES,
    "Call ray.init() first": OF_RUNS,
    "Set CUDA_VISIBLE_DEVICES to one of them": "several GPUs",
    "its process had not started": OF_RUNS,
    "its first epoch was stopped early": OF_RUNS,
    "it was still running": OF_RUNS,
    "Run these commands in the same working directory": OF_RUNS,
    "matplotlib cannot draw": "a machine without LaTeX",
}

TABLE = AdviceTable(
    parts=("benchmarks",),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
