"""Groups of commands that report an error as a message on stderr and an exit status, without a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, ClassVar, Final, NoReturn

import typer
from typer.core import TyperGroup

from tune_policies.files.terminal import drop_stdout, guarded_streams
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.sanitize import indented, shortened, without_secrets

HELP: Final = {"help_option_names": ["-h", "--help"]}
"""The Click settings of a command group. The commands in the group inherit these settings."""

_UsageError: Final[Any] = typer.BadParameter.mro()[1]
"""Click's base class of usage errors. Some versions of Typer contain a copy of Click and do not export this class."""


@contextmanager
def _short_usage_errors() -> Iterator[None]:
    """Shorten the message of a usage error before Typer prints it."""
    try:
        yield
    except _UsageError as error:
        error.message = shortened(error.message.removeprefix("Value error, "))  # pydantic's prefix
        raise


_CLOSED_PIPE: Final = 128 + 13
"""The exit status if the reader closed stdout, as shells report it for a program that SIGPIPE (13) ended."""


class GuardedCommands(TyperGroup):
    """A group of commands that print sanitized text, and error messages instead of tracebacks.

    The exit status is 1 if the request is infeasible, 2 if the usage is invalid or the result cannot be written, and
    141 if the reader closed stdout. A write error has no status 1, because commands also exit with 1 if they find
    problems.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the options of the group, and return its context."""
        with _short_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of the command, and run it."""
        try:
            with _short_usage_errors():
                return super().invoke(ctx)
        except BrokenPipeError:  # ``main`` of Click would exit with status 1
            _end_at_closed_pipe()

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command, and exit."""
        with guarded_streams():
            stdout = sys.stdout
            try:
                try:
                    return super().main(*arguments, **options)
                finally:
                    stdout.flush()  # raises write errors here, and not when Python exits
            except InvalidResourcesError as error:
                fail(error, 2)
            except ResourcePolicyError as error:
                fail(error, 1)
            except BrokenPipeError:
                _end_at_closed_pipe()
            except OSError as error:
                if error.filename is not None:  # errors of streams have no file name
                    fail(f"{error.filename}: {error.strerror}. Pass a file or folder that can be opened.", 2)
                drop_stdout()
                fail(_write_failure(error), 2)


def _end_at_closed_pipe() -> NoReturn:
    drop_stdout()
    sys.exit(_CLOSED_PIPE)


class ImportedCommands(GuardedCommands):
    """A group of commands that imports only the module of the command that is run.

    Attributes:
        modules: The module of each command, by command name. The module's ``app`` contains the command.
    """

    modules: ClassVar[dict[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        """Create the group."""
        super().__init__(**options)
        self.commands: Any = dict.fromkeys(self.modules)  # Typer lists and suggests these names

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """Import a command and return it, or return ``None`` if its name is unknown."""
        if cmd_name not in self.modules:
            return None
        found = typer.main.get_command(import_module(self.modules[cmd_name]).app)
        command = getattr(found, "commands", {}).get(cmd_name, found)
        command.name = cmd_name
        return command


def _write_failure(error: OSError) -> str:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is no shorter
    except OSError:
        return "the working folder was deleted. Change to an existing folder"
    return f"cannot write the result: {error}"


def fail(error: object, status: int) -> NoReturn:
    """Print an error message to stderr, and exit with ``status``."""
    with suppress(OSError):  # stderr may be closed
        print(f"error: {indented(without_secrets(str(error)))}", file=sys.stderr)
    sys.exit(status)
