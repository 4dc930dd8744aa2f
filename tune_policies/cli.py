"""The command ``tune-policies``. Results go to stdout, everything else to stderr.

Exit status: 0 done, 1 the request cannot be met or ``doctor`` found problems, 2 wrong usage.
"""

import json as json_text
import os
import sys
import warnings
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from tune_policies.capacity import ClusterCapacity
from tune_policies.doctor.report import diagnosis_view
from tune_policies.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.idle import ROUNDING, idle
from tune_policies.names import counted
from tune_policies.plan import TrialPlan
from tune_policies.policy_file import load_capacity, load_policy
from tune_policies.tables import cluster_view

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Address = Annotated[
    str | None, typer.Option(help="Ray's address, as for ray.init; else RAY_ADDRESS, else this machine.")
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Deadline for the cluster to answer, in seconds.")
]

ClusterConfig = Annotated[
    Path | None,
    typer.Option(
        help="The cluster's file (`ray up`, or KubeRay), for what an autoscaler could add.", show_default=False
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tune-policies {version('tune-policies')}")
        raise typer.Exit


@app.callback()
def tune_policies(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What each Ray trial gets, how many run at once, and why."""


@app.command()
def probe(
    *, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0, cluster_config: ClusterConfig = None
) -> None:
    """Show what the cluster offers, a line a node shape, and what an autoscaler could add."""
    capacity = _probe(address, timeout_s, cluster_config)
    if json:
        print(capacity.to_json())
    else:
        Console().print(cluster_view(capacity))


@app.command()
def plan(
    policy: Annotated[Path, typer.Argument(help="A policy as YAML or JSON.", show_default=False)],
    *,
    capacity: Annotated[
        Path | None,
        typer.Option(help="Plan for a cluster saved by `probe --json` (or YAML), without Ray.", show_default=False),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=0, help="Also say in how many waves so many trials run.")] = None,
    json: Json = False,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    cluster_config: ClusterConfig = None,
) -> None:
    """Show what each trial gets, how many run at once, what limits them and why, and what stays idle."""
    if capacity is not None and (address is not None or cluster_config is not None):
        name = "--address" if address is not None else "--cluster-config"
        raise typer.BadParameter(f"--capacity is planned for without a cluster: leave {name} out")
    chosen = load_policy(policy)
    found = _probe(address, timeout_s, cluster_config) if capacity is None else load_capacity(capacity)
    answer = chosen.plan(found)
    print(_plan_as_json(answer, trials) if json else _plan_as_text(found, answer, trials))


@app.command()
def doctor(*, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0) -> None:
    """Look for what is wrong for GPU work on the nodes of a Ray, or on this machine where none runs.

    Exit status: 0 nothing, or only notes; 1 there are problems, or Ray cannot be reached; 2 wrong usage.
    """
    from tune_policies.doctor.cluster_reader import examine

    with _ray_speaks_on_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        diagnosis = examine(address, timeout_s=timeout_s)
    if json:
        print(diagnosis.to_json())
    else:
        Console().print(diagnosis_view(diagnosis))
    if not diagnosis.is_healthy:
        raise typer.Exit(1)


@app.command()
def usage(
    result_dir: Annotated[
        Path, typer.Argument(help="The folder of a run of Tune or Train.", show_default=False, metavar="RESULT_DIR")
    ],
    *,
    json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also plot what was used against the shares, to this file.", show_default=False)
    ] = None,
) -> None:
    """Show what each trial of a run used of its share of GPU memory, and how many would fit on a GPU."""
    from tune_policies.usage.advice import advise
    from tune_policies.usage.plot import plot_usage
    from tune_policies.usage.report import usage_view
    from tune_policies.usage.trials import read_usage

    run = read_usage(result_dir)
    if plot is not None:
        plot_usage(run, plot)
    if json:
        print(json_text.dumps({**run.model_dump(mode="json"), "advice": advise(run)}, indent=2, ensure_ascii=False))
    else:
        Console().print(usage_view(run))


def main() -> None:
    """Run the command; errors end as a message, not as a traceback."""
    try:
        try:
            app()
        finally:
            print(end="", flush=True)  # what is left to write fails here, not when Python ends
    except InvalidResourcesError as error:
        _fail(error, 2)
    except ResourcePolicyError as error:
        _fail(error, 1)
    except BrokenPipeError:  # the reader has enough, as `head` has
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        _drop_stdout()
        _fail(f"cannot write the result: {error}", 1)


def _fail(error: object, status: int) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(status)


def _drop_stdout() -> None:
    """Let what could not be written go: Python would try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _probe(address: str | None, timeout_s: float, cluster_config: Path | None) -> ClusterCapacity:
    # Ray takes seconds to import; a saved capacity needs none.
    from tune_policies.probe import ProbeWarning, probe_cluster

    options: dict[str, Any] = {"cluster_config": cluster_config} if cluster_config is not None else {}
    with _ray_speaks_on_stderr(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s, **options)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return found


def _ray_speaks_on_stderr() -> redirect_stdout[TextIO]:
    """Keep stdout for the result: Ray prints the errors of the whole cluster there, ``log_to_driver`` or not."""
    return redirect_stdout(sys.stderr)


def _plan_as_json(answer: TrialPlan, trials: int | None) -> str:
    if trials is None:
        return answer.to_json()
    return json_text.dumps({**answer.model_dump(mode="json"), **_waves(answer, trials)}, indent=2, ensure_ascii=False)


def _plan_as_text(capacity: ClusterCapacity, answer: TrialPlan, trials: int | None) -> str:
    lines = [answer.explain()]
    if left := [part for part in idle(capacity, answer) if part.reason != ROUNDING]:
        lines += ["stays idle:", *(f"  {part}" for part in left)]
    if trials is not None:
        waves = _waves(answer, trials)["waves"]
        lines.append(f"{counted(trials, 'trial')} {'runs' if trials == 1 else 'run'} in {counted(waves, 'wave')}")
    return "\n".join(lines)


def _waves(answer: TrialPlan, trials: int) -> dict[str, int]:
    return {"trials": trials, "waves": answer.num_waves(trials)}
