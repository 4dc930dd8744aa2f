"""Tests of the rules for imports: the core works without Ray, and there are no circular imports."""

import ast
import functools
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import tune_policies
from tests.rest_parameters import further
from tune_policies import trainers

ROOT = Path(__file__).parents[2]
BELOW_THE_BORDER = {"values", "cluster", "files", "placement", "plan", "ray_compat"}
"""The folders that ``ray_compat`` may import."""
WITHOUT_RAY = {"values", "cluster", "files", "oom", "placement", "plan", "policies", "kuberay"}
"""The folders that work without Ray."""
VIEWS_OF = {
    "tune_policies.cluster.capacity": {"tune_policies.cluster.cluster_view"},
    "tune_policies.kuberay.design.policy_comparison": {"tune_policies.kuberay.design.policy_comparison_view"},
    "tune_policies.kuberay.design.design_comparison": {"tune_policies.kuberay.design.design_comparison_view"},
    "tune_policies.kuberay.design.offers": {"tune_policies.kuberay.design.offers_view"},
    "tune_policies.plan.benchmark_decision": {"tune_policies.plan.plan_view"},
    "tune_policies.plan.trial_plan": {
        f"tune_policies.plan.{name}" for name in ("plan_picture", "plan_text", "plan_view")
    },
    "tune_policies.trainers.usage.gpu_memory_records": {"tune_policies.trainers.usage.usage_report"},
}
"""The modules that show a value, by the module of the value. A method of the value imports them when it is called."""
FOREIGN = {"ray", "torch", "tensorflow", "jax", "cupy", "pynvml"}


def modules(package):
    """Return the modules of a folder, without the symbolic links to trainers and benchmarks."""
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


@functools.cache
def imported(path, *, at_run_time_only=True):
    """Return the names that a module imports.

    With ``at_run_time_only``, imports in functions and under ``TYPE_CHECKING`` are omitted.
    """
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

    visit(tree(path))
    return names


def top_level(names):
    return {name.partition(".")[0] for name in names}


def folders(names):
    """Return the folders of ``tune_policies`` that contain these modules."""
    return {name.split(".")[1] for name in names if name.startswith("tune_policies.")}


def files_of(names):
    """Return the files of the ``tune_policies`` modules that these names refer to or are defined in."""
    places = {
        (ROOT / each.replace(".", "/")).with_suffix(".py") for name in names for each in (name, name.rpartition(".")[0])
    }
    return {place for place in places if place.is_relative_to(ROOT / "tune_policies") and place.is_file()}


def packages(names):
    """Return the full names of the project's packages that these names refer to."""
    known = ("tune_policies.trainers", "tune_policies.benchmarks", "trainers", "benchmarks", "tests")
    return {package for name in names for package in known if f"{name}.".startswith(f"{package}.")}


def test_ray_compat_imports_only_the_folders_below_it():
    above = {
        folder
        for path in modules("tune_policies/ray_compat")
        for folder in folders(imported(path, at_run_time_only=False)) - BELOW_THE_BORDER
    }

    assert not above


def test_modules_that_work_without_ray_do_not_import_ray_even_indirectly():
    waiting = [path for folder in sorted(WITHOUT_RAY) for path in modules(f"tune_policies/{folder}")]
    seen = set(waiting)
    while waiting:
        following = files_of(imported(waiting.pop())) - seen
        seen |= following
        waiting += following

    assert not {path.relative_to(ROOT).as_posix() for path in seen if "ray" in top_level(imported(path))}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("tune_policies", set()), ("trainers", set()), ("benchmarks", {"tune_policies.trainers"})],
)
def test_packages_import_only_the_allowed_packages_by_their_full_names(package, allowed):
    """Only the command line may import all packages. The short name ``trainers`` could import a user's own package."""
    command_line = {ROOT / "tune_policies" / "cli" / name for name in ("main.py", "execute.py", "usage.py")}
    files = [path for path in modules(package) if path not in command_line]
    found = {name for path in files for name in packages(imported(path, at_run_time_only=False))}

    assert found == allowed


def test_the_only_circular_imports_are_those_of_methods_that_show_a_value():
    files = {name_of(path): path for package in PACKAGES for path in modules(package)}
    needed = {name: targets(path) & files.keys() - {name} - VIEWS_OF.get(name, set()) for name, path in files.items()}
    # Repeatedly remove the modules that import no remaining module. Only circular imports are left.
    while free := [name for name, targets in needed.items() if not targets & needed.keys()]:
        for name in free:
            del needed[name]

    assert not needed


@pytest.mark.parametrize(("value", "view"), sorted((value, view) for value in VIEWS_OF for view in VIEWS_OF[value]))
def test_a_value_imports_a_view_only_in_a_method(value, view):
    path = (ROOT / value.replace(".", "/")).with_suffix(".py")

    assert view in targets(path)
    assert not [name for name in imported(path) if f"{name}.".startswith(f"{view}.")]


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = (*(("tune_policies",) if parts[0] != "tune_policies" else ()), *parts)
    return ".".join(package[:-1] if package[-1] == "__init__" else package)


