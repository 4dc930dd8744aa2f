"""Workloads are found by name or in the working directory."""

import ast
import sys
from pathlib import Path

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.workloads import registry
from tune_policies.benchmarks.workloads.registry import (
    BUILT_IN,
    CPU_COST,
    OTHER_COST,
    SYNTHETIC,
    check_needs,
    check_workload,
    describe_sizes,
    find_workload,
    load_workload,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a working directory, and remove its modules from ``sys.modules`` afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mine_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", [*BUILT_IN, *SYNTHETIC])
def test_sizes_are_ascending_powers_of_two(name):
    sizes = find_workload(name).sizes

    assert list(sizes) == sorted(set(sizes))
    assert all(size.bit_count() == 1 for size in sizes)


@pytest.mark.parametrize("name", [*BUILT_IN, *SYNTHETIC])
def test_the_function_of_a_built_in_workload_exists_even_if_its_library_is_not_installed(name):
    module, _, function = find_workload(name).path.partition(":")

    source = ast.parse((Path(registry.__file__).parent / f"{module}.py").read_text())

    functions = {part.name for part in source.body if isinstance(part, ast.FunctionDef)}
    assigned = {name.id for part in source.body for name in ast.walk(part) if isinstance(name, ast.Name)}
    assert function in functions | assigned


def test_the_sizes_of_workloads_are_described_by_their_unit():
    assert describe_sizes(["mlp", "matmul", "cnn", "mine:train"]) == (
        "size: samples per batch (mlp, cnn); rows and columns (matmul); as defined by the workload (mine:train)"
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_reference_states_the_unit_of_each_size(name):
    page = Path(__file__).parents[3].joinpath("docs/reference/benchmarks.md").read_text()

    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    assert f" | {find_workload(name).size_unit}" in row


def test_the_error_for_an_unknown_name_suggests_the_most_similar_name_and_lists_all_names():
    with pytest.raises(InvalidResourcesError, match=r"'matmull'; did you mean 'matmul'\? \(known: matmul, mlp, .*\)"):
        load_workload("matmull")


def test_the_error_for_a_missing_package_contains_the_pip_command():
    lacking = find_workload("doubling")._replace(needs=("numba_of_nobody",))

    with pytest.raises(InvalidResourcesError, match=r"requires numba_of_nobody.*pip install 'tune-policies\["):
        check_needs(lacking)


def test_a_users_workload_comes_from_the_working_directory(folder):
    (folder / "mine_a.py").write_text("def train(size, device): return size, device")

    assert load_workload("mine_a:train")(4, "cpu") == (4, "cpu")


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("mine_b:", "", "'mine_b:' must be module:function, such as"),
        (":train", "", "':train' must be module:function, such as"),
        ("mine_b:train", "def test(): pass", "mine_b does not define 'train'"),
        (
            "mine_b:train",
            "train = 3",
            "must be a function of a size and a device that returns Steps, but it is of type int",
        ),
        ("mine_b:train", "import nobody_has_it", "the import of mine_b raised ModuleNotFoundError: No module named"),
        ("mine_b:train", "1 / 0", "the import of mine_b raised ZeroDivisionError: division by zero"),
        ("mine_b:train", "def train(", r"the import of mine_b raised SyntaxError: '\(' was never closed"),
    ],
    ids=lambda text: text[:30] or "nothing",
)
def test_an_invalid_user_workload_is_refused_with_the_reason(folder, name, source, message):
    (folder / "mine_b.py").write_text(source)

    with pytest.raises(InvalidResourcesError, match=message):
        load_workload(name)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("mine_cc:train", "", r"there is no module 'mine_cc' in /.*; did you mean 'mine_c'\?"),
        ("mine_c.part:train", "", r"there is no module 'mine_c.part' in /"),
        ("mine_c:train", "def train(", r"mine_c\.py is not valid Python: '\(' was never closed"),
        ("mine_c:train", "def trains(): pass", r"mine_c\.py does not define 'train'; did you mean 'trains'\?"),
    ],
)
def test_a_workload_that_does_not_exist_is_refused_before_anything_starts(folder, name, source, message):
    (folder / "mine_c.py").write_text(source)

    with pytest.raises(InvalidResourcesError, match=message):
        check_workload(name)


@pytest.mark.parametrize(
    "source",
    [
        "def train(size, device): pass",
        "train = print",
        "from other import train",
        "from other import *",
        "def __getattr__(name): pass",
        "globals()['train'] = print",
    ],
)
@pytest.mark.parametrize("module", ["mine_d", "mine_e.part"])
def test_a_users_workload_is_accepted_without_an_import(folder, module, source):
    path = folder / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"raise RuntimeError('imported')\n{source}")

    assert check_workload(f"{module}:train") is None
    assert not sys.modules.keys() & {"mine_d", "mine_e"}


def test_the_synthetic_device_costs_the_same_as_the_cpu_at_size_1000():
    (cpu_fixed, cpu_each), (other_fixed, other_each) = CPU_COST, OTHER_COST

    assert (other_fixed - cpu_fixed) / (cpu_each - other_each) == pytest.approx(1_000)


FORMS = {
    "a function of a config": "def train(config): pass",
    "a lambda": "train = lambda config: None",
    "too many arguments": "def train(size, device, seed): pass",
    "a required keyword": "def train(size, device, *, seed): pass",
    "a trainable class": "class train:\n    def __init__(self, config=None, logger=None): pass",
}
BY_SOURCE = [form for form in FORMS if FORMS[form].startswith("def")]


@pytest.mark.parametrize("form", FORMS)
def test_a_trainable_is_refused_as_a_workload_with_the_form_to_write(folder, form):
    (folder / "mine_e.py").write_text(FORMS[form])

    with pytest.raises(InvalidResourcesError) as caught:
        load_workload("mine_e:train")

    assert "Write def train(size, device): return Steps(with_transfers=step)" in str(caught.value)


@pytest.mark.parametrize("form", BY_SOURCE)
def test_a_trainable_is_refused_before_it_is_imported(folder, form):
    (folder / "mine_f.py").write_text(FORMS[form])

    with pytest.raises(InvalidResourcesError, match=r"but it is defined as train\(.*\)\. A trainable of Tune is not"):
        check_workload("mine_f:train")


def test_the_form_that_the_error_advises_is_a_workload(folder):
    (folder / "mine_g.py").write_text(
        "from tune_policies.benchmarks.workloads.steps import Steps\n"
        "def step(): pass\n"
        "def train(size, device): return Steps(with_transfers=step)\n"
    )

    assert check_workload("mine_g:train") is None
    assert load_workload("mine_g:train")(1, "cpu").with_transfers() is None


@pytest.mark.parametrize(
    "source",
    ["def train(*args): pass", "def train(size, device='cpu', seed=0): pass", "train = print"],
    ids=["any arguments", "defaults", "a built-in function"],
)
def test_other_functions_that_take_a_size_and_a_device_are_workloads(folder, source):
    (folder / "mine_h.py").write_text(source)

    assert check_workload("mine_h:train") is None
    assert callable(load_workload("mine_h:train"))
