"""Tests that only ``tune_policies.files.reading`` reads files, and only ``tune_policies.files.writing`` writes them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = "tune_policies/files/"
CALLS = {
    *("open", "io.open", "os.open", "os.fdopen", "os.replace", "os.rename", "gzip.open", "codecs.open"),
    *("json.load", "json.dump", "json.loads", "pickle.load", "numpy.load", "numpy.save", "np.load", "np.save"),
    *("tempfile.NamedTemporaryFile", "tempfile.mkstemp", "NamedTemporaryFile", "TemporaryFile"),
    *("tempfile.TemporaryFile", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move"),
}
"""The names of functions that read or write files or parse text without limits, as written in calls."""
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "open", "savefig", "open_output_stream", "rename"}
"""Methods of paths, figures and file systems that read or write files."""
YAML = {"load", "load_all", "safe_load", "safe_load_all", "full_load", "unsafe_load"}

ON_OTHER_NODES = "runs where this package may be missing; /proc, /sys, and a file whose size is checked"
OF_RAY = "content of Ray's own tables"
OF_A_CHILD = "output of a child process"
ALLOWED = {
    ("tune_policies/probe/node_facts.py", "read_text"): ON_OTHER_NODES,
    ("tune_policies/probe/node_facts.py", "read_bytes"): ON_OTHER_NODES,
    ("tune_policies/probe/node_facts.py", "yaml.safe_load"): ON_OTHER_NODES,
    ("tune_policies/ray_compat/gcs.py", "json.loads"): OF_RAY,
    ("tune_policies/ray_compat/autoscaler.py", "json.loads"): OF_RAY,
    (
        "tune_policies/ray_compat/train_run.py",
        "json.loads",
    ): "state of Train, which may contain NaN, from a file of limited size",
    ("tune_policies/probe/node_facts.py", "json.dump"): "to stdout, for the parent process",
    ("tune_policies/probe/doctor/cluster_reader.py", "json.loads"): OF_A_CHILD,
    ("trainers/profiling/calibration.py", "json.loads"): OF_A_CHILD,
    ("trainers/profiling/calibration.py", "tempfile.TemporaryFile"): OF_A_CHILD,
    (
        "trainers/usage/gpu_memory_usage.py",
        "json.loads",
    ): "results of Tune, which may contain Infinity, from a file of limited size",
    (
        "tune_policies/kuberay/reading/documents.py",
        "gzip.open",
    ): "bytes that were already read, unpacked up to a limit",
    ("trainers/scheduling/run_core.py", "open"): "adds a line to Tune's own record of an error",
    ("trainers/scheduling/trial_record.py", "json.loads"): "an attribute of a trial that this project has saved",
    ("trainers/usage/gpu_memory_report.py", "savefig"): "into memory",
    ("benchmarks/report/page.py", "savefig"): "into memory",
    ("benchmarks/measuring/process.py", "read_text"): "/proc",
    ("benchmarks/measuring/noise.py", "read_text"): "/proc and /sys",
    ("benchmarks/record/machine.py", "read_text"): "/proc",
    ("tune_policies/ray_compat/kernel_kills.py", "read_text"): "/proc",
    ("tune_policies/probe/process_facts.py", "read_text"): "/proc",
    ("trainers/usage/usage_meter.py", "read_text"): "/proc",
    ("trainers/usage/usage_meter.py", "write_text"): "/proc",
    ("tune_policies/testing/check_policy.py", "json.loads"): "output of a policy under test",
    ("benchmarks/workloads/boosting.py", "json.loads"): "XGBoost's description of a model in this process",
}
"""The calls that other modules may contain, by file and function, with the reason."""


def modules():
    for package in ("tune_policies", "trainers", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(FILES):
                yield name, path


def found():
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (called := called_name(node.func)):
                yield name, called


def called_name(function):
    """Return the name of a called function or method that reads or writes files, or ``None`` for other calls."""
    name = ast.unparse(function)
    if name in CALLS or name in {f"yaml.{each}" for each in YAML}:
        return name
    is_of_ours = isinstance(function, ast.Name)  # an unqualified name, such as read_text, is a function of this project
    method = name.rpartition(".")[2]
    return method if method in METHODS and not is_of_ours else None


def test_a_call_that_reads_or_writes_is_detected():
    calls = ("path.read_text()", "Path(a, b).open('w')", "open(path)", "yaml.safe_load(text)", "json.load(file)")

    assert all(called_name(ast.parse(call).body[0].value.func) for call in calls)


def test_only_the_allowed_modules_read_or_write_files():
    assert set(found()) == ALLOWED.keys()


RUNS = {"eval", "exec", "compile"}
"""Functions that run a string as code. Only unqualified names are compared, so ``re.compile`` does not match."""
UNPICKLES = re.compile(
    r"(.*\.)?(Unpickler|read_pickle|unpickle)|(pickle|cloudpickle|dill|joblib|marshal|torch|shelve|jsonpickle)\.(loads?|open)"
)
OF_RAY_ITSELF = {
    ("tune_policies/ray_compat/tune_trial.py", "cloudpickle.loads"): "the error of a trial, as Tune has saved it",
    ("tune_policies/testing/check_policy.py", "pickle.loads"): "what it has just pickled",
    ("tune_policies/cli/program.py", "exec"): "the user's program, as Python runs it",
}


def executes_its_input(call):
    """Return the name of a called function that runs or unpickles its input, or ``None`` for other calls."""
    name = ast.unparse(call.func)
    allows = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    may_unpickle = allows.get("allow_pickle") == "True" or allows.get("weights_only") == "False"
    is_one = name in RUNS or UNPICKLES.fullmatch(name) or name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load")
    return name if is_one or may_unpickle else None


def test_a_call_that_runs_or_unpickles_its_input_is_detected():
    calls = ("pickle.load(f)", "cloudpickle.loads(b)", "torch.load(f)", "eval(t)", "yaml.load(t, L)")

    for call in (*calls, "np.load(f, allow_pickle=True)"):
        assert executes_its_input(ast.parse(call).body[0].value), call


def test_only_the_listed_calls_run_or_unpickle_their_input():
    found = {
        (name, called)
        for name, path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (called := executes_its_input(node))
    }

    assert found == OF_RAY_ITSELF.keys()
