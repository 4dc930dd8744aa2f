"""The command ``exec``, which runs a program and applies a policy to its Tune runs."""

import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from tune_policies.cli.options import argument, option
from tune_policies.cli.run_program import AfterCommand, run_program
from tune_policies.policies.policy_file import load_policy
from tune_policies.values.wording import suggest

app = typer.Typer(add_completion=False)

_POLICY_SUFFIXES: Final = (".yaml", ".yml", ".json")
"""The usual endings of policy files, which no program has."""


@app.command(
    name="exec",
    # Options after the policy belong to the program, even if they have the names of options of this command.
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def execute(
    context: typer.Context,
    policy: Annotated[str | None, argument("A policy file in YAML or JSON. Omit it with --audit.")] = None,
    program: Annotated[
        list[str] | None,
        argument("A Python script and its arguments, or `-m MODULE` and its arguments.", metavar="PROGRAM [ARGS]..."),
    ] = None,
    *,
    audit: Annotated[
        bool, option("Change nothing, and print at the end of each run which policy would be faster.", "--audit")
    ] = False,
    pages: Annotated[Path | None, option("With --audit, also write an HTML page of each run to this folder.")] = None,
    isolation: Annotated[str | None, option("With mps, also limit the trials with NVIDIA's MPS daemon.")] = None,
    on_unenforced_limit: Annotated[
        str | None, option("The action if a memory limit cannot be enforced: raise (an error, the default) or warn.")
    ] = None,
    may_move: Annotated[
        bool | None,
        option("Let a trial that was paused or requeued resume on another type of device.", "--may-move"),
    ] = None,
    falls_back: Annotated[
        bool | None,
        option("If a trial cannot use its GPU, resume it with the policy's next choice without GPUs.", "--falls-back"),
    ] = None,
    replan_interval_s: Annotated[
        float | None, option("The interval at which the nodes of the cluster are read, in seconds (5 by default).")
    ] = None,
    wait_for_nodes_s: Annotated[
        float | None,
        option("The time to wait for nodes if no plan is feasible, in seconds (600 by default)."),
    ] = None,
) -> None:
    """Run a Python program, and apply a policy to all Tune runs in its threads, including those of libraries.

    With --audit, no policy is applied. Options must precede the policy. The exit status is the exit status of the
    program.
    """
    command = list(program or ())
    # Click leaves unknown options to the program, so a misspelled option would be read as the policy.
    if policy is not None and policy.startswith("-") and policy != "-m":
        known = [f"--{name.replace('_', '-')}" for name in context.params if name not in ("policy", "program")]
        raise typer.BadParameter(f"no such option: {policy}{suggest(policy, known)}")
    if audit and policy is not None:
        if Path(policy).suffix in _POLICY_SUFFIXES:
            raise typer.BadParameter(f"--audit applies no policy. Omit {policy}")
        command.insert(0, policy)  # with --audit, the first argument belongs to the program
    is_missing = policy is None or policy == "-m" or policy.endswith(".py")
    if is_missing and not audit:
        raise typer.BadParameter("a policy is missing. Pass a policy file and a program, or --audit and a program")
    if not command:
        raise typer.BadParameter("a program is missing. Pass a Python script, or -m and a module")
    chosen = None
    if policy is not None and not audit:
        chosen = load_policy(policy)
    if command[0] == "-m" and len(command) < 2:
        raise typer.BadParameter("-m requires the name of a module")
    if command[0] != "-m" and not Path(command[0]).exists():
        raise typer.BadParameter(
            f"program {command[0]!r} does not exist. Pass a Python script, or -m and a module. Options of exec must "
            "precede the policy"
        )
    # ``PolicyScheduler`` validates the options and has the defaults of those that were not given.
    given = {name: value for name, value in context.params.items() if value is not None}
    options = {name: value for name, value in given.items() if name not in ("policy", "program", "audit", "pages")}
    if chosen is None:
        if options:
            option_name = min(options).replace("_", "-")
            raise typer.BadParameter(f"--audit applies no policy, so it cannot have the option --{option_name}")
        _audit_runs(pages)
        raise AfterCommand(partial(run_program, command))
    if pages is not None:
        raise typer.BadParameter("--pages requires --audit")
    # Ray keeps stderr for its messages, and the program prints them as any program does.
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):
        from tune_policies.trainers.start.applied import apply_to_program  # this imports Ray, which takes seconds
    apply_to_program(chosen, **options)
    raise AfterCommand(partial(run_program, command))


def _audit_runs(pages: Path | None) -> None:
    """Add ``AuditCallback`` to every run of this program and of its child processes."""
    # Ray adds the callbacks in this variable to each run of Tune.
    callbacks = [name for name in os.environ.get("RAY_TUNE_CALLBACKS", "").split(",") if name]
    os.environ["RAY_TUNE_CALLBACKS"] = ",".join([*callbacks, "tune_policies.AuditCallback"])
    if pages is not None:
        os.environ["TUNE_POLICIES_AUDIT_PAGES"] = str(pages.absolute())
