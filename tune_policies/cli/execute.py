"""The command ``exec``, which runs a program and applies a policy to its Tune runs."""

import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from tune_policies.cli.options import argument, option
from tune_policies.policies.policy_file import load_policy

app = typer.Typer()


@app.command(
    name="exec",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def execute(
    policy: Annotated[Path, argument("A policy file in YAML or JSON.")],
    program: Annotated[
        list[str],
        argument("A Python script and its arguments, or `-m MODULE` and its arguments.", metavar="PROGRAM [ARGS]..."),
    ],
    *,
    isolation: Annotated[str | None, option("With mps, also limit the trials with NVIDIA's MPS daemon.")] = None,
    on_unenforced_limit: Annotated[
        str, typer.Option(help="The action if a memory limit cannot be enforced: raise (an error) or warn.")
    ] = "raise",
    falls_back: Annotated[
        bool,
        typer.Option(
            "--falls-back", help="If a trial cannot use its GPU, resume it with the policy's next choice without GPUs."
        ),
    ] = False,
) -> None:
    """Run a Python program, and apply a policy to all Tune runs in its main thread, including those of libraries.

    Options must precede the policy. The exit status is the exit status of the program.
    """
    chosen = load_policy(policy)
    if program[0] == "-m" and len(program) < 2:
        raise typer.BadParameter("-m requires the name of a module")
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise typer.BadParameter(f"program {program[0]!r} does not exist. Pass a Python script, or -m and a module")
    from tune_policies.trainers import PolicyScheduler, applied  # this imports Ray, which takes seconds

    # ``PolicyScheduler`` validates these options.
    options: dict[str, Any] = {"isolation": isolation, "on_unenforced_limit": on_unenforced_limit}
    scheduler = PolicyScheduler(chosen, falls_back=falls_back, **options)
    # The program uses the shell's streams, and its errors are printed as in a normal run of Python.
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__), applied(scheduler):
        try:
            _run(program)
        except Exception:  # noqa: BLE001  # any error of the program
            traceback.print_exc()
            raise typer.Exit(1) from None


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")
