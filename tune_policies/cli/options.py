"""Common options of commands, their connection to Ray, and error handling.

An error is reported as a message on stderr and an exit status, without a traceback.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from tune_policies.files.terminal import drop_stdout, guarded_streams, print_to_stderr
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.sanitize import indented, redacted, shortened

if TYPE_CHECKING:
    from tune_policies.cluster.capacity import ClusterCapacity

HELP: Final = {"help_option_names": ["-h", "--help"]}
"""Click's settings for a group of commands. The commands inherit them."""


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option whose help does not show a default."""
    return typer.Option(*names, help=text, show_default=False, **more)


def argument(text: str, **more: Any) -> Any:
    """Return an argument whose help does not show a default."""
    return typer.Argument(help=text, show_default=False, **more)


Json = Annotated[bool, option("Print JSON.", "--json")]
Address = Annotated[
    str | None, option("The cluster's address, as in ray.init; by default RAY_ADDRESS or this machine.")
]
Output = Annotated[Path | None, option("Write to this file instead of stdout.", "--output", "-o")]
Force = Annotated[bool, option("Replace an existing output file of the same kind.", "--force")]
Redact = Annotated[
    bool, option("Omit host names, commands and error messages, so that you can publish the output.", "--redact")
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Timeout of each step to read the cluster, in seconds.")
]
Cluster = Annotated[
    Path | None,
    option(
        "Plan for the nodes in this file instead of a Ray cluster: a list of nodes, the output of `probe --json`, a "
        "KubeRay manifest, or a cluster YAML."
    ),
]
ClusterConfig = Annotated[
    Path | None,
    option("The file of the cluster for `ray up` or KubeRay, which defines the node types of the autoscaler."),
]


def read_cluster(address: str | None, timeout_s: float, cluster_config: Path | None) -> "ClusterCapacity":
    """Probe the cluster, and print warnings to stderr."""
    # Ray takes seconds to import, and a saved capacity does not need it.
    from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster

    options: dict[str, Any] = {"cluster_config": cluster_config} if cluster_config is not None else {}
    with ray_output_on_stderr(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s, **options)
    for warning in caught:
        print_to_stderr(f"warning: {warning.message}")
    return found


def ray_output_on_stderr() -> redirect_stdout[TextIO]:
    """Redirect stdout to stderr, because Ray prints cluster errors to stdout despite ``log_to_driver=False``."""
    return redirect_stdout(sys.stderr)


_UsageError: Final[Any] = typer.BadParameter.mro()[1]
"""Click's base class of usage errors. Typer may contain a copy of Click, and does not export this class."""


@contextmanager
def _short_usage_errors() -> Iterator[None]:
    """Shorten the message of a usage error before Typer prints it."""
    try:
        yield
    except _UsageError as error:
        error.message = shortened(error.message.removeprefix("Value error, "))  # pydantic's prefix
        raise


class GuardedCommands(TyperGroup):
    """A group of commands that print sanitized text, and error messages instead of tracebacks.

    Exit status: 1 if the request is infeasible, or if the reader closed stdout; 2 for invalid usage, or if the result
    cannot be written. A result that cannot be written must not lead to 1, because 1 can mean that problems were found.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the options of the group."""
        with _short_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of the command, and run it."""
        with _short_usage_errors():
            return super().invoke(ctx)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command, and exit."""
        with guarded_streams():
            stdout = sys.stdout
            try:
                try:
                    return super().main(*arguments, **options)
                finally:
                    stdout.flush()  # fail here, and not when Python exits
            except InvalidResourcesError as error:
                fail(error, 2)
            except ResourcePolicyError as error:
                fail(error, 1)
            except BrokenPipeError:  # the reader closed stdout, as `head` does
                drop_stdout()
                sys.exit(1)
            except OSError as error:
                if error.filename is not None:  # errors of streams have no file name
                    fail(f"{error.filename}: {error.strerror}. Pass a file or folder that can be opened.", 2)
                drop_stdout()
                fail(_write_failure(error), 2)


class ImportedCommands(GuardedCommands):
    """A group of commands that imports only the module of the command that is run.

    Attributes:
        modules: The module of each command or group of commands. The module's ``app`` contains the command.
    """

    modules: ClassVar[dict[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        """Create the group."""
        super().__init__(**options)
        self.commands: Any = dict.fromkeys(self.modules)  # Typer lists and suggests these names

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """Import a command."""
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
        return "the working folder was deleted: change to an existing folder"
    return f"cannot write the result: {error}"


def fail(error: object, status: int) -> NoReturn:
    """Print an error message to stderr, and exit with ``status``."""
    with suppress(OSError):  # stderr may be closed
        print(f"error: {indented(redacted(str(error)))}", file=sys.stderr)
    sys.exit(status)
