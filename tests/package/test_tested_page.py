"""docs/evidence/tested.md names existing tests and covers every accelerator family."""

import ast
import re
from functools import cache
from pathlib import Path

from tune_policies.cluster.accelerators import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "tested.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))
HOWS = ("on CPUs", "simulated GPUs", "simulated devices", "stand-in", "by its reader", "not tested")


def rows(section):
    """Yield each row of a section's table as its cells by column title."""
    body = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    titles, *lines = re.findall(r"^\| (.+) \|$", body, re.MULTILINE)
    for line in lines:
        yield dict(zip(titles.split(" | "), line.split(" | "), strict=True))


SECTIONS = [title for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE) if title != "On your GPU"]
ROWS = [row for section in SECTIONS for row in rows(section)]


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def missing(tests):
    """Return the tests (with their paths) that do not exist."""
    named = [test.partition("::") for test in tests]
    return [(path, name) for path, _, name in named if not (ROOT / path).exists() or name not in functions(path)]


def test_each_test_on_the_page_exists():
    assert missing(TESTS) == []


def test_every_row_has_one_of_the_categories_of_the_page():
    assert [row for row in ROWS if not row["How"].startswith(HOWS)] == []


def test_tests_on_a_gpu_belong_to_rows_that_were_not_tested():
    waiting = [row for row in ROWS if "tests/on_gpu/" in row["Test"]]

    assert waiting
    assert {row["How"] for row in waiting} == {"not tested"}


def test_every_accelerator_family_has_a_row():
    named = {name for row in rows("Accelerators") for name in row["Family"].split(", ")}

    assert {str(family) for family in FAMILIES} <= named


def test_the_versions_of_frameworks_are_those_of_the_constraints():
    pins = set(re.findall(r"==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    assert {found for row in rows("Frameworks") for found in re.findall(r"\d+(?:\.\d+)+", row["Version"])} <= pins
