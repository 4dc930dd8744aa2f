"""What several commands take, and how they talk to Ray."""

import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.terminal import tell

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Address = Annotated[
    str | None, typer.Option(help="Ray's address, as for ray.init; else RAY_ADDRESS, else this machine.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Deadline for the cluster to answer, in seconds.")
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
