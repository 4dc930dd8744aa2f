"""Tests that the code runs or unpickles no input, except what Ray itself unpickles."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

RUNS = {"eval", "exec", "compile"}
"""Functions that run a string as code. Only unqualified names are compared, so ``re.compile`` does not match."""
UNPICKLES = re.compile(
    r"(.*\.)?(Unpickler|read_pickle|unpickle)|(pickle|cloudpickle|dill|joblib|marshal|torch|shelve|jsonpickle)\.(loads?|open)"
)
OF_RAY_ITSELF = {
    ("tune_policies/ray_compat/tune_trial.py", "cloudpickle.loads"): "the error of a trial, as Tune has saved it",
    ("tune_policies/testing/check_policy.py", "pickle.loads"): "what it has just pickled",
    ("tune_policies/cli/run_program.py", "exec"): "the user's program, as Python runs it",
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
    found = set()
    for package in ("tune_policies", "trainers", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in map(executes_its_input, calls) if name}

    assert found == OF_RAY_ITSELF.keys()
