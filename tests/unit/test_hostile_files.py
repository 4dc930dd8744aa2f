"""Whatever file is named, every loader ends soon, with an error that names it."""

import json
import os

import pytest

from tests.evidence.verdicts.proof import ProofRecord
from tune_policies import CpuPolicy, InvalidResourcesError, load_catalog, load_decision, load_policy
from tune_policies.benchmarks.decide.prices import load_prices
from tune_policies.benchmarks.record.packing_record import read_throughput
from tune_policies.benchmarks.record.run_set_file import read_run_set
from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.reading import UnreadableFileError, read_bytes, read_text, read_value
from tune_policies.files.yaml_documents import DocumentError
from tune_policies.kuberay.lint.crd import load_crds
from tune_policies.kuberay.lint.linting import lint_file
from tune_policies.kuberay.reading.load_cluster import find_cluster
from tune_policies.policies.policy_file import load_capacity
from tune_policies.values.value import Value

pytestmark = pytest.mark.timeout(60)  # where nothing bounds a loader it takes minutes, or for ever


def load_profile(path):
    return load_policy(beside(path, f"{{kind: GpuMemoryPolicy, profile: {path.name}}}"))


def load_decided(path):
    return load_policy(beside(path, f"{{kind: BenchmarkedPolicy, decision: {path.name}}}"))


def beside(path, text):
    policy = path.with_name("policy-beside.yaml")
    policy.write_text(text)
    return policy


def lint(path):
    (finding,) = lint_file(path)
    raise InvalidResourcesError(f"{finding.source}: {finding.message}")


def read_proof(path):
    return read_value(path, ProofRecord, "record of a proof")


LOADERS = {
    "policy": load_policy,
    "profile of a policy": load_profile,
    "decision of a policy": load_decided,
    "decision": load_decision,
    "catalogue": load_catalog,
    "capacity": load_capacity,
    "prices": load_prices,
    "run set": read_run_set,
    "record of throughput": read_throughput,
    "record of a proof": read_proof,
    "manifest": find_cluster,
    "manifest, by lint": lint,
    "definitions": load_crds,
}


def device(path):
    path.symlink_to("/dev/zero")


def pipe(path):
    os.mkfifo(path)


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def folder(path):
    path.mkdir()


def noise(path):
    path.write_bytes(bytes(range(256)) * 9)


def merges(path):
    lines = ["k0: &k0 {a0: 1, b0: 2}", *(f"k{n}: &k{n} {{<<: [*k{n - 1}, *k{n - 1}], a{n}: 1}}" for n in range(1, 40))]
    path.write_text("\n".join(lines))


def aliases(path):
    lines = ["k0: &k0 [a, b]", *(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}, *k{n - 1}]" for n in range(1, 40))]
    path.write_text("\n".join(lines))


def deep_json(path):
    path.write_text('{"a":' * 900 + "1" + "}" * 900)


def deep_yaml(path):
    path.write_text("- " * 5000 + "a")


def many_keys(path):
    path.write_text("".join(f"key{number}: {number}\n" for number in range(30_000)))


def twice(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": 1, "cpus": 8}')


def twice_below(path):
    path.write_text('{"kind": "CappedPolicy", "inner": {"kind": "CpuPolicy", "cpus": 1, "cpus": 8}}')


def no_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": NaN}')


def too_large_a_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": 1e999}')


def too_long_a_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": ' + "9" * 100_000 + "}")


def long_text(path):
    path.write_text('"' + "a" * 9_000_000 + '"')


def long_key(path):
    key = "a" * 2_000_000
    path.write_text(f"{key}: 1\n{key}: 2")


FORMS = (
    *(device, pipe, huge, folder, noise, merges, aliases, deep_json, deep_yaml, many_keys),
    *(twice, twice_below, no_number, too_large_a_number, too_long_a_number),
    *(long_text, long_key),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS.keys())
def test_every_loader_refuses_it_by_its_name(load, form, tmp_path):
    path = tmp_path / "hostile.yaml"
    form(path)

    with pytest.raises(InvalidResourcesError, match=r"hostile\.yaml") as caught:
        load(path)

    assert len(str(caught.value)) < 20_000


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
    with pytest.raises(UnreadableFileError, match="no ordinary file"):
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


def test_of_many_mistakes_a_hundred_are_told():
    class Empty(Value):
        pass

    with pytest.raises(InvalidResourcesError) as caught:
        Empty.from_dict({f"key{number}": number for number in range(1000)})

    assert str(caught.value).splitlines()[-1] == "and 900 more mistakes"
