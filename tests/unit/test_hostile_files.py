"""Whatever file is named, every loader ends soon, with an error that names it."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.hostile_table import FORMS, HEAVY, LOADERS, MOST_BYTES, MOST_S, NAME, OF_RACES, device, huge, pipe
from tune_policies import CpuPolicy, InvalidResourcesError, load_policy
from tune_policies.benchmarks.decide.prices import load_prices
from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.reading import UnreadableFileError, read_bytes, read_text
from tune_policies.files.yaml_documents import DocumentError
from tune_policies.values.value import Value

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # for the table; where nothing bounds a loader it takes indefinitely


@functools.cache
def results(*, heavy):
    """What each loader said of each form, by both names."""
    command = [sys.executable, "-m", "tests.unit.hostile_table", *(form for form in FORMS if (form in HEAVY) == heavy)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(each["loader"], each["form"]): each for each in found}


@pytest.mark.parametrize("form", [pytest.param(each, marks=[pytest.mark.slow] * (each in HEAVY)) for each in FORMS])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_refuses_it_by_its_name_or_takes_no_harm(loader, form):
    found = results(heavy=form in HEAVY)[loader, form]
    text = "\n".join(found["said"])

    assert found["kind"] != "raised", text
    assert found["kind"] != "read" or LOADERS[loader].may_pass or form in OF_RACES
    assert not found["said"] or NAME in text or "gpu-overheads.json" in text or "run-" in text
    assert found["kind"] != "line" or re.search(rf"{NAME}, line \d+: ", text)
    assert (len(text) < 20_000, "\n\n" in text) == (True, False)
    assert [each for each in "".join(found["shown"]) if each != "\n" and not each.isprintable()] == []
    assert "hunter2" not in text
    assert found["seconds"] < MOST_S
    assert found["is_as_before"]


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_all_forms_after_each_other_take_no_more_memory_than_one_may(loader):
    assert max(found["bytes"] for (name, _), found in results(heavy=True).items() if name == loader) < MOST_BYTES


def test_a_table_of_prices_has_bounds_too(tmp_path):
    for form in (device, pipe, huge):
        path = tmp_path / f"{form.__name__}.csv"
        form(path)
        with pytest.raises(UnreadableFileError):
            load_prices(path)


def test_a_file_that_becomes_a_pipe_while_it_is_opened_keeps_nobody_waiting(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("a")
    opened = os.open

    def swap(name, flags):
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        read_bytes(path)


def test_a_file_that_says_that_it_is_empty_has_the_same_bound():
    with pytest.raises(UnreadableFileError, match="more than 2 bytes"):
        read_bytes("/proc/self/stat", max_bytes=2)


def test_a_file_of_the_kernel_is_read_though_it_says_that_it_is_empty():
    assert read_text("/proc/self/stat").startswith(f"{os.getpid()} ")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "policy.yaml").write_bytes(b"\xef\xbb\xbfkind: CpuPolicy\n")

    assert load_policy(tmp_path / "policy.yaml") == CpuPolicy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' comes twice"),
        ("[1e400]", "no float is as large as '1e400'"),
        ("[-Infinity]", "invalid number"),
        ('["\\ud800"]', "hex escape"),
        ("[" * 300 + "]" * 300, "recursion limit exceeded"),
    ],
)
def test_json_is_read_strictly(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    "data", [{"a": [1, -0.5, 1e308, None, True, "é\n"], "b": {}}, [], "text", 10**400], ids=lambda data: str(data)[:9]
)
def test_json_is_read_as_what_it_says(data):
    assert parse_json(json.dumps(data)) == parse_json(json.dumps(data).encode()) == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 2026-11-21\nb: 12:30\nc: 1e3", {"a": "2026-11-21", "b": "12:30", "c": 1000}),
        ("1: a", {"1": "a"}),
        ("base: &x {a: 1}\nb: {<<: *x, c: 2}", {"base": {"a": 1}, "b": {"a": 1, "c": 2}}),
        ("", None),
        ("---\n---\na: 1", {"a": 1}),
    ],
    ids=["what only looks like a number", "a key", "a merge", "nothing", "an empty document"],
)
def test_yaml_is_read_as_json_would_say_it(text, data):
    assert parse_data(text, "file") == data


def test_two_documents_are_one_too_many():
    with pytest.raises(DocumentError, match="file, line 2: a second document begins here"):
        parse_data("a: 1\n--- {b: 2}", "file")


def test_of_many_mistakes_twenty_are_told():
    class Empty(Value):
        pass

    with pytest.raises(InvalidResourcesError) as caught:
        Empty.from_dict({f"key{number}": number for number in range(1000)})

    assert str(caught.value).splitlines()[-1] == "and 980 more mistakes"
