"""The options that several commands share, and the function that reads a running cluster for them."""

import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tune_policies.files.terminal import print_to_stderr

if TYPE_CHECKING:
    from tune_policies.cluster.capacity import ClusterCapacity


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option whose help does not show a default."""
    return typer.Option(*names, help=text, show_default=False, **more)


def argument(text: str, **more: Any) -> Any:
    """Return an argument whose help does not show a default."""
    return typer.Argument(help=text, show_default=False, **more)


Json = Annotated[bool, option("Print JSON.", "--json")]
Address = Annotated[
    str | None, option("The address of the cluster, as for ray.init. Defaults to RAY_ADDRESS, then to this machine.")
]
Output = Annotated[Path | None, option("Write to this file instead of stdout.", "--output", "-o")]
Force = Annotated[bool, option("Replace an existing output file of the same kind.", "--force")]
Redact = Annotated[
    bool, option("Omit host names, commands and error messages, so that you can publish the output.", "--redact")
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="The timeout of each step of the cluster probe, in seconds.")
]
Cluster = Annotated[
    Path | None,
    option(
        "Plan for the nodes in this file instead of a running cluster. The file is the output of `probe --json`, a "
        "KubeRay manifest, a cluster YAML, or a catalog."
    ),
]
ClusterConfig = Annotated[
    Path | None,
    option("The cluster file for `ray up` or KubeRay. It defines the node types of the autoscaler."),
]

TrialHours = Annotated[
    float | None,
    option(
        "The duration of each trial, in hours. The output then contains the time and, with prices, the price of all "
        "trials."
    ),
]
DeadlineHours = Annotated[
    float | None,
    option(
        "The time in which all trials must end, in hours. Nodes to rent then run only as many trials at once as the "
        "deadline requires. Requires --trial-hours."
    ),
]


def read_cluster(address: str | None, timeout_s: float, cluster_config: Path | None) -> "ClusterCapacity":
    """Probe the cluster, print warnings to stderr, and return the capacity."""
    # Importing Ray takes seconds, and plans for a cluster file do not need Ray.
    from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster

    options: dict[str, Any] = {}
    if cluster_config is not None:
        options["cluster_config"] = cluster_config
    with ray_output_on_stderr(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open, and Python warns about them
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s, **options)
    for warning in caught:
        print_to_stderr(f"warning: {warning.message}")
    return found


def ray_output_on_stderr() -> redirect_stdout[TextIO]:
    """Return a context manager that redirects stdout to stderr, because Ray prints cluster errors to stdout."""
    return redirect_stdout(sys.stderr)
