"""The command ``probe``. Apart from Ray, it needs few imports."""

import typer

from tune_policies.cli.options import Address, ClusterConfig, Json, TimeoutS, read_cluster

app = typer.Typer()


@app.command()
def probe(
    *, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0, cluster_config: ClusterConfig = None
) -> None:
    """Show what the cluster offers, a line for each shape of node, and what an autoscaler could add."""
    capacity = read_cluster(address, timeout_s, cluster_config)
    if json:
        print(capacity.to_json())
    else:
        from tune_policies.files.terminal import TextConsole

        TextConsole().print(capacity)
