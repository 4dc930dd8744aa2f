"""Runs programs in processes of their own, compares the run under a policy with the run of plain Tune, and reports."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table

from ..own_process import LOG, run_module, short_folder
from .drawing import Program, draw, longest_allowed_s, simpler

_PROCESS_DEADLINE_S: Final = 480.0
_LOG_LINES: Final = 60
_AGREES, _NO_CLAIM, _SLOW = "agrees", "plain Tune did not end", "slow"
COUNTEREXAMPLES: Final = ("hang", _SLOW, "error", "differs")

Outcome = Mapping[str, Any]


def measure_plain_tune(seeds: Iterable[int], output: Path | None, *, shrinks: bool) -> bool:
    """Run the programs of the seeds that ``output`` does not contain, append their records, and print a summary.

    Returns:
        Whether no program is a counterexample.
    """
    known = {}
    if output is not None and output.exists():
        for line in output.read_text().splitlines():
            record = json.loads(line)
            known[record["seed"]] = record
    records = []
    for seed in seeds:
        record = known.get(seed)
        if record is None:
            record = _run_and_shrink(draw(seed), shrinks=shrinks)
            print(f"{seed}: {record['verdict']}: {'; '.join(record['reasons'])}", flush=True)
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        records.append(record)
    _print_summary(records)
    return not any(record["verdict"] in COUNTEREXAMPLES for record in records)


def _run_and_shrink(program: Program, *, shrinks: bool) -> dict[str, Any]:
    """Run a program, and drop its features as long as the verdict stays the same."""
    record = run_confirmed(program)
    verdict, tried = record["verdict"], {program}
    is_smaller = shrinks and verdict in COUNTEREXAMPLES
    while is_smaller:
        is_smaller = False
        for other in simpler(program):
            if other not in tried and run_confirmed(other)["verdict"] == verdict:
                program, is_smaller = other, True
                break
            tried.add(other)
        record["shrunk"] = program.model_dump(mode="json", exclude_defaults=True)
    return record


def run_confirmed(program: Program) -> dict[str, Any]:
    """Run a program, and run it again if it was too slow, because another program may have used the machine."""
    record = _run(program)
    if record["verdict"] == _SLOW:
        seconds = [record[way]["seconds"] for way in ("plain", "policy")]
        record = {**_run(program), "seconds_of_first_run": seconds}
    return record


def _run(program: Program) -> dict[str, Any]:
    with short_folder() as folder:
        (folder / "program.json").write_text(program.model_dump_json())
        run_module("tests.evidence.plain_tune.running", folder, deadline_s=_PROCESS_DEADLINE_S)
        outcomes: dict[str, Outcome | None] = {}
        for way in ("plain", "policy"):
            path = folder / f"{way}.json"
            outcomes[way] = None
            if path.exists():
                outcomes[way] = json.loads(path.read_text())
        lines = (folder / LOG).read_text(errors="replace").splitlines()
    verdict, reasons = compare(program, outcomes["plain"], outcomes["policy"])
    values = program.model_dump(mode="json", exclude_defaults=True)
    record = {"seed": program.seed, "verdict": verdict, "reasons": reasons, "program": values, **outcomes}
    if verdict != _AGREES:
        record["log"] = [line[:400] for line in lines[-_LOG_LINES:]]
    return record


def compare(program: Program, plain: Outcome | None, policy: Outcome | None) -> tuple[str, list[str]]:
    """Return the verdict about a program, and the reasons for it."""
    if plain is None:
        return _NO_CLAIM, ["no outcome"]
    if plain["error"] is not None:
        return _NO_CLAIM, [plain["error"]]
    if policy is None:
        return "error", ["the process ended without an outcome"]
    seconds = f"plain {plain['seconds']:.1f} s, policy {policy['seconds']:.1f} s"
    if policy["error"] == "hang":
        states = Counter(trial["status"] for trial in policy["trials"])
        return "hang", [f"{seconds}, {dict(states)}"]
    if policy["error"] is not None:
        return "error", [policy["error"]]
    reasons = _differences(program, plain["trials"], policy["trials"])
    if reasons:
        return "differs", reasons
    seconds += f", processes {plain['processes']} and {policy['processes']}"
    # A run that finishes trials that plain Tune loses may take longer.
    finishes_more = _num_lost(plain) > _num_lost(policy)
    if policy["seconds"] > longest_allowed_s(plain["seconds"]) and not finishes_more:
        return _SLOW, [seconds]
    return _AGREES, [seconds]


def _num_lost(run: Outcome) -> int:
    return sum(trial["status"] == "ERROR" for trial in run["trials"])


def _differences(program: Program, plain: Sequence[Outcome], policy: Sequence[Outcome]) -> list[str]:
    """Return how the trials of both runs differ, except for differences that depend on the times of events."""
    found = []
    if len(plain) != len(policy):
        found.append(f"{len(plain)} trials, but {len(policy)} under the policy")
    for trial in policy:
        if trial["status"] not in ("TERMINATED", "ERROR"):
            found.append(f"a trial ended as {trial['status']}")
        if abs(trial["total"] - trial["x"] * trial["steps_done"]) > 1e-3:
            found.append(f"{trial['steps_done']} steps of {trial['x']} have the total {trial['total']}")
    if not program.fails_for_good and any(trial["status"] == "ERROR" for trial in policy):
        found.append(f"trials failed although max_failures={program.max_failures} allows their failures")
    for trial in policy:  # under a policy, a lost node does not count as a failure
        if _has_failed_by_itself(program, trial):
            found.append(f"the trial with x={trial['x']} failed")
    fields = _comparable_fields(program)
    ours, theirs = _counts_by_fields(policy, fields), _counts_by_fields(plain, fields)
    if ours != theirs:
        found.append(f"{fields}: only plain {list(theirs - ours)}, only policy {list(ours - theirs)}")
    return found


def _counts_by_fields(trials: Sequence[Outcome], fields: Sequence[str]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(trial[field] for field in fields) for trial in trials)


def _has_failed_by_itself(program: Program, trial: Outcome) -> bool:
    """Return whether a trial failed that the program does not let fail. With PBT, any trial may copy a failing one."""
    if not trial["failures"]:
        return False
    if program.failure is None:
        return True
    is_copy = program.scheduler.startswith("pbt")
    return bool(trial["x"] >= program.failure.below and not is_copy)


def _comparable_fields(program: Program) -> list[str]:
    """Return the fields of a trial that do not depend on the order of results or the times of events."""
    fields = {"x", "y", "steps_done", "total", "status", "failures"}
    if program.searcher in ("optuna", "hyperopt"):  # their suggestions depend on the order of results
        fields -= {"x", "y", "total"}
        if program.failure is not None:  # the config decides whether a trial fails
            fields = set()
    if program.scheduler in ("asha", "median", "hyperband"):  # they stop trials depending on the order of results
        fields -= {"steps_done", "total", "status", "failures"}
    if program.scheduler.startswith("pbt"):  # trials copy other trials
        fields = set()
    if program.leaves:
        fields -= {"steps_done", "total", "status", "failures"}
    return sorted(fields)


def _print_summary(records: Sequence[Mapping[str, Any]]) -> None:
    table = empty_table("Programs with plain Tune and under a policy", "Result", "Programs", "Seeds")
    for verdict in (_AGREES, *COUNTEREXAMPLES, _NO_CLAIM):
        seeds = [str(record["seed"]) for record in records if record["verdict"] == verdict]
        listed = "" if verdict == _AGREES else " ".join(seeds)
        table.add_row(verdict, str(len(seeds)), listed)
    TextConsole(width=110).print(table)
    done = [record for record in records if record["verdict"] in (_AGREES, _SLOW)]
    plain_s = sum(record["plain"]["seconds"] for record in done)
    policy_s = sum(record["policy"]["seconds"] for record in done)
    print(f"programs that ended in both runs: {plain_s:.0f} s with plain Tune, {policy_s:.0f} s under a policy")
    print(f"{describe_machine()}\ncommand: {own_command()}")
