"""How the commands of the benchmarks end, whatever they do."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tune_policies.benchmarks.environment import own_command as by_second_name
from typer.testing import CliRunner

from benchmarks.cli.commands import Commands
from benchmarks.environment import own_command
from tune_policies.errors import InvalidResourcesError, ResourcePolicyError


def ended_by(error):
    app = typer.Typer(cls=Commands)

    @app.callback()
    def all_commands():
        """One command alone would be no group."""

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


def test_a_module_of_this_project_that_is_missing_is_a_mistake_of_its_own():
    assert isinstance(ended_by(ModuleNotFoundError(name="benchmarks.nothing")).exception, ModuleNotFoundError)


def test_a_command_names_itself_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "run", "my steps:product"])

    assert own_command() == "python -m benchmarks run 'my steps:product'"
    assert by_second_name() == "python -m tune_policies.benchmarks run 'my steps:product'"


def test_a_reader_who_has_enough_sees_no_traceback():
    piped = f"{sys.executable} -m benchmarks run --help | head -c 0"

    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", piped],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "")
