"""Child processes do not run modules or programs from the working directory."""

import ast
import socket
import subprocess
from pathlib import Path

import pytest

from tune_policies.files.child_python import child_python, program_path, reason_of_exit
from tune_policies.probe.doctor import cluster_reader
from tune_policies.ray_compat import connection
from tune_policies.trainers.gpu_memory.mps import query_mps_daemon
from tune_policies.values.errors import ProbeError

pytestmark = pytest.mark.ci

CRASH = child_python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
CRASHED = "the child process crashed with signal 11 (Segmentation fault)"
ROOT = Path(__file__).parents[2]
STARTS = "tune_policies/files/child_python.py"


@pytest.mark.parametrize("arguments", [("-c", "import random, json"), ("-m", "json.tool", "--help")])
def test_a_child_imports_no_module_from_the_working_directory(tmp_path, arguments):
    for name in ("random", "json", "argparse"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n")

    done = subprocess.run(child_python(*arguments), cwd=tmp_path, capture_output=True, check=False)

    assert (done.returncode, list(tmp_path.glob("ran-*"))) == (0, [])


@pytest.mark.parametrize("package", ["tune_policies", "trainers", "benchmarks"])
def test_every_python_child_is_started_with_child_python(package):
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }

    assert found <= {STARTS}


@pytest.mark.parametrize(
    ("exit_code", "stderr", "reason"),
    [
        pytest.param(1, "Traceback\n  ValueError: 1\n\n", "ValueError: 1", id="the last line"),
        pytest.param(3, "\n", "the child process ended with exit code 3 and printed nothing", id="no line"),
        pytest.param(-11, "a warning", CRASHED, id="a signal"),
    ],
)
def test_the_reason_of_a_failed_child_is_its_signal_or_the_last_line(exit_code, stderr, reason):
    assert reason_of_exit(exit_code, stderr) == reason


def test_a_driver_that_crashes_is_a_finding_of_the_doctor(monkeypatch):
    monkeypatch.setattr(cluster_reader, "find_ray", lambda address: None)
    monkeypatch.setattr(cluster_reader, "child_python", lambda *arguments: CRASH)

    (node,) = cluster_reader.examine().nodes

    assert node.failure == CRASHED


def test_a_client_of_ray_that_crashes_is_reported(monkeypatch):
    monkeypatch.setattr(connection, "child_python", lambda *arguments: CRASH)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        with pytest.raises(ProbeError, match=r"refuses the connection: the child process crashed with signal 11"):
            connection._check_reachable(address, 30.0, "")


def planted(folder, name, text="touch ran"):
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("path", ["", ".", "bin:", ":/nowhere", "./bin:."])
def test_no_program_from_the_working_directory_is_started(path, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("nvidia-cuda-mps-control", "bin/nvidia-cuda-mps-control"):
        planted(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)

    assert query_mps_daemon() == "nvidia-cuda-mps-control is not installed"
    assert list(tmp_path.rglob("ran")) == []


def test_a_program_in_an_absolute_folder_of_path_is_found(tmp_path, monkeypatch):
    program = planted(tmp_path, "tool")
    monkeypatch.setenv("PATH", f".:{tmp_path}")

    assert program_path("tool") == str(program)


def test_every_program_is_started_by_an_absolute_path():
    """A call must not use a shell or a literal program name, because the name would be looked up in ``PATH``."""
    found = [
        ast.unparse(node)
        for package in ("tune_policies", "trainers", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func).startswith(("subprocess.", "os.exec", "os.spawn", "os.popen", "os.system")))
        and (any(each.arg == "shell" for each in node.keywords) or starts_a_name(node))
    ]

    assert found == []


def starts_a_name(call):
    first = call.args[0] if call.args else None
    first = first.elts[0] if isinstance(first, ast.List) and first.elts else first
    return isinstance(first, ast.Constant) and not Path(first.value).is_absolute()
