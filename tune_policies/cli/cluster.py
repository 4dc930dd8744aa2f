"""The command ``cluster``: from a policy to a file of the cluster that its trials need."""

import json as json_text
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tune_policies.cli.options import Force, Json, Output
from tune_policies.files.writing import check_new, write_new
from tune_policies.kuberay.design.design_cluster import design_cluster
from tune_policies.kuberay.reading.load_cluster import load_catalog
from tune_policies.policies.policy_file import load_decision, load_policy, load_runtime_env

app = typer.Typer()


def _option(text: str, shown: str | bool = False, **more: Any) -> Any:
    return typer.Option(help=text, show_default=shown, **more)


_Policy = Annotated[Path, typer.Argument(help="A policy as YAML or JSON.", show_default=False)]
_NumTrials = Annotated[
    int, _option("How many trials at once the cluster has room for when all its nodes are there.", min=1)
]
_Nodes = Annotated[Path | None, _option("A node catalogue; by default nodes that suit the policy.")]
_Decision = Annotated[Path | None, _option("A decision of `bench decide`: trials run where they cost the least.")]
_Workload = Annotated[str | None, _option("Which workload of the decision, where it has several.")]
_Size = Annotated[float | None, _option("Size of the trials; by default the largest that was measured.")]
_Format = Annotated[
    Literal["kuberay", "kuberay-helm", "cluster-yaml"],
    _option("A manifest, values for the chart `ray-cluster`, or a file for `ray up`.", shown=True),
]
_Name = Annotated[str, _option("Name of the cluster.", shown=True)]
_RayVersion = Annotated[str | None, _option("Ray's version on the cluster; by default the one installed here.")]
_Image = Annotated[str | None, _option("Image of all pods; by default Ray's own of that version.")]
_Platform = Annotated[
    Literal["gke", "karpenter", "gpu-operator", "none"],
    _option("Whose node labels say which GPUs a node has; none: only those of the catalogue.", shown=True),
]
_Namespace = Annotated[str | None, _option("Namespace in Kubernetes; by default that of whoever applies the manifest.")]
_Job = Annotated[str | None, _option("Write a RayJob that runs this command, such as `python tune.py`.")]
_RuntimeEnv = Annotated[
    Path | None, _option("Runtime environment of the job: a YAML or JSON file with fields such as working_dir and pip.")
]


@app.command()
def cluster(
    policy: _Policy,
    *,
    num_trials: _NumTrials,
    nodes: _Nodes = None,
    decision: _Decision = None,
    workload: _Workload = None,
    size: _Size = None,
    format: _Format = "kuberay",  # noqa: A002 - the name of the option
    name: _Name = "tune",
    ray_version: _RayVersion = None,
    image: _Image = None,
    platform: _Platform = "gke",
    namespace: _Namespace = None,
    job: _Job = None,
    runtime_env: _RuntimeEnv = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Design the cheapest cluster for so many trials, and write its file.

    stderr says why it has these worker groups, and what they cost.
    """
    if decision is None and (workload is not None or size is not None):
        raise typer.BadParameter(f"{'--workload' if workload is not None else '--size'} needs --decision")
    if output is not None:
        check_new(output, force=force, inputs=(policy, nodes, decision, runtime_env))
    catalog = None if nodes is None else load_catalog(nodes)
    decided = None if decision is None else load_decision(decision)
    design = design_cluster(
        load_policy(policy), catalog, num_trials, decision=decided, workload=workload, size=size, name=name
    )
    # Only the writers know what a file of each format needs.
    from tune_policies.kuberay.writing import WriteOptions, write_cluster

    options = WriteOptions(
        format=format,
        ray_version=ray_version or version("ray"),
        image=image,
        platform=None if platform == "none" else platform,
        namespace=namespace,
        job=job,
        runtime_env=None if runtime_env is None else load_runtime_env(runtime_env),
    )
    text = write_cluster(design, options)
    print(design.explain(), file=sys.stderr)
    if output is not None:
        write_new(output, text, force=force)
    if json:
        print(json_text.dumps({**design.model_dump(mode="json"), "file": text}, indent=2, ensure_ascii=False))
    elif output is None:
        print(text, end="")
