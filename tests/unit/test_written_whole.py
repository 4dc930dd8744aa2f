"""Files are written atomically, and existing files are not lost."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.run_sets import a_run_set
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set
from tune_policies.files.writing import BusyFileError, check_new, locked, replace_file, write_new
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, RunUsage, TrialGpuMemory
from tune_policies.trainers.usage.usage_pictures import plot_usage

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_a_new_file_has_the_default_mode(tmp_path):
    (tmp_path / "other").touch()

    write_new(tmp_path / "new", "text")

    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert names(tmp_path) == ["new", "other"]


def there(path):
    path.write_text("mine")


def link_to_nowhere(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [there, link_to_nowhere], ids=lambda make: make.__name__)
@pytest.mark.parametrize("write", [lambda path: write_new(path, "text"), check_new], ids=["write_new", "check_new"])
def test_an_existing_file_is_only_replaced_with_force(make, write, tmp_path):
    path = tmp_path / "output"
    make(path)
    before = path.lstat()

    with pytest.raises(InvalidResourcesError, match=r"output already exists.*pass --force"):
        write(path)

    assert (path.lstat().st_ino, names(tmp_path)) == (before.st_ino, ["output"])


def test_a_file_that_another_process_creates_in_the_meantime_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "output"
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (path.write_text("theirs"), sync(number)))

    with pytest.raises(InvalidResourcesError, match="already exists"):
        write_new(path, "text")

    assert (path.read_text(), names(tmp_path)) == ("theirs", ["output"])


PAGE = '<!DOCTYPE html>\n<html lang="en">\n<meta name="generator" content="tune-policies">\n'
SVG = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
DRAWN = f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE svg PUBLIC "a"\n  "b">\n{SVG}'
PNG = b"\x89PNG\r\n\x1a\n"
CLUSTER = "# Written by tune-policies: a Ray cluster for {} trials.\nkind: RayCluster\n"
RECORD = '{{"measured_at": "{}", "workloads": []}}'
CSV = "workload,size\nmlp,{}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", SVG),
        (f"{PAGE}<p>a", f"{PAGE}<p>b"),
        (SVG, DRAWN),
        (PNG + b"a", PNG + b"b"),
        (CLUSTER.format(1), CLUSTER.format(20)),
        (RECORD.format("a"), RECORD.format("b")),
        (CSV.format(1), CSV.format(2)),
    ],
    ids=["empty", "page", "SVG", "PNG", "cluster", "record", "CSV"],
)
def test_force_replaces_a_file_of_the_same_kind(old, new, tmp_path):
    (tmp_path / "output").write_bytes(old if isinstance(old, bytes) else old.encode())

    write_new(tmp_path / "output", new, force=True)

    assert (tmp_path / "output").read_bytes() == (new if isinstance(new, bytes) else new.encode())


@pytest.mark.parametrize(
    "old",
    [
        "mine",
        "<!DOCTYPE html>\n<title>a page of mine</title>",
        '{"kind": "CpuPolicy"}',
        '{"loss": 1}\n{"loss": 2}\n',
        "kind: CpuPolicy\n",
        "a,b\n1,2\n",
        b"\xff\xfe\0",
    ],
    ids=["text", "page", "policy", "results", "YAML", "CSV", "bytes"],
)
@pytest.mark.parametrize(
    "new", [PAGE, SVG, PNG, CLUSTER, RECORD.format("a"), CSV], ids=["page", "SVG", "PNG", "cluster", "record", "CSV"]
)
def test_force_does_not_replace_a_file_of_another_kind(old, new, tmp_path):
    content = old if isinstance(old, bytes) else old.encode()
    (tmp_path / "output").write_bytes(content)

    with pytest.raises(InvalidResourcesError, match="output is another kind of file, but --force only replaces"):
        write_new(tmp_path / "output", new, force=True)
    assert (tmp_path / "output").read_bytes() == content


@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
def test_an_input_is_not_replaced_through_a_link(link, tmp_path):
    (tmp_path / "input").write_text(SVG)
    link(tmp_path / "output", tmp_path / "input")

    with pytest.raises(InvalidResourcesError, match=r"output is an input of this command\. Choose another"):
        check_new(tmp_path / "output", force=True, inputs=(None, tmp_path / "none", tmp_path / "input"))


@pytest.mark.parametrize(
    ("name", "message"),
    [(".", "it is a folder"), ("not/there", "its folder does not exist"), ("x" * 300, "too long")],
    ids=["a folder", "a missing folder", "a long name"],
)
def test_a_path_that_cannot_be_written_is_rejected_in_advance(name, message, tmp_path):
    with pytest.raises(InvalidResourcesError, match=message):
        check_new(tmp_path / name, force=True)


def test_a_replaced_file_keeps_its_mode_and_attributes(tmp_path):
    path = tmp_path / "file"
    path.touch(mode=0o640)
    os.setxattr(path, "user.note", b"mine")

    replace_file(path, "text")

    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode), os.getxattr(path, "user.note")) == (
        "text",
        0o640,
        b"mine",
    )


@needs_root
def test_a_replaced_file_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.touch()
    os.chown(path, 1234, 2345)

    replace_file(path, "text")

    assert (path.read_text(), path.stat().st_uid, path.stat().st_gid) == ("text", 1234, 2345)


AS_NOBODY = """
import os, sys
from pathlib import Path
from tune_policies.files.writing import replace_file
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
replace_file(Path(sys.argv[1]), "text")
"""


@needs_root
def test_a_file_whose_owner_cannot_be_kept_is_not_replaced():
    with TemporaryDirectory() as name:  # other users cannot enter pytest's folders
        folder = Path(name)
        folder.chmod(0o777)
        path = folder / "file"
        path.write_text("theirs")
        path.chmod(0o666)

        done = subprocess.run([sys.executable, "-c", AS_NOBODY, path], capture_output=True, text=True, check=False)

        assert "its owner or group would change" in done.stderr
        assert (path.read_text(), names(folder)) == ("theirs", ["file"])


@needs_root
def test_a_link_of_another_user_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.chown(tmp_path / "link", 1234, 1234, follow_symlinks=False)

    with pytest.raises(InvalidResourcesError, match="it is a link that belongs to another user"):
        replace_file(tmp_path / "link", "text")

    assert (tmp_path / "precious").read_text() == "mine"


def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    path.chmod(0o444)

    with pytest.raises(InvalidResourcesError, match="it is read-only"):
        replace_file(path, "text")

    assert (path.read_text(), names(tmp_path)) == ("mine", ["file"])


def test_a_private_file_is_accessible_only_to_its_owner(tmp_path):
    (tmp_path / "open").touch(mode=0o666)
    for name in ("open", "new"):
        replace_file(tmp_path / name, "text", is_private=True)

    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


def test_a_private_file_is_private_while_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch(mode=0o600)
    modes = []
    write = os.fdopen

    def look(number, *rest):
        modes.append(stat.S_IMODE(os.fstat(number).st_mode))
        return write(number, *rest)

    monkeypatch.setattr(os, "fdopen", look)
    replace_file(tmp_path / "file", "text")

    assert modes == [0o600]


BROKEN = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: ray}]}}}
  workerGroupSpecs:
  - groupName: small
    replicas: 9
    maxReplicas: 3
    template: {spec: {containers: [{name: ray}]}}
"""


