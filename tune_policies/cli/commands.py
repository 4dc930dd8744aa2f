"""How every command ends: what is wrong becomes a paragraph on stderr and an exit status, never a traceback."""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from typer.core import TyperGroup

from tune_policies.files.terminal import drop_stdout, guarded_streams
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.sanitize import indented, redacted


class GuardedCommands(TyperGroup):
    """Commands whose texts are plain, and whose errors are messages.

    Exit status: 1 the request cannot be met, or the reader went away; 2 wrong usage, or the result cannot be written:
    of some commands, 1 is an answer.
    """

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command that is named, and leave the process."""
        with guarded_streams():
            stdout = sys.stdout
            try:
                try:
                    return super().main(*arguments, **options)
                finally:
                    stdout.flush()  # what is left to write fails here, not when Python ends
            except InvalidResourcesError as error:
                _fail(error, 2)
            except ResourcePolicyError as error:
                _fail(error, 1)
            except BrokenPipeError:  # the reader has enough, as `head` has
                drop_stdout()
                sys.exit(1)
            except OSError as error:
                drop_stdout()
                _fail(_why(error), 2)


def _why(error: OSError) -> str:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is no shorter
    except OSError:
        return "the working folder is gone: change to one that is there"
    return f"cannot write the result: {error}"


def _fail(error: object, status: int) -> NoReturn:
    with suppress(OSError):  # stderr cannot be written either
        print(f"error: {indented(redacted(str(error)))}", file=sys.stderr)
    sys.exit(status)
