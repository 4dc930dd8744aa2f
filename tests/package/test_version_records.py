"""Tests of the table of supported versions, which test runs make."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.version_records import RECORDS, as_json, replaced, table

ROOT = Path(__file__).parents[2]
OLD = {"python": "3.11.7", "ray": "2.50.0", "torch": None, "system": "Linux x86_64", "suite": "main paths"}
ENTRIES = [{**OLD, "passed": 36, "date": "2026-01-01"}]


def test_a_new_run_replaces_the_entry_with_the_same_versions_and_tests():
    new = {**OLD, "passed": 37, "date": "2026-02-01"}
    other = {**new, "ray": "2.60.0"}

    assert replaced(replaced(ENTRIES, new), other) == [new, other]


def test_each_cell_of_the_table_contains_the_number_of_passed_tests_and_the_date():
    assert "| 3.11.7 | 2.50.0 | - | Linux x86_64 | - | - | 36 passed, 2026-01-01 | - |" in table(ENTRIES)


def test_the_recorded_entries_are_in_the_form_that_a_run_writes():
    entries = json.loads(RECORDS.read_text())

    assert RECORDS.read_text() == as_json(replaced(entries, entries[0]))


RECORDER = """
import pathlib
from tests import version_records
from tests.version_records import pytest_addoption, pytest_terminal_summary
version_records.RECORDS = pathlib.Path(__file__).with_name("versions.json")
"""


@pytest.mark.rest
@pytest.mark.parametrize(("body", "passed"), [("pass", [1]), ("assert False", [])])
def test_a_run_records_its_versions_only_if_no_test_failed(body, passed, tmp_path):
    (tmp_path / "conftest.py").write_text(RECORDER)
    (tmp_path / "versions.json").write_text("[]")
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--record-as", "main paths", tmp_path]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120)

    assert [entry["passed"] for entry in json.loads((tmp_path / "versions.json").read_text())] == passed
