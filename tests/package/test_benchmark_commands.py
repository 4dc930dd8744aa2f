"""Tests of the exit status and errors of all benchmark commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tune_policies.benchmarks.cli import Commands
from tune_policies.cli.main import app as tune_policies_app
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError

ROOT = Path(__file__).parents[2]


def ended_by(error):
    app = typer.Typer(cls=Commands)

    @app.callback()
    def all_commands():
        """Make the app a group. With a single command, Typer would not create a group."""

    @app.command()
    def fail():
        raise error

    return CliRunner().invoke(app, ["fail"])


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InvalidResourcesError("no such size"), 2, "error: no such size\n"),
        (ResourcePolicyError("no answer"), 1, "error: no answer\n"),
        (
            ModuleNotFoundError(name="matplotlib.figure"),
            2,
            "error: fail needs matplotlib: pip install 'tune-policies[bench]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["wrong usage", "what cannot be met", "a package that is missing", "Ctrl-C"],
)
def test_a_command_ends_with_a_message_and_its_status(error, status, told):
    done = ended_by(error)

    assert (done.exit_code, done.stdout, done.stderr) == (status, "", told)


def test_a_command_is_recorded_as_typed(tmp_path):
    """The user can copy the recorded command and run it again, because its arguments are quoted."""
    (tmp_path / "named.py").write_text(
        "from tune_policies.benchmarks.record.machine import own_command\nprint(own_command())\n"
    )
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import named\n")

    def said(*program):
        command = [sys.executable, *program, "run", "my steps:product"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert said("-m", "pack") == "python -m pack run 'my steps:product'\n"
    assert said("named.py") == "named.py run 'my steps:product'\n"


@pytest.mark.parametrize(
    "program", [["tune_policies", "bench"], ["tune_policies.benchmarks"], ["benchmarks"]], ids=" ".join
)
def test_the_commands_are_the_same_from_every_entry_point(program):
    """The entry points are ``tune-policies bench``, and ``python -m`` with the long or, in a checkout, short name."""
    command = [sys.executable, "-m", *program, "show", "missing.json"]

    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot read the run set missing.json: No such file or directory;")


def test_tune_policies_lists_the_benchmarks_among_its_commands():
    done = CliRunner().invoke(tune_policies_app, ["--help"])

    assert re.search(r"bench\s+Compare GPUs with CPUs", done.stdout)
