"""The file of a run set: what is written is read again, and what is none of ours is said so."""

import json

import jsonschema
import pytest

from tests.run_sets import a_run_set
from tune_policies.benchmarks.record import run_set_file as file_module
from tune_policies.benchmarks.record.run_set import RunSet
from tune_policies.benchmarks.record.run_set_file import (
    KEY,
    SCHEMA_FILE,
    read_run_set,
    run_set_schema,
    schema_text,
    write_run_set,
)
from tune_policies.benchmarks.record.summary import summarize
from tune_policies.values.errors import InvalidResourcesError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.json"


@pytest.fixture(scope="module")
def run_set():
    return a_run_set(workloads=("mlp",), sizes=(16, 256), num_rounds=2)


def written(path, run_set, **changes):
    """The file of a run set, of which some fields were changed by hand."""
    write_run_set(run_set, path)
    data = json.loads(path.read_text())
    data[KEY].update(changes)
    path.write_text(json.dumps(data))
    return path


def test_what_is_written_is_read_again(path, run_set):
    write_run_set(run_set, path)

    assert read_run_set(path) == run_set


def test_memory_of_the_largest_devices_is_kept_too(path):
    large = a_run_set(sizes=(2**24,), num_rounds=1)  # which has 2 ** 16 bytes on the GPU for each unit of its size

    write_run_set(large, path)

    assert max(run.peak_gpu_bytes or 0 for run in read_run_set(path).runs) > 1024**4
    assert max(each.peak_gpu_bytes or 0 for each in summarize(large)) > 1024**4


def test_a_run_that_measured_nothing_is_kept_too(path):
    nothing = a_run_set(num_rounds=1).model_copy(update={"runs": ()})

    write_run_set(nothing, path)

    assert read_run_set(path) == nothing


def test_the_shipped_schema_is_that_of_the_values():
    assert SCHEMA_FILE.read_text() == schema_text(), "renew it: python -m tune_policies.benchmarks.record.run_set_file"


def test_a_written_run_set_keeps_to_the_shipped_schema(path, run_set):
    write_run_set(run_set, path)
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    jsonschema.validate(json.loads(path.read_text())[KEY], schema)


@pytest.mark.parametrize(
    "change",
    [{"schema_version": 2}, {"num_rounds": 0}, {"seed": "one"}, {"nonsense": 1}, {"runs": [{"round": 0}]}],
    ids=lambda change: next(iter(change)),
)
def test_the_schema_refuses_what_the_values_refuse(change, run_set):
    data = {**run_set.model_dump(mode="json"), **change}

    with pytest.raises(InvalidResourcesError):
        RunSet.from_dict(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, run_set_schema())


def test_the_schema_has_the_version_of_the_values():
    assert run_set_schema()["$id"].endswith(f":{run_set_schema()['properties']['schema_version']['const']}")


def test_an_older_run_set_is_replaced(path, run_set):
    write_run_set(run_set, path)
    more = a_run_set(sizes=(16,), num_rounds=3)

    write_run_set(more, path)

    assert read_run_set(path) == more


@pytest.mark.parametrize("content", ["my notes", '{"version": "1.0", "benchmarks": []}'], ids=["text", "pyperf's"])
def test_a_file_of_another_kind_is_not_overwritten(content, path, run_set):
    path.write_text(content)

    with pytest.raises(InvalidResourcesError, match=r"run\.json exists and is not a run set.*: name another file"):
        write_run_set(run_set, path)

    assert path.read_text() == content


def test_a_run_set_that_was_written_anew_by_another_program_is_still_one(path, run_set):
    write_run_set(run_set, path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True))

    write_run_set(run_set, path)

    assert read_run_set(path) == run_set


def test_an_empty_file_is_in_nobodys_way(path, run_set):
    path.touch()

    write_run_set(run_set, path)

    assert read_run_set(path) == run_set


def test_nothing_but_the_file_is_left_in_its_folder(path, run_set):
    write_run_set(run_set, path)

    assert list(path.parent.iterdir()) == [path]


def test_what_was_there_stays_where_writing_fails(path, run_set, monkeypatch):
    write_run_set(run_set, path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InvalidResourcesError, match=r"cannot be written: No space left on device"):
        write_run_set(a_run_set(sizes=(16,), num_rounds=1), path)

    assert read_run_set(path) == run_set
    assert list(path.parent.iterdir()) == [path]