USED = GpuMemoryUsage(gpus=0.5, share_bytes=2**30, peak_reserved_bytes=2**29)


def test_a_plot_replaces_a_file_only_with_force(tmp_path):
    path = tmp_path / "package.svg"
    path.write_text("<svg>mine</svg>")
    run = RunUsage(trials=(TrialGpuMemory(name="one", usage=USED),))

    with pytest.raises(InvalidResourcesError, match="already exists"):
        plot_usage(run, path)
    assert path.read_text() == "<svg>mine</svg>"
    plot_usage(run, path, force=True)
    assert "mine" not in path.read_text()


HOLDS = """
import sys
from pathlib import Path
from tune_policies.files.writing import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_only_one_process_at_a_time_can_acquire_a_lock(tmp_path):
    path = tmp_path / "run.json"
    command = [sys.executable, "-c", HOLDS, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyFileError, match=r"another process is writing .*run\.json"), locked(path):
            pass
        other.kill()

    with locked(path):
        assert names(tmp_path) == [".run.json.lock"]
    assert names(tmp_path) == []


@pytest.mark.parametrize("character", ["a", "é", "文", "😀"], ids=["1 byte", "2 bytes", "3 bytes", "4 bytes"])
def test_a_file_with_the_longest_possible_name_can_be_locked(tmp_path, character):
    name = character * (255 // len(character.encode()))

    with locked(tmp_path / name):
        (lock,) = names(tmp_path)

    assert 196 < len(lock.encode()) - len("..lock") <= 200


def test_a_lock_does_not_follow_links(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".run.json.lock").symlink_to(tmp_path / "precious")

    with pytest.raises(InvalidResourcesError, match=r"run\.json cannot be locked"), locked(tmp_path / "run.json"):
        pass

    assert (tmp_path / "precious").read_text() == "mine"


ADDS = """
import sys
from pathlib import Path
from tune_policies.files.writing import locked
from tune_policies.files.writing import replace_file
path = Path(sys.argv[1])
for _ in range(20):
    with locked(path, timeout_s=60):
        replace_file(path, path.read_text() + "x")
"""


def test_processes_that_append_under_a_lock_lose_no_data(tmp_path):
    path = tmp_path / "record"
    path.write_text("")

    others = [subprocess.Popen([sys.executable, "-c", ADDS, path]) for _ in range(3)]

    assert [other.wait() for other in others] == [0, 0, 0]
    assert (len(path.read_text()), names(tmp_path)) == (60, ["record"])


def test_a_run_set_that_another_process_writes_is_not_resumed(tmp_path):
    from tune_policies.benchmarks.measuring.rounds import Session, measure_to_file

    path = tmp_path / "run.json"
    write_run_set(a_run_set(sizes=(16,)), path)
    before = read_run_set(path)
    session = Session(settings=None, command="run", output=path)

    with locked(path), pytest.raises(BusyFileError, match="another process is writing"):
        measure_to_file(session)

    assert read_run_set(path) == before


def test_a_device_is_not_replaced_by_a_file():
    with pytest.raises(InvalidResourcesError, match="/dev/null cannot be written: it is not a regular file"):
        replace_file(Path("/dev/null"), "text")
