"""Sanitized texts contain no control characters, commands for CI services, or secrets."""

import io
import json
import time

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from tests.measured_runs import a_run
from tune_policies.benchmarks.record.packing_record import ThroughputRecord
from tune_policies.files.terminal import TextConsole, empty_table, to_text
from tune_policies.plan.idle import Why
from tune_policies.probe.doctor.node_checks import NodeFacts
from tune_policies.values.sanitize import indented, one_line, printable, shortened, without_names, without_secrets


@given(st.text())
@example("a" * 401)
@example("##[a " * 2000)
@example("\n" * 1000)
def test_any_text_becomes_one_printable_line(text):
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)


@given(st.text())
def test_a_printable_text_contains_only_glyphs_tabs_and_line_breaks(text):
    assert [each for each in printable(text) if each not in "\n\t" and not each.isprintable()] == []


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_printable_json_contains_the_same_data(text):
    assert json.loads(printable(json.dumps({"a": text}, ensure_ascii=False, indent=2))) == {"a": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\r\t", r"a\nb\r\t"),
        ("\x1b[31mred", r"\u001b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\U000e0041", r"\udb40\udc41"),
        ("::add-mask::a", r"\u003a:add-mask::a"),
        ("a ##[group]b", r"a #\u0023[group]b"),
        ("größe 東京 [bold] a::b ## heading", "größe 東京 [bold] a::b ## heading"),
    ],
)
def test_control_sequences_are_escaped_and_other_texts_do_not_change(text, expected):
    assert one_line(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 400, "a" * 400),
        (f"no '{'a' * 100_000}'; use b", f"no '{'a' * 197}...{'a' * 196}'; use b"),
        ("ab " * 2000 + "\nc", "ab " * 665 + "ab ... b " + "ab " * 665 + "\nc"),
    ],
    ids=["a short text", "a long word", "a long line"],
)
def test_the_middle_of_a_long_text_is_removed(text, expected):
    assert shortened(text) == expected


def test_all_lines_of_a_message_but_the_first_are_indented():
    assert indented("wrong:\na.yaml:1: error\n  ::b") == "wrong:\n  a.yaml:1: error\n  \\u003a:b"


