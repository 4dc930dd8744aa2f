"""Tests that a run set is equal after writing and reading, and that other kinds of files are rejected."""

import json
from pathlib import Path

import pytest

from tests.run_sets import a_run_set
from tune_policies.benchmarks.record import run_set_file as file_module
from tune_policies.benchmarks.record.run_set_file import KEY, name_for_gpu, read_run_set, write_run_set
from tune_policies.values.errors import InvalidResourcesError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.json"


@pytest.fixture(scope="module")
def run_set():
    return a_run_set(workloads=("mlp",), sizes=(16, 256), num_rounds=2)


def changed(path, run_set, change):
    """Write the file of a run set, with ``change`` applied to its plain data."""
    write_run_set(run_set, path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(a_run_set(workloads=("mlp",), sizes=(16, 256), num_rounds=2), id="several sizes"),
        # The workload uses 2 ** 16 bytes of GPU memory for each unit of its size.
        pytest.param(a_run_set(sizes=(2**24,), num_rounds=1), id="the memory of the largest devices"),
        pytest.param(a_run_set(num_rounds=1).model_copy(update={"runs": ()}), id="nothing was measured"),
    ],
)
def test_a_written_run_set_can_be_read_and_no_other_file_remains(written, path):
    write_run_set(written, path)

    assert read_run_set(path) == written
    assert list(path.parent.iterdir()) == [path]


def as_earlier_versions_wrote(data):
    own = data[KEY]
    for each in (*own["runs"], *own["failures"]):
        each["arm"] = each.pop("configuration")
    for run in own["runs"]:
        run |= {"start_up_s": 0.5, "prepare_s": 0.1, "energy_j": None}
    own["settings"] = {"sizes": {"mlp": [16]}, "devices": ["cpu"], "max_steps": 100}
    for each in own["noise"]:
        each["cpu_mhz"] = 2500.0
    own["environment"] |= {"commit": "0123456789abcdef", "has_changes": True}
    data |= {"version": "1.0", "benchmarks": [], "metadata": {}}


def test_a_file_of_an_earlier_version_can_be_loaded(path, run_set):
    found = read_run_set(changed(path, run_set, as_earlier_versions_wrote))

    assert found.settings.sizes == {"mlp": (16,)}
    assert found.model_copy(update={"settings": None}) == run_set


@pytest.mark.parametrize("existing", ["nothing", "a run set", "an indented run set", "an empty file"])
def test_writing_replaces_a_run_set_or_an_empty_file(existing, path, run_set):
    if existing == "a run set":
        write_run_set(a_run_set(sizes=(16,), num_rounds=3), path)
    elif existing == "an indented run set":
        write_run_set(run_set, path)
        path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True))
    elif existing == "an empty file":
        path.touch()

    write_run_set(run_set, path)

    assert read_run_set(path) == run_set


@pytest.mark.parametrize("content", ["my notes", '{"version": "1.0", "benchmarks": []}'])
def test_a_file_of_another_kind_is_not_overwritten(content, path, run_set):
    path.write_text(content)

    with pytest.raises(InvalidResourcesError, match=r"run\.json exists and is not a run set.*\. Choose another file"):
        write_run_set(run_set, path)

    assert path.read_text() == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"run\.json is not a run set, because it is not valid JSON, or is truncated \(EOF .*line 1"),
        (b"\x89PNG\r\n", "is not valid JSON"),
        (b"\x1f\x8b\x08", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON.*recursion limit exceeded"),
        (b"[NaN]", "is not valid JSON"),
        (b"[1, 2]", "is JSON, but not a run set. It has no top-level key 'tune_policies'"),
        (b'{"version": "1.0", "benchmarks": []}', "is JSON, but not a run set"),
        (b'{"tune_policies": 3}', "RunSet must be a mapping of field names to values, got a value of type int"),
        (b'{"tune_policies": {"schema_version": 2}}', "of version 2, but the installed tune-policies reads version 1"),
        (b'{"tune_policies": {}}', "the required field 'command' of RunSet is missing"),
    ],
)
def test_a_file_without_a_run_set_is_refused_with_the_reason(content, message, path):
    path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=message):
        read_run_set(path)


def test_the_error_for_an_invalid_field_contains_its_path(path, run_set):
    def negative(data):
        data[KEY]["runs"][1]["blocks"][2]["seconds"] = -1

    def unprintable(data):
        data[KEY]["runs"][0]["configuration"]["workload"] = "mlp\x1b[2J"

    with pytest.raises(InvalidResourcesError, match=r"runs\.1\.blocks\.2\.seconds: .* or equal to 0\.0+1, got -1"):
        read_run_set(changed(path, run_set, negative))
    with pytest.raises(InvalidResourcesError, match=r"workload: a name must be one line of printable text"):
        read_run_set(changed(path, run_set, unprintable))


def test_at_most_three_invalid_fields_are_reported(path, run_set):
    wrong = dict.fromkeys(("seed", "num_rounds", "created_at", "environment"), "?")

    with pytest.raises(InvalidResourcesError) as caught:
        read_run_set(changed(path, run_set, lambda data: data[KEY].update(wrong)))

    assert str(caught.value).count(", got ") == 3
    assert str(caught.value).endswith("and more")


def test_the_error_for_a_missing_file_contains_the_command_that_writes_the_file(path):
    with pytest.raises(InvalidResourcesError, match=r"cannot read the run set .*run\.json: No such file.*bench run"):
        read_run_set(path)


def test_a_huge_file_is_not_read(path, run_set, monkeypatch):
    write_run_set(run_set, path)
    monkeypatch.setattr(file_module, "MAX_RECORD_BYTES", 1024)

    with pytest.raises(InvalidResourcesError, match=r"run\.json: it has more than 1,024 bytes"):
        read_run_set(path)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        pytest.param("cpu-small.json", "gpu-small.json", id="the word cpu is replaced"),
        pytest.param("results/cpu.json", "gpu.json", id="the file is in the working directory"),
        pytest.param("mine.json", "gpu-mine.json", id="another name gets a prefix"),
        pytest.param("run-20260101-120000.json", "gpu-run-20260101-120000.json", id="the default name"),
        pytest.param("mycpus.json", "gpu-mycpus.json", id="a part of a word is no device"),
        pytest.param("gpu-run.json", "gpu-run-2.json", id="the record already has the name"),
        pytest.param("cpu-taken.json", "gpu-taken-3.json", id="such files exist"),
        pytest.param(None, "gpu-run.json", id="no file"),
    ],
)
def test_the_record_on_a_gpu_gets_a_new_name_like_the_record_on_a_cpu(record, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for taken in ("gpu-taken.json", "gpu-taken-2.json"):
        (tmp_path / taken).touch()

    assert name_for_gpu(record and Path(record)) == name
