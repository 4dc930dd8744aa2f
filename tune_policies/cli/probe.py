"""The command ``probe``, which shows the resources of a running cluster."""

import typer

from tune_policies.cli.options import Address, ClusterConfig, Json, TimeoutS, read_cluster

app = typer.Typer(add_completion=False)


@app.command()
def probe(
    *, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0, cluster_config: ClusterConfig = None
) -> None:
    """Show the resources of the cluster with one line per kind of node, and the nodes that the autoscaler can add."""
    capacity = read_cluster(address, timeout_s, cluster_config)
    if json:
        print(capacity.to_json())
    else:
        from tune_policies.files.terminal import TextConsole

        TextConsole().print(capacity)