@pytest.mark.parametrize(
    "text",
    [
        "ray://user:hunter2@host:10001",
        "GET https://hunter2@host/path failed",
        "postgresql+psycopg://u:hunter2@db/name",
        "WANDB_API_KEY=hunter2",
        "AWS_SECRET_ACCESS_KEY='hunter2'",
        "DB_PASSWORD=hunter2, tried again",
        "https://host/path?token=hunter2&a=b",
        "{'password': 'hunter2', 'user': 'a'}",
        '{"api_key": "hunter2 hunter2"}',
        "run --api-key hunter2 --size 3",
        "run --token=hunter2",
        "Authorization: Bearer hunter2hunter2",
        "postgresql://user:a/hunter2@host/name",
        "http://a/b,postgresql://user:a:/@hunter2@host/name",
        "password: hunter2",
        "password: a hunter2, and hunter2",
        "db_password : 'it''s hunter2'",
        "password:\n  hunter2",
        "password: |-\n  a\n  hunter2\nuser: b",
        r"b'token:\n  hunter2'",
        '{"password" : "hunter2"}',
        '{"password":\n"hunter2"}',
        r'{"password": "a\"hunter2"}',
        r'"{\"password\": \"a \\\"hunter2\"}"',
        '{"password": "hunter2',
        "DB_PWD=hunter2",
        "DB_PASS=a,hunter2",
        "DB_PWD=\nhunter2",
        "password = a hunter2",
        "'password' => 'hunter2'",
        "<password>hunter2</password>",
        "X-Api-Key: hunter2",
        "run --password\nhunter2",
        "['run', '--password', 'hunter2']",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_removed(text):
    assert "hunter2" not in without_secrets(text)
    assert "***" in without_secrets(text)


_NAMES = st.sampled_from(["password", "DB_PWD", "wandb_api_key", "clientSecret", "AWS_SECRET_ACCESS_KEY", "HF-TOKEN"])
_SECRET = st.text("abcXYZ019/+=@:,;&!#%()[]{}.-_*~^$?<>|", min_size=1).map("hunter2{}hunter2".format)


@given(st.data(), _NAMES, _SECRET, st.sampled_from(["", " ", "\n  ", " \n"]))
def test_no_part_of_any_secret_remains(data, name, secret, space):
    in_json = json.dumps({name: f"{secret} {secret}"}, separators=(",", f":{space}"))
    written = [
        f"{name}:{space}{secret} {secret}\nuser: a",
        f"{name}={space}{secret}\nuser=a",
        in_json,
        json.dumps(in_json),
        json.dumps(json.dumps(in_json)),
        repr(in_json),
        yaml.safe_dump({name: f"{secret} {secret}", "user": "a"}),
        f"a://user:{secret}@host, {secret.count('')} times",
        f"run --{name} {secret} --size 3",
    ]

    assert "hunter2" not in without_secrets(data.draw(st.sampled_from(written)))


@pytest.mark.parametrize(
    "text",
    [
        "ray://host:10001",
        "labels tier=gold, team=blue",
        "name: token, size: 3",
        "key=value",
        "--key-file a.pem",
        "http://host/a@b",
        "found character '\\t' that cannot start any token",
        "KeyError: 'a'",
        "BYPASSED: 3",
        "apiVersion: rbac.authorization.k8s.io/v1",
    ],
)
def test_a_text_without_secrets_does_not_change(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 workers, each with 8 CPUs, 0.3333 GPU, 5.3 GiB of GPU memory; the trial driver reserves 1 MiB", None),
        ("1,024 trials in whole 2x2x4 slices", None),
        ("10.0.0.7 has 1 CPU", "(left out) has 1 CPU"),
        ("node 3f2a88c1 went", "node (left out) went"),
        ("1 licence_alice on host-7.example.org, and 1 CPU", "1 (left out) on (left out) and 1 CPU"),
        ("/home/alice host-7 is not read", "(left out) is not read"),
        ("1 GPU on A100, 1 GPU on B7", "1 GPU on A100, 1 GPU on (left out)"),
    ],
)
def test_without_names_keeps_only_numbers_and_common_words(text, shown):
    assert without_names(text, {"A100"}) == (shown or text)


@pytest.mark.parametrize("why", Why)
def test_without_names_keeps_each_reason_for_idle_resources(why):
    reason = why.format("GPU")
    assert without_names(reason, ()) == reason


@pytest.mark.parametrize(
    "repeated",
    ["a", "://", "://a:@ ", "KEY", "token=", "token: |\n ", "token='", "--", "'", "##", "::", "\x1b[", " ", "bearer "],
)
def test_long_texts_are_sanitized_in_linear_time(repeated):
    start = time.process_time()
    text = repeated * (200_000 // len(repeated))
    without_secrets(text), one_line(text), printable(text), printable(text, is_styled=True)

    assert time.process_time() - start < 5


def test_records_contain_no_secrets():
    url = "ray://u:hunter2@host:1"
    run = a_run(command=f"run --address {url}", runs=(), rounds=1)
    record = ThroughputRecord(gpu="a", machine="b", command=url, plans={}).with_failure(f"a: {url}")
    node = NodeFacts(name="a", failure=f"cannot reach {url}")

    assert "hunter2" not in run.to_json() + record.to_json() + node.to_json()


def test_tables_and_texts_are_printed_without_markup_and_control_characters():
    table = empty_table("[bold]title[/bold]", "a")
    table.add_row("[red]cell :smile:\x1b[2J\nnext")
    out = io.StringIO()

    TextConsole(file=out, width=80).print(table, Text("text\x1b[2J"), "string [x]\x1b[2J")

    assert "[bold]title[/bold]" in out.getvalue()
    assert r"[red]cell :smile:\u001b[2J\nnext" in out.getvalue()
    assert r"text\u001b[2J" in out.getvalue()
    assert r"string [x]\u001b[2J" in out.getvalue()


def test_the_text_of_a_table_in_a_notebook_is_returned_without_styles_and_not_displayed(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter's kernel does
    table = empty_table("Nodes", "Node")
    table.add_row("a")

    text = to_text(table)

    assert "Node" in text
    assert "\x1b" not in text
    assert capsys.readouterr().out == ""


def test_what_a_run_prints_in_a_notebook_is_plain_text_without_styles(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter's kernel does
    table = empty_table("Nodes", "Group")
    table.add_row("a")

    TextConsole().print(table)

    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed] == to_text(table).splitlines()