def test_a_link_leads_to_the_file_that_is_written(path, run_set):
    link = path.with_name("link.json")
    link.symlink_to(path)

    write_run_set(run_set, link)

    assert link.is_symlink()
    assert read_run_set(path) == run_set


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not/there.json", "No such file or directory. Name a file of your own, in a folder that exists"),
        (".", "it is not a regular file. Name a file"),
        ("run.json.gz", "a run set is not compressed"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null (byte|character)"),  # in the words of this Python
    ],
    ids=["no folder", "a folder", "compressed", "a long name", "no name"],
)
def test_a_path_that_cannot_be_written_is_explained(name, message, tmp_path, run_set):
    with pytest.raises(InvalidResourcesError, match=message):
        write_run_set(run_set, tmp_path / name)


def test_a_device_is_not_replaced_by_a_file(run_set):
    from pathlib import Path

    with pytest.raises(InvalidResourcesError, match="/dev/null cannot be written: it is not a regular file"):
        write_run_set(run_set, Path("/dev/null"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"run\.json is cut off \(EOF .*line 1"),
        (b"\x89PNG\r\n", r"is not JSON \(expected value at line 1 column 1\)"),
        (b"\xff\xfe[", "is not JSON"),
        (b"\x1f\x8b\x08", "is compressed: unpack it with gunzip"),
        (b"[" * 100_000, "is not JSON .recursion limit exceeded"),
        (b"[NaN]", "is not JSON"),
        (b"[1, 2]", "is JSON, but not a run set: it has no 'tune_policies' at its top"),
        (b'{"gpu": "A100"}', "is JSON, but not a run set"),
        (b'{"version": "1.0", "benchmarks": []}', r"is a file of pyperf alone.*`python -m pyperf show`"),
        (b'{"tune_policies": 3}', "RunSet must be a mapping of field names to values, got a value of type int"),
        (b'{"tune_policies": {"schema_version": 2}}', "of version 2, and this tune-policies reads version 1"),
        (b'{"tune_policies": {}}', "RunSet needs 'command', which is missing"),
    ],
)
def test_a_file_that_is_no_run_set_is_said_what_it_is(content, message, path):
    path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=message):
        read_run_set(path)


def test_a_file_that_was_cut_off_says_where(path, run_set):
    write_run_set(run_set, path)
    path.write_bytes(path.read_bytes()[:5000])

    with pytest.raises(InvalidResourcesError, match=r"cut off \(EOF while parsing .* column 5000\): copy it again"):
        read_run_set(path)


def test_a_wrong_field_is_named_with_its_place(path, run_set):
    runs = run_set.model_dump(mode="json")["runs"]
    runs[1]["blocks"][2]["seconds"] = -1

    with pytest.raises(InvalidResourcesError, match=r"runs\.1: blocks\.2: seconds: .* or equal to 0\.0+1, got -1"):
        read_run_set(written(path, run_set, runs=runs))


def test_of_many_wrong_fields_three_are_named(path, run_set):
    wrong = dict.fromkeys(("seed", "num_rounds", "created_at", "environment"), "?")

    with pytest.raises(InvalidResourcesError) as caught:
        read_run_set(written(path, run_set, **wrong))

    assert str(caught.value).count(", got ") == 3
    assert str(caught.value).endswith("and more")


def test_a_name_that_would_break_lines_is_refused(path, run_set):
    runs = run_set.model_dump(mode="json")["runs"]
    runs[0]["arm"]["workload"] = "mlp\x1b[2J"

    with pytest.raises(InvalidResourcesError, match=r"runs\.0: arm: workload: a name is one line of printed text"):
        read_run_set(written(path, run_set, runs=runs))


def test_a_file_that_is_not_there_is_said_so(path):
    with pytest.raises(InvalidResourcesError, match=r"cannot read the run set .*run\.json: No such file.*bench run"):
        read_run_set(path)


def test_a_folder_is_no_run_set(tmp_path):
    with pytest.raises(InvalidResourcesError, match="it is a folder: name a file in it"):
        read_run_set(tmp_path)


def test_a_huge_file_is_not_read(path, run_set, monkeypatch):
    write_run_set(run_set, path)
    monkeypatch.setattr(file_module, "MAX_RECORD_BYTES", 1024)

    with pytest.raises(InvalidResourcesError, match=r"run\.json: more than 1,024 bytes"):
        read_run_set(path)