def targets(path):
    """Return the modules that a module imports, including imports in functions.

    A package is included only if the module imports a name that the package itself defines.
    """
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names} & MODULES
            found |= inside if len(inside) == len(node.names) else {base, *inside}
    return found


PARTS = {
    "tune_policies.__main__": "command line",
    "tune_policies.cli": "command line",
    "tune_policies.benchmarks.__main__": "command line",
    "tune_policies.benchmarks.cli": "command line",
    "tune_policies.benchmarks": "benchmarks",
    "tune_policies.trainers.profiling": "profiling",
    "tune_policies.trainers": "runner",
    "tune_policies.kuberay": "kuberay",
    "tune_policies": "planner",
}
"""The part of each package. The first package that contains a module determines the part of the module."""
MAY_IMPORT = {
    "planner": set(),
    "runner": {"planner"},
    "profiling": {"planner", "runner"},
    "benchmarks": {"planner", "runner"},
    "kuberay": {"planner"},
    "command line": {"planner", "runner", "profiling", "benchmarks", "kuberay"},
}
"""The parts that a part may import besides itself and the reading of cluster files."""
READING = "tune_policies.kuberay.reading"
FACADES = {"tune_policies", "tune_policies.trainers"}
"""The packages that import each public name of a part when it is first used."""


def part_of(module):
    return next(part for package, part in PARTS.items() if f"{module}.".startswith(f"{package}."))


def test_a_part_imports_only_the_parts_on_which_it_is_built():
    """A user of one part does not load the others, and a change of one part needs only its own tests."""
    files = {name_of(path): path for package in PACKAGES for path in modules(package)}
    wrong = set()
    for name in files.keys() - FACADES:
        allowed = {part_of(name), *MAY_IMPORT[part_of(name)]}
        for target in targets(files[name]) & files.keys() - FACADES:
            if part_of(target) not in allowed and not target.startswith(READING):
                wrong.add((name, target))

    assert not wrong


PACKAGES = ("tune_policies", "trainers", "benchmarks")
MODULES = {name_of(path) for package in PACKAGES for path in modules(package)}

WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
"""


def run_without(missing, code):
    """Run a program in which some packages cannot be imported, and return its output."""
    program = [sys.executable, "-c", WITHOUT.format(missing=sorted(missing)) + code]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_planning_works_without_ray_and_the_frameworks(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("kind: GpuPolicy\ngpus: 0.5\n")
    code = f"""
from tune_policies import ClusterCapacity, Resources, load_policy
plan = load_policy({str(policy)!r}).plan(ClusterCapacity.of(Resources(cpus=8, gpus=2)))
print(plan.max_concurrent_trials, plan.resources_per_trial)
"""

    assert run_without(FOREIGN, code) == "4 {'cpu': 2, 'gpu': 0.5}"


def test_a_user_loads_only_the_parts_that_the_program_uses():
    plan = "GpuPolicy(gpus=0.5).plan(ClusterCapacity.of(Resources(cpus=8, gpus=2)))"
    code = f"""
from tune_policies import ClusterCapacity, GpuPolicy, Resources
{plan}
print(*sorted({{name.split(".")[1] for name in sys.modules if name.startswith("tune_policies.")}}))
from tune_policies import run
print("unused:", *[name for name in sys.modules if name.startswith({UNUSED_BY_A_RUN!r})])
"""

    of_the_planner, unused_by_a_run = run_without((), code).split("\n", 1)

    assert {"trainers", "benchmarks", "kuberay", "cli"}.isdisjoint(of_the_planner.split())
    assert unused_by_a_run == "unused:"


UNUSED_BY_A_RUN = tuple(
    f"tune_policies.{name}" for name in ("benchmarks", "cli", "kuberay.lint", "kuberay.writing", "trainers.profiling")
)


def test_importing_the_packages_imports_no_framework():
    run_without(
        (), f"import tune_policies.trainers, tune_policies.benchmarks; assert not {FOREIGN} & sys.modules.keys()"
    )


@pytest.mark.rest
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "xgboost", "lightgbm", "jax"])
def test_a_trainer_needs_no_other_framework(framework):
    others = {"torch", "tensorflow", "xgboost", "lightgbm", "jax"} - {framework}

    run_without(others, f"from tune_policies.trainers import build_{framework}_trainer")


@pytest.mark.parametrize("package", [tune_policies, *further(trainers)], ids=lambda package: package.__name__)
def test_all_public_names_can_be_imported_and_are_sorted(package):
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


def test_the_version_is_that_of_the_installed_package():
    assert tune_policies.__version__ == version("tune-policies")


def test_the_architecture_page_describes_every_module():
    page = (ROOT / "docs/architecture.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]

    for package in ("tune_policies", "trainers", "benchmarks"):
        for path in modules(package):
            folder = f"{path.parent.relative_to(ROOT)}/".removeprefix("tune_policies/") or "tune_policies/"
            if path.stem not in {"__init__", "__main__"}:
                assert any(row.startswith(f"| `{folder}`") and f"`{path.stem}`:" in row for row in rows), path
