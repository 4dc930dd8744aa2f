"""What the commands share: options, how they talk to Ray, and how every command ends.

What is wrong becomes a paragraph on stderr and an exit status, never a traceback.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.terminal import drop_stdout, guarded_streams, tell
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.sanitize import indented, redacted, shortened

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Address = Annotated[
    str | None, typer.Option(help="Ray's address, as for ray.init; by default RAY_ADDRESS, or this machine.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.", show_default=False)
]
HELP: Final = {"help_option_names": ["-h", "--help"]}
"""Click's settings, which commands have from the group that they are in."""
Force = Annotated[bool, typer.Option("--force", help="Replace a file of the same kind, but never an input.")]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Leave out host names, commands and the texts of errors, so that you can publish it."
    ),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Deadline for the cluster to answer, in seconds.")
]

Cluster = Annotated[
    Path | None,
    typer.Option(
        help="Plan for the nodes of this file, without Ray: a list of nodes, the output of `probe --json`, a KubeRay "
        "manifest, values of its chart, or a cluster YAML.",
        show_default=False,
    ),
]
ClusterConfig = Annotated[
    Path | None,
    typer.Option(
        help="The cluster's file (`ray up`, or KubeRay), for what an autoscaler could add.", show_default=False
    ),
]


def read_cluster(address: str | None, timeout_s: float, cluster_config: Path | None) -> ClusterCapacity:
    """Probe the cluster; what it warns of goes to stderr."""
    # Ray takes seconds to import; a saved capacity needs none.
    from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster

    options: dict[str, Any] = {"cluster_config": cluster_config} if cluster_config is not None else {}
    with ray_speaks_on_stderr(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s, **options)
    for warning in caught:
        tell(f"warning: {warning.message}")
    return found


def ray_speaks_on_stderr() -> redirect_stdout[TextIO]:
    """Keep stdout for the result: Ray prints the errors of the whole cluster there, ``log_to_driver`` or not."""
    return redirect_stdout(sys.stderr)


_UsageError: Final[Any] = typer.BadParameter.mro()[1]
"""Click's base class of usage errors; Typer may bring a copy of Click, and does not export this class."""


@contextmanager
def _short_usage_errors() -> Iterator[None]:
    """Shorten the value that a usage error quotes; Typer prints the error itself."""
    try:
        yield
    except _UsageError as error:
        error.message = shortened(error.message)
        raise


class GuardedCommands(TyperGroup):
    """Commands whose texts are plain, and whose errors are messages.

    Exit status: 1 the request cannot be met, or the reader went away; 2 wrong usage, or the result cannot be written:
    of some commands, 1 is an answer.
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
        """Run the command that is named, and leave the process."""
        with guarded_streams():
            stdout = sys.stdout
            try:
                try:
                    return super().main(*arguments, **options)
                finally:
                    stdout.flush()  # what is left to write fails here, not when Python ends
            except InvalidResourcesError as error:
                fail(error, 2)
            except ResourcePolicyError as error:
                fail(error, 1)
            except BrokenPipeError:  # the reader has enough, as `head` has
                drop_stdout()
                sys.exit(1)
            except OSError as error:
                if error.filename is not None:  # an error of a stream has none
                    fail(f"{error.filename}: {error.strerror}. Name a file or folder that can be opened.", 2)
                drop_stdout()
                fail(_why(error), 2)


def _why(error: OSError) -> str:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is no shorter
    except OSError:
        return "the working folder is gone: change to one that is there"
    return f"cannot write the result: {error}"


def fail(error: object, status: int) -> NoReturn:
    """End the command with a message on stderr and an exit status."""
    with suppress(OSError):  # stderr cannot be written either
        print(f"error: {indented(redacted(str(error)))}", file=sys.stderr)
    sys.exit(status)
