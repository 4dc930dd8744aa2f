"""Tests that the evidence pages name existing tests, all accelerator families, and the tested versions."""

import ast
import re
from functools import cache
from pathlib import Path

from tune_policies.cluster.accelerators import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "tested.md").read_text()
GUIDES = (ROOT / "docs" / "evidence" / "ray-guides.md").read_text()


def rows(section):
    """Yield each row of a section's table as a dictionary of cells by column title."""
    body = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    titles, *lines = re.findall(r"^\| (.+) \|$", body, re.MULTILINE)
    for line in lines:
        yield dict(zip(titles.split(" | "), line.split(" | "), strict=True))


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_test_on_the_pages_exists():
    named = {test.partition("::") for test in re.findall(r"`(tests/[^`]+)`", PAGE + GUIDES)}

    missing = [(path, name) for path, _, name in named if not (ROOT / path).exists() or name not in functions(path)]
    assert missing == []


def test_every_accelerator_family_has_a_row():
    named = {name for row in rows("Accelerators") for name in row["Family"].split(", ")}

    assert {str(family) for family in FAMILIES} <= named


def test_the_framework_versions_on_the_page_are_in_the_constraints():
    pins = set(re.findall(r"==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    assert {found for row in rows("Frameworks") for found in re.findall(r"\d+(?:\.\d+)+", row["Version"])} <= pins
