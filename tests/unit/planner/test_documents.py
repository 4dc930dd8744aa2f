"""Tests that YAML is parsed to plain data with line numbers, and that every error is a DocumentError with a line."""

import gzip
import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies.files.yaml_documents import MAX_CHARACTERS, DocumentError, read_documents
from tune_policies.kuberay.reading.documents import read_text
from tune_policies.values.errors import InvalidResourcesError


def only(text):
    (document,) = read_documents(text, "cluster.yaml")
    return document


def laughs(levels=12):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def nested_by_aliases():
    around = f"{'[' * 80}{{}}{']' * 80}".format
    return "\n".join([f"a0: &a0 {around('')}", *(f"a{n}: &a{n} {around(f'*a{n - 1}')}" for n in range(1, 4))])


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param("a: 1\nb: [", 2, "not YAML", id="an open bracket"),
        pytest.param("a:\n\tb: 2", 2, "indented with tabs", id="a tab"),
        pytest.param("a: 1\nb: \x00", 2, "is not valid in YAML", id="a NUL byte"),
        pytest.param("a: \ud800", 1, "is not valid in YAML", id="an incomplete character"),
        pytest.param("a: 1\nb: 2\na: 3", 3, r"duplicate key 'a' \(first in line 1\)", id="a duplicate key"),
        pytest.param(
            "a: 1\na: true", 2, r"duplicate key 'a' \(first in line 1\)", id="a duplicate key that is once a boolean"
        ),
        pytest.param("x: 1\n---\na: &a [1, *a]", 3, r"\*a contains itself", id="a recursive alias"),
        pytest.param("a: 1\nb: *c", 2, r"\*c is undefined", id="an undefined alias"),
        pytest.param("x: 1\ny: !!python/object/apply:os.system [ls]", 2, "python/object.* is not supported", id="code"),
        pytest.param("x: !!python/name:os.system", 1, "is not supported", id="a Python object"),
        pytest.param("x: !Ref y", 1, "the tag !Ref is not supported", id="a custom tag"),
        pytest.param("x: !!int abc", 1, "cannot be read as int", id="a wrong tag"),
        pytest.param(f"x: {'1' * 5000}", 1, "cannot be read as int", id="a number of thousands of digits"),
        pytest.param(f"x: 0x{'f' * 5000}", 1, "cannot be read as int", id="thousands of hexadecimal digits"),
        pytest.param("? [a]\n: 1", 1, "a key must be a string", id="a list as a key"),
        pytest.param("a: &x [1]\n*x : 2", 2, "a key must be a string", id="an alias of a list as a key"),
        pytest.param("a: {{ .Values.x }}", 1, "`helm template`", id="a template"),
        pytest.param("<<: 1", 1, "the value of << must be a mapping", id="a merge of a number"),
        pytest.param("[" * 100_000, 1, "more than 100 levels deep", id="brackets in brackets"),
        pytest.param(nested_by_aliases(), 2, "more than 100 levels deep", id="aliases in aliases"),
        pytest.param(laughs(), 6, "more than 200,000 parts", id="a billion laughs"),
        pytest.param("x" * (MAX_CHARACTERS + 1), 1, "more than 10,000,000 characters", id="a huge file"),
    ],
)
def test_an_invalid_document_raises_an_error_with_its_line(text, line, reason):
    with pytest.raises(DocumentError, match=reason) as caught:
        read_documents(text, "cluster.yaml")

    assert (caught.value.source, caught.value.line) == ("cluster.yaml", line)


@given(st.text(alphabet=" \n\t-:[]{}&*!|>'\"#%@,?<~aβ01\x00\ud800", max_size=60))
def test_any_text_is_parsed_or_raises_a_document_error_with_a_valid_line(text):
    try:
        lines = [document.line(()) for document in read_documents(text, "cluster.yaml")]
    except DocumentError as error:
        lines = [error.line]

    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        pytest.param("a: 2026-01-02", {"a": "2026-01-02"}, id="a date is a string"),
        pytest.param("a: 12:30", {"a": "12:30"}, id="a time is a string"),
        pytest.param("a: 1e3", {"a": 1000.0}, id="an exponent is a number"),
        pytest.param("a: [0644, 0o644, '0o644']", {"a": [420, 420, "0o644"]}, id="octal numbers"),
        pytest.param("on: 1\n2: 3\n~: 4", {"true": 1, "2": 3, "null": 4}, id="a key is a string"),
        pytest.param("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}, id="a merge"),
        pytest.param("<<: [{a: 1}, {a: 2, b: 3}]\nb: 4", {"a": 1, "b": 4}, id="the first of several merges counts"),
        pytest.param("a: '<<'\n'<<': b", {"a": "<<", "<<": "b"}, id="a quoted << is a key"),
        pytest.param("\ufeffa: yes", {"a": True}, id="a byte order mark"),
    ],
)
def test_scalars_are_interpreted_as_in_kubernetes(text, data):
    assert only(text).data == data


def test_the_line_numbers_of_all_documents_start_at_the_top_of_the_file():
    first, second = read_documents("a: 1\n---\n---\n\nb:\n- c: 2\n", "cluster.yaml")

    assert (first.line(("a",)), second.line(("b", 0, "c")), second.line(("b", 0, "missing"))) == (1, 6, 6)


def test_a_duplicate_key_with_the_same_value_is_recorded_with_its_line():
    document = only("a: {b: 1, c: [x]}\nd: 2\na: {c: [x], b: 1}")

    assert (document.data, document.line(("a",)), dict(document.repeated)) == (
        {"a": {"b": 1, "c": ["x"]}, "d": 2},
        1,
        {("a",): 3},
    )


def test_an_aliased_part_has_the_line_of_the_alias():
    document = only("a: &x\n  b: 1\nc: *x\nd:\n- *x\ne:\n  <<: *x\n")

    places = [("a", "b"), ("c", "b"), ("d", 0, "b"), ("e", "b")]
    assert [document.line(place) for place in places] == [2, 3, 5, 7]


def test_a_gzipped_file_is_unpacked(tmp_path):
    path = tmp_path / "cluster.yaml.gz"
    path.write_bytes(gzip.compress(b"a: ") + gzip.compress(b"1"))  # two compressed parts, as from `cat a.gz b.gz`

    assert read_text(path) == "a: 1"


def test_a_dash_reads_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1")))

    assert read_text("-") == "a: 1"


def test_a_dash_with_a_closed_stdin_raises_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as in a process with a closed stdin

    with pytest.raises(InvalidResourcesError, match="stdin is closed"):
        read_text("-")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"a: 1\nb: \xff", "line 2: the byte 0xff is not valid in UTF-8 text", id="not text"),
        pytest.param(b"\x1f\x8bnonsense", "cannot be unpacked as gzip", id="not gzip"),
        pytest.param(gzip.compress(b"a: 1\n" * 99)[:-9], "cannot be unpacked as gzip", id="truncated gzip"),
        pytest.param(
            gzip.compress(b" " * (MAX_CHARACTERS + 1)), "more than 10,000,000 bytes", id="huge after unpacking"
        ),
        pytest.param(b" " * (MAX_CHARACTERS + 1), "more than 10,000,000 bytes", id="huge"),
    ],
)
def test_an_invalid_or_huge_file_raises_an_error_with_its_path(tmp_path, content, message):
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=f"{re.escape(str(path))}.*{message}"):
        read_text(path)


def test_a_missing_file_raises_an_error_with_its_path(tmp_path):
    with pytest.raises(InvalidResourcesError, match=r"cannot read .*nowhere"):
        read_text(tmp_path / "nowhere")
