"""Runs programs in processes of their own, compares the run under a policy with the run of plain Tune, and reports."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table

from .drawing import Program, draw, simpler

_ROOT: Final = Path(__file__).parents[3]
_PROCESS_DEADLINE_S: Final = 480.0
_LOG_LINES: Final = 60
AGREES, NO_CLAIM = "agrees", "plain Tune did not end"
HANG, SLOW, ERROR, DIFFERS = "hang", "slow", "error", "differs"
COUNTEREXAMPLES: Final = (HANG, SLOW, ERROR, DIFFERS)


def measure_plain_tune(seeds: Iterable[int], output: Path | None, *, shrinks: bool) -> bool:
    """Run the programs of the seeds that are not in ``output`` yet, append their records, and print a summary.

    Returns:
        Whether no program is a counterexample.
    """
    known = {}
    if output is not None and output.exists():
        known = {record["seed"]: record for record in map(json.loads, output.read_text().splitlines())}
    records = []
    for seed in seeds:
        record = known.get(seed) or _record(draw(seed), shrinks=shrinks)
        records.append(record)
        if seed not in known:
            print(f"{seed}: {record['verdict']} {'; '.join(record['reasons'])}", flush=True)
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    _print_summary(records)
    return not any(record["verdict"] in COUNTEREXAMPLES for record in records)


def _record(program: Program, *, shrinks: bool) -> dict[str, Any]:
    record = confirmed(program)
    if shrinks and record["verdict"] in COUNTEREXAMPLES:
        record["shrunk"] = _shrink(program, record["verdict"]).model_dump(mode="json", exclude_defaults=True)
    return record


def confirmed(program: Program) -> dict[str, Any]:
    """Run a program, and run it again if it was too slow, because another program may have used the machine."""
    record = run_program(program)
    if record["verdict"] == SLOW:
        first, record = record, run_program(program)
        record["first_seconds"] = [first[way]["seconds"] for way in ("plain", "policy")]
    return record


def _shrink(program: Program, verdict: str) -> Program:
    """Drop features of the program as long as its verdict stays the same."""
    tried = {program}
    while True:
        for other in simpler(program):
            if other in tried:
                continue
            tried.add(other)
            if confirmed(other)["verdict"] == verdict:
                program = other
                break
        else:
            return program


def run_program(program: Program) -> dict[str, Any]:
    """Run a program with plain Tune and under its policy, and return the record of the comparison."""
    # The path must be short, because Ray creates sockets in this folder.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "program.json").write_text(program.model_dump_json())
        _run_process(folder)
        outcomes = {}
        for way in ("plain", "policy"):
            path = folder / f"{way}.json"
            outcomes[way] = json.loads(path.read_text()) if path.exists() else None
        lines = (folder / "log").read_text(errors="replace").splitlines()
        log = [line[:400] for line in lines if "Checkpoint successfully created" not in line]
    verdict, reasons = compare(program, outcomes["plain"], outcomes["policy"])
    record = {
        "seed": program.seed,
        "verdict": verdict,
        "reasons": reasons,
        "program": program.model_dump(mode="json", exclude_defaults=True),
        **outcomes,
    }
    if verdict != AGREES:
        record["log"] = log[-_LOG_LINES:]
    return record


def _run_process(folder: Path) -> None:
    """Run the program in ``folder`` in a new process, and kill everything that it leaves behind."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        "RAY_TMPDIR": str(folder),
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_DEDUP_LOGS": "0",
    }
    command = [sys.executable, "-m", "tests.evidence.plain_tune.running", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=_ROOT)
        try:
            process.wait(_PROCESS_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            _kill_processes_of(folder)


def _kill_processes_of(folder: Path) -> None:
    """Kill the processes that were started with this ``RAY_TMPDIR``."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("RAY_TMPDIR") == str(folder):
                process.kill()


def compare(
    program: Program, plain: Mapping[str, Any] | None, policy: Mapping[str, Any] | None
) -> tuple[str, list[str]]:
    """Return the verdict about a program, and the reasons for it."""
    if plain is None or plain["error"] is not None:
        return NO_CLAIM, [plain["error"] if plain else "no outcome"]
    if policy is None:
        return ERROR, ["the process ended without an outcome"]
    if policy["error"] == "hang":
        unfinished = Counter(trial["status"] for trial in policy["trials"])
        return HANG, [f"plain {plain['seconds']:.1f} s, policy {policy['seconds']:.1f} s, {dict(unfinished)}"]
    if policy["error"] is not None:
        return ERROR, [policy["error"]]
    reasons = differences(program, plain["trials"], policy["trials"])
    if reasons:
        return DIFFERS, reasons
    if policy["seconds"] > 1.1 * plain["seconds"] + 5:
        return SLOW, [f"plain {plain['seconds']:.1f} s, policy {policy['seconds']:.1f} s"]
    return AGREES, [f"plain {plain['seconds']:.1f} s, policy {policy['seconds']:.1f} s"]


def differences(program: Program, plain: Sequence[Mapping[str, Any]], policy: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the trials of both runs differ, except for differences that depend on the time of an event."""
    found = []
    if len(plain) != len(policy):
        found.append(f"{len(plain)} trials, but {len(policy)} under the policy")
    for trial in policy:
        if trial["status"] not in ("TERMINATED", "ERROR"):
            found.append(f"a trial ended as {trial['status']}")
        if abs(trial["total"] - trial["x"] * trial["steps_done"]) > 1e-3:
            found.append(f"{trial['steps_done']} steps of {trial['x']} have the total {trial['total']}")
    has_failures = program.failure is not None
    if not program.fails_for_good and not (has_failures and program.scheduler.startswith("pbt")):
        errors = sum(trial["status"] == "ERROR" for trial in policy)
        if errors:
            found.append(f"{errors} trials failed although max_failures={program.max_failures} allows their failures")
    if program.searcher in ("optuna", "hyperopt"):  # their suggestions depend on the order of the results
        fields = ["steps_done", "status", "failures"] if not has_failures else []
    else:
        fields = ["x", "y", "steps_done", "total", "status", "failures"]
    if program.scheduler in ("asha", "median", "hyperband"):  # they stop trials depending on the order of results
        fields = [field for field in fields if field in ("x", "y")]
    if program.scheduler.startswith("pbt"):
        fields = []
    if program.leaves:  # a lost node is a failure in plain Tune
        fields = [field for field in fields if field not in ("failures", "status", "steps_done", "total")]
    if fields:
        ours, theirs = (Counter(tuple(trial[field] for field in fields) for trial in run) for run in (policy, plain))
        if ours != theirs:
            found.append(f"{fields}: only plain {list(theirs - ours)}, only policy {list(ours - theirs)}")
    return found


def _print_summary(records: Sequence[Mapping[str, Any]]) -> None:
    verdicts = Counter(record["verdict"] for record in records)
    table = empty_table("Programs with plain Tune and under a policy", "Result", "Programs", "Seeds")
    for verdict in (AGREES, *COUNTEREXAMPLES, NO_CLAIM):
        seeds = [str(record["seed"]) for record in records if record["verdict"] == verdict]
        table.add_row(verdict, str(verdicts[verdict]), " ".join(seeds) if verdict != AGREES else "")
    console = TextConsole(width=110)
    console.print(table)
    done = [record for record in records if record["verdict"] in (AGREES, SLOW)]
    if done:
        plain_s, policy_s = (sum(record[way]["seconds"] for record in done) for way in ("plain", "policy"))
        print(f"programs that ended in both runs: {plain_s:.0f} s with plain Tune, {policy_s:.0f} s under a policy")
    print(f"{describe_machine()}\ncommand: {own_command()}")
