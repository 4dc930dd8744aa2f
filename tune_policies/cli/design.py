"""The command ``kuberay design``, which writes a cluster file for the trials of a policy."""

import json as json_text
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_policies.cli.options import DeadlineHours, Force, Json, Output, TrialHours, argument, option
from tune_policies.files.terminal import TextConsole, print_to_stderr
from tune_policies.files.writing import check_new, write_new
from tune_policies.kuberay.design.catalog_file import NodeCatalog
from tune_policies.kuberay.design.design_cluster import ClusterDesign, design_cluster
from tune_policies.kuberay.design.design_comparison import compare_designs
from tune_policies.kuberay.design.offers import with_cheaper_nodes
from tune_policies.kuberay.design.trial_duration import TrialDuration
from tune_policies.kuberay.design.whole_machines import about_whole_machines
from tune_policies.kuberay.reading.load_cluster import load_catalog
from tune_policies.policies.policy_file import load_decision, load_policy, load_runtime_env
from tune_policies.values.wording import shorten

if TYPE_CHECKING:
    from tune_policies.kuberay.writing import WriteOptions

app = typer.Typer(add_completion=False)


_Format = Annotated[
    Literal["kuberay", "cluster-yaml"],
    typer.Option(help="The format of the file: a KubeRay manifest, or a cluster YAML for `ray up`."),
]
_Platform = Annotated[
    Literal["gke", "eks", "aks", "karpenter", "gpu-operator", "none"],
    typer.Option(help="The platform whose labels select nodes by GPU type, or none to use only the catalog's labels."),
]


@app.command()
def design(
    policies: Annotated[
        list[Path],
        argument(
            "Policy files in YAML or JSON. Several policies are compared, and no file is written.",
            metavar="POLICY [POLICY]...",
        ),
    ],
    *,
    num_trials: Annotated[
        int,
        option(
            "The number of trials in the run. When all nodes of the cluster are running, all trials run at once, or as "
            "many as --deadline-hours requires.",
            min=1,
        ),
    ],
    trial_hours: TrialHours = None,
    deadline_hours: DeadlineHours = None,
    nodes: Annotated[
        Path | None,
        option("A catalog. By default, node types are chosen for the policy.", "--nodes", "--cluster"),
    ] = None,
    decision: Annotated[
        Path | None,
        option("A decision from `bench decide`. Each trial then runs on the device where it is cheapest."),
    ] = None,
    workload: Annotated[str | None, option("The workload. Required if the decision has several workloads.")] = None,
    size: Annotated[float | None, option("The size of the trials. Defaults to the largest measured size.")] = None,
    format: _Format = "kuberay",  # noqa: A002 - the name of the option
    name: Annotated[str, typer.Option(help="The name of the cluster.")] = "tune",
    ray_version: Annotated[
        str | None, option("The Ray version of the cluster. Defaults to the installed version.")
    ] = None,
    image: Annotated[
        str | None, option("The container image of all pods. Defaults to Ray's official image for --ray-version.")
    ] = None,
    platform: _Platform = "gke",
    namespace: Annotated[
        str | None,
        option("The Kubernetes namespace. Defaults to the current namespace of kubectl."),
    ] = None,
    min_nodes: Annotated[
        list[str], option("The minimum number of nodes of a node type. Can be repeated.", metavar="NAME=NUMBER")
    ] = [],  # noqa: B006 - it is never modified
    num_gpus: Annotated[
        bool,
        option("Also set the option num-gpus of `ray start`, for nodes on which Ray miscounts GPUs.", "--num-gpus"),
    ] = False,
    job: Annotated[str | None, option("Write a RayJob that runs this command, such as `python tune.py`.")] = None,
    runtime_env: Annotated[
        Path | None,
        option("A YAML or JSON file with the job's runtime environment: fields such as working_dir and pip."),
    ] = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Design the cheapest cluster for a number of trials, and write its file.

    The price of the cluster and the reasons for its worker groups are printed to stderr. With several policies, show
    the cheapest clusters for them side by side. The exit status is then 1 if no trial fits under any policy.
    """
    if decision is None and (workload is not None or size is not None):
        option = "--workload" if workload is not None else "--size"
        raise typer.BadParameter(f"{option} requires --decision")
    if output is not None and len(policies) > 1:
        raise typer.BadParameter("--output writes the file of only one design. Pass one policy")
    if output is not None:
        check_new(output, force=force, inputs=(*policies, nodes, decision, runtime_env))
    catalog = None if nodes is None else load_catalog(nodes)
    decided = None if decision is None else load_decision(decision)
    options: dict[str, Any] = {
        "decision": decided,
        "workload": workload,
        "size": size,
        "trial_hours": trial_hours,
        "deadline_hours": deadline_hours,
        "min_nodes": dict(map(_name_and_number, min_nodes)),
    }
    if len(policies) > 1:
        _compare(policies, catalog, num_trials, options, json=json)
        return
    policy = load_policy(policies[0])
    design = design_cluster(policy, catalog, num_trials, name=name, **options)
    if catalog is not None and decided is None:  # with a decision, the price of a trial depends on its duration
        # With nodes to keep, other nodes would cost more than ``with_cheaper_nodes`` knows.
        duration = None if min_nodes else TrialDuration.of(trial_hours, deadline_hours)
        design = with_cheaper_nodes(design, policy, catalog, duration)
    from tune_policies.kuberay.writing import WriteOptions, write_cluster

    environment = None if runtime_env is None else load_runtime_env(runtime_env)
    write_options = WriteOptions(
        format=format,
        ray_version=ray_version or version("ray"),
        image=image,
        platform=None if platform == "none" else platform,
        num_gpus=num_gpus,
        namespace=namespace,
        job=job,
        runtime_env=environment,
    )
    text = write_cluster(design, write_options)
    print(design.explain(), file=sys.stderr)
    if format == "kuberay":
        _warn(design, catalog, write_options)
    if output is not None:
        write_new(output, text, force=force)
    if json:
        print(json_text.dumps({**design.model_dump(mode="json"), "file": text}, indent=2, ensure_ascii=False))
    elif output is None:
        print(text, end="")


def _warn(design: ClusterDesign, catalog: NodeCatalog | None, options: "WriteOptions") -> None:
    """Print what may prevent the pods of a design from running on the intended nodes."""
    from tune_policies.kuberay.writing import about_unselected

    warnings = list(about_unselected(design, options))
    if catalog is not None:
        warnings += about_whole_machines(catalog)
    for sentence in warnings:
        print_to_stderr(f"warning: {sentence}")


def _compare(
    policies: list[Path], catalog: NodeCatalog | None, num_trials: int, options: dict[str, Any], *, json: bool
) -> None:
    """Print the cheapest clusters for several policies side by side."""
    loaded = [(str(path), load_policy(path)) for path in policies]
    compared = compare_designs(loaded, catalog, num_trials, **options)
    if json:
        print(compared.to_json())
    else:
        TextConsole().print(compared)
    if not compared.is_feasible:
        raise typer.Exit(1)


def _name_and_number(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise typer.BadParameter(f"--min-nodes {shorten(text)} must have the form NAME=NUMBER, such as l4=2")
    return name, int(number)
