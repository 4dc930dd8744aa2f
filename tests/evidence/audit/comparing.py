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

from tune_policies import LearningPolicy
from tune_policies.trainers.usage.advice import LEAST_GAIN, Advice
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


def estimate_and_gain(program: Sequence[str], folder: Path) -> tuple[dict[str, Any], float, float]:
    """Return the advice of an audit, the duration with the audit, and the duration under the advised policy.

    If the audit names no policy, the program runs under ``LearningPolicy()``.
    """
    plain_s = run_program(program, folder / "plain", audit=True)
    advice = json.loads((folder / "plain" / "advice.json").read_text())
    policy = folder / "policy.yaml"
    policy.write_text(advice.get("file", LearningPolicy().to_yaml()))
    under_policy = ["-m", "tune_policies", "exec", str(policy), *program]
    return advice, plain_s, run_program(under_policy, folder / "policy", audit=False)


def is_confirmed(speedup: float | None, gain: float) -> bool:
    """Return whether the gain is within 15 % of the estimate.

    Without an estimate, no policy was named because none is 1.1 times as fast, so the gain must not be higher.
    """
    if speedup is None:
        return gain <= LEAST_GAIN * (1 + TOLERANCE)
    return abs(gain / speedup - 1) <= TOLERANCE


def measure_audit(names: Sequence[str]) -> bool:
    """Audit the programs, and return whether all gains are within 15 % of the estimates."""
    view = Table("Program", "Named policy", "At once", "Plain Tune", "Under it", "Estimate", "Gain", "Within 15 %")
    console = Console(width=160)
    is_sound = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="audit") as folder:
            program = ["-m", "tests.evidence.audit.programs", name, "{folder}"]
            advice, plain_s, policy_s = estimate_and_gain(program, Path(folder))
        speedup = advice.get("speedup")
        gain = plain_s / policy_s
        is_within = is_confirmed(speedup, gain)
        is_sound &= is_within
        policy, at_once, estimate = "none (LearningPolicy() measured)", "", f"below {LEAST_GAIN:g}"
        if speedup is None:
            console.print(name, advice["why"])
        else:
            policy = advice["policy"]
            at_once = f"{advice['instead_of']} → {advice['at_once']}"
            estimate = f"{speedup:.2f}"
        times = f"{plain_s:.0f} s", f"{policy_s:.0f} s"
        row = (name, policy, at_once, *times, estimate, f"{gain:.2f}", "yes" if is_within else "no")
        console.print(*row)
        view.add_row(*row)
    console.print(view)
    return is_sound
