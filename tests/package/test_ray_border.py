"""Tests that only ``tune_policies/ray_compat`` uses names that are private to Ray or not in its documented API."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BORDER = ROOT / "tune_policies" / "ray_compat"
MODULES = sorted(
    path
    for folder in ("tune_policies", "trainers", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_relative_to(BORDER)
)
UNDOCUMENTED = (
    *("ray.autoscaler.v2", "ray.cloudpickle", "ray.core", "ray.experimental", "ray.job_config", "ray.train.constants"),
    *("ray.train.v2", "ray.tune.execution", "ray.tune.result", "ray.tune.search.sample", "ray.tune.trainable"),
    *("ray.tune.search.variant_generator", "ray.util.client"),
)
DOCUMENTED_ALL_THE_SAME = ("ray.train.v2.jax",)
"""Ray documents its trainer for JAX under this name."""
NVML = "ray._private.thirdparty.pynvml"
"""A copy of NVIDIA's ``pynvml`` in Ray. Its names are a public API of NVIDIA."""
OF_OTHERS = {
    **dict.fromkeys(("_apply", "_buffers", "_initialized", "_param_to_grad_hook_handles", "_parameters"), "torch"),
    **dict.fromkeys(("_C", "_cuda_clearCublasWorkspaces", "_track_module_params_and_buffers"), "torch"),
    **dict.fromkeys(("_asdict", "_field_defaults", "_replace"), "named tuples"),
    **dict.fromkeys(("_exit", "_initializing", "_run_module_as_main"), "Python"),
}
"""Private attributes of other libraries, with the name of the library."""


def ray_names(tree):
    """Yield each name of Ray that is imported, or read as an attribute of ``ray``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "ray")
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "ray":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("ray."):
            yield ast.unparse(node)


def is_private(name):
    within = tuple(f"{each}." for each in (*UNDOCUMENTED, *DOCUMENTED_ALL_THE_SAME))
    if f"{name}.".startswith((NVML, within[-1])):
        return False
    return f"{name}.".startswith(within) or any(part.startswith("_") for part in name.split(".") if part[:2] != "__")


def private_attributes(tree):
    """Yield each private attribute that is read or set, directly or with ``getattr`` and similar functions."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            name = str(getattr(node.args[1], "value", ""))
        if name.startswith("_") and not name.startswith("__"):
            yield name


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined(tree):
    """Yield the names of the functions, fields and objects that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def test_only_ray_compat_uses_private_names_of_ray():
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in MODULES}
    own = {name for tree in trees.values() for name in defined(tree)}
    found = set()
    for path, tree in trees.items():
        private = {name for name in ray_names(tree) if is_private(name)}
        private |= set(private_attributes(tree)) - own - OF_OTHERS.keys()
        found |= {(path, name) for name in private}

    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "from ray._private.state import actors",
        "from ray.core.generated.gcs_pb2 import ActorTableData",
        "import ray.train.v2._internal.execution.callback",
        "from ray.util.client import ray as client",
        "import ray\nray._private.worker.global_worker",
        "import ray\nray.util.client.ray.is_connected()",
        "controller._staged_trials",
        "getattr(scheduler, '_base_scheduler', None)",
    ],
)
def test_a_use_of_a_private_name_is_detected(text):
    tree = ast.parse(text)

    assert [name for name in ray_names(tree) if is_private(name)] + list(private_attributes(tree))
