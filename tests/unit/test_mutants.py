"""Tests of the mutants of a module, each with one small mistake."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.evidence.mutants import operators
from tests.evidence.mutants.killing import ROOT, default_modules, imported_path, killing_tests
from tests.evidence.mutants.operators import count_mutants, mutant
from tune_policies.trainers.scheduling import choose_slots


def in_function(source):
    return "def function():\n" + textwrap.indent(source, "    ")


def changed(source):
    return [ast.unparse(mutant(source, number).tree) for number in range(count_mutants(source))]


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", ["a <= b", "a > b"]),
        ("a is not b", ["a is b"]),
        ("a // b", ["a * b"]),
        ("a and b", ["a or b"]),
        ("a and b and c", ["a or b or c", "b and c", "a and c", "a and b"]),
        ("x = not a", ["x = not not a"]),
        ("x = a if b else c", ["x = a if not b else c"]),
        ("x = [a for a in b if c]", ["x = [a for a in b if True]"]),
        ("x = 3", ["x = 4"]),
        ("x = True", ["x = False"]),
        ("x = max(a)", ["x = min(a)"]),
        ("x += a", ["pass", "x -= a"]),
        ("a.append(b)", ["pass"]),
        ("a.x = b", ["pass"]),
        ("return a", ["return None"]),
        ("return False", ["return True"]),
        ("for a in b:\n    break", ["for a in b:\n    continue"]),
    ],
)
def test_each_mutant_has_one_mistake(source, mutants):
    assert changed(in_function(source)) == [in_function(each) for each in mutants]


@pytest.mark.parametrize(
    "source",
    [
        "x = 3",
        "def f(a=3):\n    pass",
        in_function("x: Literal[3] = a"),
        in_function("x = 'A string.'"),
        in_function("x = f'{a + 1}'"),
    ],
)
def test_strings_annotations_and_code_outside_functions_are_not_changed(source):
    assert changed(source) == []


def test_a_mutant_records_its_line_and_its_change():
    made = mutant(in_function("x = a\ny = a < b\n"), 1)

    assert (made.line, made.change) == (3, "a < b -> a > b")


def test_by_default_the_modules_of_plans_and_of_the_core_of_a_run_are_changed():
    names = {path.relative_to(ROOT / "tune_policies").as_posix() for path in default_modules()}

    assert {"placement/layout.py", "plan/learned_needs.py", "policies/policy.py"} <= names
    assert {"trainers/scheduling/choose_slots.py", "trainers/retries/oom_retry.py"} <= names
    assert all((ROOT / "tune_policies" / name).is_file() for name in names)


def test_a_module_in_a_linked_folder_is_changed_at_the_path_from_which_it_is_imported():
    assert imported_path(ROOT / "trainers" / "scheduling" / "choose_slots.py") == Path(choose_slots.__file__)
    assert imported_path(Path(operators.__file__)) == Path(operators.__file__)


@pytest.mark.parametrize(
    ("module", "tests", "others"),
    [
        (
            "trainers/scheduling/run_events.py",
            {"test_run_events.py", "test_run_failures.py", "test_inner_schedulers.py", "test_slot_board.py"},
            {"test_common_plans.py", "test_resource_usage.py"},
        ),
        ("placement/layout.py", {"test_common_plans.py", "test_layout.py"}, {"test_trial_timer.py"}),
        ("plan/admission_by_speed.py", {"test_admission_by_speed.py"}, {"test_trial_timer.py"}),
    ],
)
def test_only_the_tests_of_similar_modules_run_on_a_mutant(module, tests, others):
    found = {path.name for path in killing_tests([ROOT / "tune_policies" / module])}

    assert tests <= found
    assert not others & found
