"""``tune-policies exec`` runs a program like Python, and applies a policy to its Tune runs."""

import py_compile
import re
import shutil
import socket
import subprocess
import sys
import textwrap

import pytest
import typer

from tests.rest_parameters import further
from tune_policies.cli import execute
from tune_policies.trainers.start.tune_run import OPTIONS

EXEC = [sys.executable, "-m", "tune_policies", "exec", "policy.yaml"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "policy.yaml").write_text("kind: CpuPolicy\ncpus: 2\n")
    return tmp_path


def execute_in(folder, *arguments):
    return subprocess.run([*EXEC, *arguments], capture_output=True, text=True, timeout=200, cwd=folder, check=False)


def ended(command, folder, redirected):
    """Run a command in Bash with redirected streams.

    Returns its exit status, stdout, and stderr without addresses and reference counts.
    """
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {redirected}', "bash", *command],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        check=False,
        input="typed\n",
    )
    return done.returncode, done.stdout, re.sub("0x[0-9a-f]+|refcount : [0-9]+", "", done.stderr)


PROGRAMS = {
    "arguments and streams": "import sys; print(sys.argv, input()); print('problem', file=sys.stderr); sys.exit(3)",
    "a detached stdout": "import sys; print('before', flush=True); sys.stdout.detach()",
    "a closed stdout": "import sys; print('before'); sys.stdout.close()",
    "a detached stderr": "import sys; sys.stderr.detach(); print('after')",
    "an error after stderr was closed": "import sys; sys.stderr.close(); raise ValueError",
    "a replaced stdout": "import io, sys; sys.stdout = io.StringIO(); print('hidden')",
    "a stdout without a descriptor": "import os; print('lost'); os.close(1)",
    "sys.exit(None)": "import sys; sys.exit()",
    "sys.exit with a text": "import sys; sys.exit('a text')",
    "sys.exit with a large number": "import sys; sys.exit(2**40 + 258)",
    "os._exit": "import os; os._exit(7)",
    "an error with a cause": """
        def own():
            try:
                {}['key']
            except KeyError as error:
                raise LookupError('mine') from error
        own()
        """,
    "a syntax error": "print('not printed')\ndef (",
    "its own excepthook": """
        import sys, traceback
        def hook(kind, error, trace):
            print(kind, error, [frame.name for frame in traceback.extract_tb(trace)])
        assert sys.excepthook is sys.__excepthook__
        sys.excepthook = hook
        raise ValueError('mine')
        """,
    "Ctrl-C": "import os, ray, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "SIGTERM": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "exit functions": """
        import atexit, pickle, sys
        class Own: pass
        def at_exit():
            print(type(pickle.loads(pickle.dumps(Own()))), vars(sys.modules['__main__']) is globals())
            raise ValueError('at exit')
        atexit.register(at_exit)
        sys.exit(4)
        """,
    "a thread that outlives the main thread": """
        import sys, threading, time
        def outlive():
            threading.main_thread().join()
            print(vars(sys.modules['__main__']) is globals())
            raise ValueError('in a thread')
        threading.Thread(target=outlive).start()
        """,
    "spawned processes": """
        import multiprocessing
        def square(number):
            return number * number
        if __name__ == '__main__':
            with multiprocessing.get_context('spawn').Pool(1) as pool:
                print(pool.map(square, [2, 3]))
        else:
            print(__name__, flush=True)
        """,
    "output while the interpreter ends": """
        class Own:
            def __del__(self):
                print('deleted')
        kept = Own()
        kept.itself = kept
        """,
    "warnings": """
        import warnings
        warnings.warn('shown', DeprecationWarning)
        warnings.warn('hidden', ImportWarning)
        """,
    "its names": """
        import builtins, os, sys
        print(sorted(globals()), __name__, __file__, __package__, __spec__ and __spec__.origin, __doc__)
        print(type(__loader__), sys.argv, sys.path[0], __builtins__ is builtins, os.getcwd(), __annotations__)
        print(vars(sys.modules['__main__']) is globals())
        """,
}


@pytest.mark.parametrize(
    "name",
    [
        "arguments and streams",
        pytest.param("a detached stdout", marks=pytest.mark.ci),
        *further(*sorted(PROGRAMS.keys() - {"arguments and streams", "a detached stdout"})),
    ],
)
def test_a_program_ends_as_in_python(folder, name):
    (folder / "script.py").write_text(textwrap.dedent(PROGRAMS[name]).strip() + "\n")
    program = ["script.py", "--policy", "x", "--help"]

    assert ended([*EXEC, *program], folder, "") == ended([sys.executable, *program], folder, "")


WRITES_TO_STREAMS = """
import sys

with open(sys.argv[1], "w") as file:
    print(sys.stdin is None, sys.stdout is None, sys.stderr is None, file.fileno() < 3, file=file)
print("x" * 10**6)
"""


@pytest.mark.rest
@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", "| head -c 1"])
def test_a_program_has_the_redirected_streams_of_the_shell(folder, redirected):
    (folder / "script.py").write_text(WRITES_TO_STREAMS)

    by_exec = ended([*EXEC, "script.py", "of_exec"], folder, redirected)

    assert by_exec == ended([sys.executable, "script.py", "of_python"], folder, redirected)
    assert (folder / "of_exec").read_text() == (folder / "of_python").read_text()


@pytest.mark.rest
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["-m", "package", "--fast"], id="a package"),
        pytest.param(["-m", "missing"], id="a missing module"),
        pytest.param(["-m", "empty"], id="a package without a main module"),
        pytest.param(["-m", "package.failing"], id="a module with an error"),
        pytest.param(["package"], id="a folder"),
        pytest.param(["package.zip", "x"], id="a ZIP file"),
        pytest.param(["empty"], id="a folder without a main module"),
        pytest.param(["compiled.pyc"], id="a compiled script"),
        pytest.param(["link.py"], id="a link to a script in another folder"),
    ],
)
def test_every_kind_of_program_has_the_same_names_and_paths_as_in_python(folder, program):
    for name in ("package", "empty"):
        (folder / name).mkdir()
    for name in ("__main__", "module"):
        (folder / "package" / f"{name}.py").write_text(textwrap.dedent(PROGRAMS["its names"]))
    (folder / "package" / "failing.py").write_text("import sys\nsys.exit(1 / 0)\n")
    (folder / "link.py").symlink_to(folder / "package" / "module.py")
    py_compile.compile(folder / "package" / "module.py", folder / "compiled.pyc")
    shutil.make_archive(folder / "package", "zip", folder / "package")

    assert ended([*EXEC, *program], folder, "") == ended([sys.executable, *program], folder, "")


def test_a_run_fails_immediately_if_the_cluster_in_ray_address_is_gone(folder, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    (folder / "script.py").write_text("from ray import tune\n\ntune.run(lambda config: {'loss': 1})\n")

    done = execute_in(folder, "script.py")

    assert done.returncode == 1
    assert f"ProbeError: no Ray cluster responds at '{address}'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a program is missing"),
        (["missing.py"], "program 'missing.py' does not exist"),
        (["-m"], "-m requires the name of a module"),
    ],
)
def test_a_missing_program_is_an_error(folder, arguments, message):
    done = execute_in(folder, *arguments)

    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--falls-back"], "falls_back=True requires a policy with a second choice"),
        (["--replan-interval-s", "0"], "replan_interval_s must be"),
        (["--on-unenforced-limit", "ignore"], "on_unenforced_limit"),
        (["--pages", "pages"], "--pages requires --audit"),
        (["--audit", "--may-move"], "--audit applies no policy"),
    ],
)
def test_an_invalid_option_is_an_error_before_the_program_starts(folder, option, message):
    (folder / "script.py").write_text("print('started')")

    done = subprocess.run(
        [*EXEC[:-1], *option, "policy.yaml", "script.py"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


COMPLETION = {"install_completion", "show_completion"}


def test_exec_has_an_option_for_each_option_of_a_policy_scheduler():
    names = {parameter.name for parameter in typer.main.get_command(execute.app).params}

    assert names >= OPTIONS >= names - {"policy", "program", "audit", "pages", *COMPLETION}


TUNE_SCRIPT = """
import asyncio
import functools
import threading

import ray
from ray import tune

run = functools.partial(tune.run, lambda config: {"loss": 1}, storage_path=".", verbose=0)


def slots():
    found.append([trial.last_result["slot"] for trial in run().trials])


async def in_thread_pool():
    await asyncio.get_running_loop().run_in_executor(None, slots)


found = []
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
slots()
thread = threading.Thread(target=slots)
thread.start()
thread.join()
asyncio.run(in_thread_pool())
print(found)
"""


@pytest.mark.rest
def test_the_policy_applies_to_the_tune_runs_of_a_program_in_all_threads(folder):
    (folder / "script.py").write_text(TUNE_SCRIPT.replace('"."', repr(str(folder))))

    done = execute_in(folder, "script.py")

    assert done.returncode == 0, done.stderr
    assert str([["2 CPUs"]] * 3) in done.stdout
    assert done.stdout.startswith("2 trials at once, limited by CPU\n  each trial: 2 CPUs\n")


@pytest.mark.rest
def test_an_audit_runs_the_program_without_a_policy_and_reports_its_runs(folder):
    script = TUNE_SCRIPT.replace('"."', repr(str(folder))).replace('last_result["slot"]', 'last_result.get("slot")')
    (folder / "script.py").write_text(script)

    done = subprocess.run(
        [*EXEC[:-1], "--audit", "script.py"], capture_output=True, text=True, timeout=200, cwd=folder, check=False
    )

    assert done.returncode == 0, done.stderr
    assert str([[None]] * 3) in done.stdout
    assert done.stdout.count("Audit of the run ") == 3
