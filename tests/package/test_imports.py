"""Which module may import what: the core needs no Ray, and imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tune_policies
from tune_policies import trainers

ROOT = Path(__file__).parents[2]
SHELL = {
    *("autoscaler", "cluster_reader", "cluster_state", "node_reading", "probe", "ray_adapter", "ray_connection"),
    *("around", "escalating", "trial_memory", "tune_queue", "tune_trials"),
    *("nodes", "policy_scheduler", "run_pace", "run_plan"),
    *("policy_callback", "readiness", "task_watch", "unpickled_once"),
}
READ_OR_WRITE_FILES = {
    *("cli/cluster", "cli/options", "lint/fixes", "lint/rules/ray_schema", "manifests/file_text", "policy_file"),
    *("reporting/policy_callback", "reporting/usage_file", "usage/plot", "usage/trials"),
}
FOREIGN = {"ray", "torch", "tensorflow", "jax", "cupy", "pynvml"}


def modules(package):
    """Return the files of a folder; what tune_policies links to belongs to the folders of these names."""
    return sorted((ROOT / package).rglob("*.py"))


def imported(path, *, at_run_time_only=True):
    """Names that a module imports when it is imported itself; what stands in a function or under TYPE_CHECKING not."""
    names = set()

    def visit(node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if at_run_time_only:
                return
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


def top_level(names):
    return {name.partition(".")[0] for name in names}


def packages(names):
    """Return the packages of this project that are named, each with its full name."""
    known = ("tune_policies.trainers", "tune_policies.benchmarks", "trainers", "benchmarks", "tests")
    return {package for name in names for package in known if f"{name}.".startswith(f"{package}.")}


@pytest.mark.parametrize("path", modules("tune_policies"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_the_shell_imports_ray_and_the_frameworks(path):
    forbidden = set() if path.stem in SHELL else FOREIGN

    assert not top_level(imported(path)) & forbidden


def test_the_core_reads_and_writes_no_files():
    found = {
        path.relative_to(ROOT / "tune_policies").with_suffix("").as_posix()
        for path in modules("tune_policies")
        if any(name.startswith("tune_policies.files") for name in imported(path))
    }

    assert {name for name in found if not name.startswith("files/")} <= READ_OR_WRITE_FILES


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("tune_policies", set()), ("trainers", set()), ("benchmarks", {"tune_policies.trainers"})],
)
def test_imports_point_from_benchmarks_to_trainers_to_tune_policies_by_names_that_no_user_has(package, allowed):
    """The command line alone stands above all of them. Under a short name a user's own package could be found."""
    command_line = ROOT / "tune_policies" / "cli" / "__init__.py"
    files = [path for path in modules(package) if path != command_line]
    found = {name for path in files for name in packages(imported(path, at_run_time_only=False))}

    assert found == allowed


PLAN_WITHOUT_RAY = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from tune_policies import ClusterCapacity, GpuPolicy, Resources, load_policy
plan = load_policy(sys.argv[1]).plan(ClusterCapacity.of(Resources(cpus=8, gpus=2)))
print(plan.max_concurrent_trials, plan.resources_per_trial)
"""


def test_planning_works_where_ray_and_the_frameworks_are_missing(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("kind: GpuPolicy\ngpus: 0.5\n")

    done = subprocess.run(
        [sys.executable, "-c", PLAN_WITHOUT_RAY, policy, " ".join(FOREIGN)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )

    assert done.stdout.strip() == "4 {'cpu': 2, 'gpu': 0.5}", done.stderr


def test_importing_the_packages_imports_no_framework():
    code = f"import sys, tune_policies.trainers, tune_policies.benchmarks; assert not {FOREIGN} & sys.modules.keys()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [tune_policies, trainers], ids=lambda package: package.__name__)
def test_everything_public_can_be_imported_and_is_listed_in_order(package):
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) for name in package.__all__)


def test_an_unknown_name_is_an_attribute_error():
    for package in (tune_policies, trainers):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            package.nonsense  # noqa: B018
