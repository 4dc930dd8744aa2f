"""The command ``cluster``: from a policy to a file of the cluster that its trials need."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tune_policies.cli.options import Force
from tune_policies.files.writing import check_new, write_new
from tune_policies.kuberay.design.design_cluster import design_cluster
from tune_policies.policies.policy_file import load_catalog, load_decision, load_policy, load_runtime_env

app = typer.Typer()

Format = Literal["kuberay", "kuberay-helm", "cluster-yaml"]


@app.command()
def cluster(
    policy: Annotated[Path, typer.Argument(help="A policy as YAML or JSON.", show_default=False)],
    *,
    num_trials: Annotated[int, typer.Option(min=1, help="So many trials are to run at once.", show_default=False)],
    nodes: Annotated[
        Path | None,
        typer.Option(help="The catalogue of node types; else nodes that suit the policy.", show_default=False),
    ] = None,
    decision: Annotated[
        Path | None,
        typer.Option(help="What benchmarks decided: trials run where they cost the least.", show_default=False),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Of the decision, where it has several.", show_default=False)
    ] = None,
    size: Annotated[
        float | None, typer.Option(help="Of the trials; else the largest that was measured.", show_default=False)
    ] = None,
    format: Annotated[  # noqa: A002 - the name of the option
        Format, typer.Option(help="A manifest, values for the chart `ray-cluster`, or a file for `ray up`.")
    ] = "kuberay",
    name: Annotated[str, typer.Option(help="Of the cluster.")] = "tune",
    ray_version: Annotated[
        str | None, typer.Option(help="Of the cluster; else the one that is installed here.", show_default=False)
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Of all pods; else Ray's own of that version.", show_default=False)
    ] = None,
    platform: Annotated[
        Literal["gke", "karpenter", "gpu-operator", "none"] | None,
        typer.Option(
            help="Whose labels tell what GPUs a node has; none: only those that the catalogue names.",
            show_default="gke",
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Of Kubernetes; else that of who applies the manifest.", show_default=False)
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(help="A RayJob that runs this command, such as `python tune.py`.", show_default=False),
    ] = None,
    runtime_env: Annotated[
        Path | None,
        typer.Option(
            help="Of the job: a YAML or JSON file with Ray's fields, such as working_dir and pip.", show_default=False
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file, not to stdout.", show_default=False)] = None,
    force: Force = False,
) -> None:
    """Design the cheapest cluster for so many trials, and write its file.

    stderr says why these worker groups, and what they cost.
    """
    if decision is None and (workload is not None or size is not None):
        raise typer.BadParameter(f"{'--workload' if workload is not None else '--size'} goes with --decision")
    if output is not None:
        check_new(output, force=force)
    design = design_cluster(
        load_policy(policy),
        None if nodes is None else load_catalog(nodes),
        num_trials,
        decision=None if decision is None else load_decision(decision),
        workload=workload,
        size=size,
        name=name,
    )
    # Only the writers know what a file of each format needs.
    from tune_policies.kuberay.writing import write_cluster
    from tune_policies.kuberay.writing.options import WriteOptions

    options: dict[str, Any] = {"format": format, "image": image, "namespace": namespace, "job": job}
    if runtime_env is not None:
        options["runtime_env"] = load_runtime_env(runtime_env)
    options["ray_version"] = ray_version or version("ray")
    if platform is not None:
        options["platform"] = None if platform == "none" else platform
    text = write_cluster(design, WriteOptions(**options))
    print(design.explain(), file=sys.stderr)
    if output is None:
        print(text, end="")
    else:
        write_new(output, text, force=force)
