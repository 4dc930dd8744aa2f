"""Tests that lint reports no false findings in KubeRay's samples. Without the samples, these tests are skipped.

The environment variable ``TUNE_POLICIES_KUBERAY_SAMPLES`` contains the path of the folder with the samples.
"""

import os
from pathlib import Path

import pytest

from tune_policies.kuberay.lint.linting import lint_file

SAMPLES = Path(os.environ.get("TUNE_POLICIES_KUBERAY_SAMPLES") or "no-samples")
FILES = sorted(SAMPLES.glob("*.yaml"))

needs_samples = pytest.mark.skipif(not FILES, reason="set TUNE_POLICIES_KUBERAY_SAMPLES to the folder of the samples")
each_sample = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

NOTES = {
    # The head of these clusters runs trials in addition to the workers with TPUs.
    "head-runs-trials": {
        "ray-cluster.tpu-v4-singlehost",
        "ray-cluster.tpu-v6e-256-multihost",
        "ray-job.tpu-v6e-16-multihost",
        "ray-job.tpu-v6e-singlehost",
        "ray-service.tpu-single-host",
    },
    # This project was not tested with Ray 2.46.
    "ray-not-supported": {"ray-job.pytorch-distributed-training", "ray-service.mobilenet"},
    # The workers request 1 GiB of memory, but may use 4 GiB.
    "memory-not-reserved": {"ray-service.incremental-upgrade"},
    # The group has 1 to 10 slices, but the cluster has no autoscaler.
    "never-scales-up": {"ray-service.tpu-single-host"},
}
"""The samples for which lint reports each note. All of these notes are correct."""


@needs_samples
@each_sample
def test_an_official_sample_has_no_false_finding(path: Path) -> None:
    assert [each for each in lint_file(path) if each.severity != "note"] == []


@needs_samples
def test_lint_reports_only_the_expected_notes_on_the_samples() -> None:
    notes: dict[str, set[str]] = {}
    for path in FILES:
        for each in lint_file(path):
            notes.setdefault(each.rule, set()).add(path.stem)

    assert notes == NOTES
