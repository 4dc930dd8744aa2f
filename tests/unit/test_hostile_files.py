"""Every loader handles every kind of hostile file within seconds, with an error that names the file."""

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
from tune_policies.benchmarks.decide.price_file import load_prices
from tune_policies.files import reading
from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.reading import UnreadableFileError, read_bytes, read_text
from tune_policies.files.yaml_documents import DocumentError
from tune_policies.values.value import Value

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(600),  # a loader without limits would never end
]


@functools.cache
def results(*, heavy):
    """Return the result of each loader for each form of file, keyed by the names of loader and form."""
    command = [sys.executable, "-m", "tests.unit.hostile_table", *(form for form in FORMS if (form in HEAVY) == heavy)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(each["loader"], each["form"]): each for each in found}


def violated(loader, form, found):
    """Return the claims that a loader violates for one form of file."""
    text = "\n".join(found["messages"])
    unprintable = [char for char in "".join(found["shown"]) if char != "\n" and not char.isprintable()]
    claims = {
        "an error is this project's": found["kind"] != "raised",
        "only a harmless file is read": found["kind"] != "read" or LOADERS[loader].may_pass or form in OF_RACES,
        "an error names the file": not text or any(name in text for name in (NAME, "gpu-overheads.json", "run-")),
        "an error in a line names the line": found["kind"] != "line" or re.search(rf"{NAME}, line \d+: ", text),
        "an error is short": len(text) < 20_000,
        "an error has no empty line": "\n\n" not in text,
        "what is shown is printable": not unprintable,
        "an error contains no secret": "hunter2" not in text,
        "loading ends in time": found["seconds"] < MOST_S,
        "the file stays unchanged": found["is_as_before"],
    }
    return [f"{form}: not true that {claim}: {text[:500]}" for claim, holds in claims.items() if not holds]


@pytest.mark.parametrize("heavy", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_reads_a_hostile_file_safely_or_raises_an_error_with_its_name(loader, heavy):
    forms = [form for form in FORMS if (form in HEAVY) == heavy]

    mistakes = [mistake for form in forms for mistake in violated(loader, form, results(heavy=heavy)[loader, form])]

    assert mistakes == []


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_loading_all_forms_in_turn_stays_below_the_memory_limit(loader):
    assert max(found["bytes"] for (name, _), found in results(heavy=True).items() if name == loader) < MOST_BYTES


def test_a_price_table_in_a_special_or_huge_file_raises_an_error(tmp_path):
    for form in (device, pipe, huge):
        path = tmp_path / f"{form.__name__}.csv"
        form(path)
        with pytest.raises(UnreadableFileError):
            load_prices(path)


def test_a_file_that_becomes_a_pipe_while_it_is_opened_does_not_block(tmp_path, monkeypatch):
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


def test_the_size_limit_also_applies_to_a_kernel_file_of_reported_size_0():
    with pytest.raises(UnreadableFileError, match="more than 2 bytes"):
        read_bytes("/proc/self/stat", max_bytes=2)


def test_a_growing_file_is_read_up_to_its_size_when_it_was_opened(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()

    def append(_):
        with path.open("ab") as file:
            file.write(b"1234")

    # The function is called before the file is opened, and after its size has been read.
    monkeypatch.setattr(reading, "_check_regular", append)

    assert read_bytes(path) == b"1234"


def test_a_kernel_file_of_reported_size_0_is_read():
    assert read_text("/proc/self/stat").startswith(f"{os.getpid()} ")


def test_a_byte_order_mark_is_removed(tmp_path):
    (tmp_path / "policy.yaml").write_bytes(b"\xef\xbb\xbfkind: CpuPolicy\n")

    assert load_policy(tmp_path / "policy.yaml") == CpuPolicy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "duplicate key 'b'"),
        ("[1e400]", "'1e400' is too large for a float"),
        ("[-Infinity]", "invalid number"),
        ('["\\ud800"]', "hex escape"),
        ("[" * 300 + "]" * 300, "recursion limit exceeded"),
    ],
)
def test_json_is_parsed_strictly(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    "data", [{"a": [1, -0.5, 1e308, None, True, "é\n"], "b": {}}, [], "text", 10**400], ids=lambda data: str(data)[:9]
)
def test_valid_json_is_parsed_to_its_data(data):
    assert parse_json(json.dumps(data)) == parse_json(json.dumps(data).encode()) == data


@pytest.mark.parametrize(("text", "data"), [("", None), ("---\n---\na: 1", {"a": 1})])
def test_empty_documents_are_ignored(text, data):
    assert parse_data(text, "file") == data


def test_two_documents_in_a_file_raise_an_error():
    with pytest.raises(DocumentError, match="file, line 2: document 2 of 2 begins here"):
        parse_data("a: 1\n--- {b: 2}", "file")


@pytest.mark.parametrize(("number", "more"), [(21, "and 1 more mistake"), (1000, "and 980 more mistakes")])
def test_an_error_lists_at_most_twenty_mistakes(number, more):
    class Empty(Value):
        pass

    with pytest.raises(InvalidResourcesError) as caught:
        Empty.from_dict({f"key{i}": i for i in range(number)})

    assert str(caught.value).splitlines()[-1] == more
