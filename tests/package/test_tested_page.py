"""Tests that the evidence pages name existing tests, and that the categories of their rows follow from these tests."""

import ast
import re
from functools import cache
from pathlib import Path

from tune_policies.cluster.accelerators import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "tested.md").read_text()
GUIDES = (ROOT / "docs" / "evidence" / "ray-guides.md").read_text()
HOWS = ("on CPUs", "simulated GPUs", "simulated devices", "stand-in", "by its reader", "not tested")


def rows(section):
    """Yield each row of a section's table as a dictionary of cells by column title."""
    body = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    titles, *lines = re.findall(r"^\| (.+) \|$", body, re.MULTILINE)
    for line in lines:
        yield dict(zip(titles.split(" | "), line.split(" | "), strict=True))


SECTIONS = [title for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE) if title != "On your GPU"]
ROWS = [row for section in SECTIONS for row in rows(section)]


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_test_on_the_pages_exists():
    named = {test.partition("::") for test in re.findall(r"`(tests/[^`]+)`", PAGE + GUIDES)}

    missing = [(path, name) for path, _, name in named if not (ROOT / path).exists() or name not in functions(path)]
    assert missing == []


def is_backed(row):
    """Return whether the page and the tests in a row of Ray's guides justify its status."""
    _, page, tests, status = row
    folders = set(re.findall(r"`tests/(\w+)/", tests))
    has_page = page != "\u2013"
    match status.partition(": "):
        case "tested", _, _:
            return has_page and folders == {"on_ray"}
        case "planned", _, _:
            return has_page and folders and "on_gpu" not in folders
        case "documented", _, _:
            return has_page and folders <= {"on_gpu"}
        case "not covered", _, reason:
            return reason and not folders
    return False


def test_each_status_of_a_statement_in_rays_guides_follows_from_its_page_and_test():
    statements = GUIDES.partition("\n## ")[2]
    found = [line.split(" | ") for line in re.findall(r"^\| (?!Statement )(.+) \|$", statements, re.MULTILINE)]

    assert len(found) > 50
    assert [row for row in found if not is_backed(row)] == []


def test_every_row_has_one_of_the_categories_of_the_page():
    assert [row for row in ROWS if not row["How"].startswith(HOWS)] == []


def test_rows_with_gpu_tests_have_the_category_not_tested():
    waiting = [row for row in ROWS if "tests/on_gpu/" in row["Test"]]

    assert waiting
    assert {row["How"] for row in waiting} == {"not tested"}


def test_every_accelerator_family_has_a_row():
    named = {name for row in rows("Accelerators") for name in row["Family"].split(", ")}

    assert {str(family) for family in FAMILIES} <= named


def test_the_framework_versions_on_the_page_are_in_the_constraints():
    pins = set(re.findall(r"==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    assert {found for row in rows("Frameworks") for found in re.findall(r"\d+(?:\.\d+)+", row["Version"])} <= pins
