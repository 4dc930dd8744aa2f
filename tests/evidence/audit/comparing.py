"""Audits small programs, runs each again under the policy that the audit names, and compares the gains."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tune_policies.trainers.usage.advice import Advice
from tune_policies.trainers.usage.audit_callback import AuditCallback
from tune_policies.trainers.usage.resource_usage import ResourceUsage
from tune_policies.trainers.usage.run_monitor import RunMonitor

TOLERANCE = 0.15
"""The maximum relative difference between the gain and the estimate."""

_RECORD = "AUDIT_RECORD"


class RecordingAudit(AuditCallback):
    """Also writes the advice to the file that an environment variable names."""

    def _show(self, run: RunMonitor, usage: ResourceUsage) -> None:
        super()._show(run, usage)
        advice = run.advice
        found: dict[str, Any] = {"why": str(advice)}
        if isinstance(advice, Advice):
            found |= {"policy": repr(advice.policy), "file": advice.policy.to_yaml(), "speedup": advice.speedup}
            found |= {"at_once": advice.at_once, "instead_of": advice.instead_of}
        Path(os.environ[_RECORD]).write_text(json.dumps(found))


def run_program(command: Sequence[str], folder: Path, *, audit: bool) -> float:
    """Run a program in ``folder``, and return the duration of its run of Tune, in seconds.

    ``command`` contains the arguments of Python, and ``{folder}`` stands for the folder of results.
    """
    folder.mkdir()
    environment = {**os.environ, _RECORD: str(folder / "advice.json"), "RAY_TUNE_CALLBACKS": ""}
    if audit:
        environment["RAY_TUNE_CALLBACKS"] = f"{__name__}.RecordingAudit"
    arguments = [part.replace("{folder}", str(folder)) for part in command]
    with Path(folder, "output").open("w") as output:
        subprocess.run(
            [sys.executable, *arguments], env=environment, stdout=output, stderr=output, check=True, timeout=600
        )
    return float((folder / "took").read_text())


def estimate_and_gain(program: Sequence[str], folder: Path) -> tuple[dict[str, Any], float, float | None]:
    """Return the advice of an audit, the duration with the audit, and the duration under the advised policy."""
    plain_s = run_program(program, folder / "plain", audit=True)
    advice = json.loads((folder / "plain" / "advice.json").read_text())
    if not advice.get("speedup"):
        return advice, plain_s, None
    policy = folder / "policy.yaml"
    policy.write_text(advice["file"])
    under_policy = ["-m", "tune_policies", "exec", str(policy), *program]
    return advice, plain_s, run_program(under_policy, folder / "policy", audit=False)


def measure_audit(names: Sequence[str]) -> bool:
    """Audit the programs, and return whether all gains are within 15 % of the estimates."""
    view = Table("Program", "Plain Tune", "Named policy", "At once", "Estimate", "Under it", "Gain", "Within 15 %")
    console = Console(width=160)
    is_sound = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="audit") as folder:
            program = ["-m", "tests.evidence.audit.programs", name, "{folder}"]
            advice, plain_s, policy_s = estimate_and_gain(program, Path(folder))
        if policy_s is None:
            view.add_row(name, f"{plain_s:.0f} s", advice["why"])
            console.print(name, f"{plain_s:.1f} s", advice["why"])
            continue
        gain = plain_s / policy_s
        is_within = abs(gain / advice["speedup"] - 1) <= TOLERANCE
        is_sound &= is_within
        row = (
            *(name, f"{plain_s:.0f} s", advice["policy"], f"{advice['instead_of']} → {advice['at_once']}"),
            *(f"{advice['speedup']:.2f}", f"{policy_s:.0f} s", f"{gain:.2f}", "yes" if is_within else "no"),
        )
        console.print(*row)
        view.add_row(*row)
    console.print(view)
    return is_sound
