"""KubeRay's samples are read and explained without false findings. Without the samples, these tests are skipped.

``TUNE_POLICIES_KUBERAY_SAMPLES`` names their folder, and ``TUNE_POLICIES_CRDS`` that of the official definitions.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.package.kuberay_crds import load_definitions, problems
from tests.unit.planted.sound import SOUND
from tune_policies.files.yaml_documents import Document, read_documents
from tune_policies.kuberay.lint.linting import lint_file
from tune_policies.kuberay.reading.documents import clusters_in

SAMPLES = Path(os.environ.get("TUNE_POLICIES_KUBERAY_SAMPLES") or "no-samples")
DEFINITIONS = Path(os.environ.get("TUNE_POLICIES_CRDS") or "no-definitions")
FILES = sorted(SAMPLES.glob("*.yaml"))

needs_samples = pytest.mark.skipif(not FILES, reason="set TUNE_POLICIES_KUBERAY_SAMPLES to the folder of the samples")
needs_definitions = pytest.mark.skipif(
    not DEFINITIONS.is_dir(), reason="set TUNE_POLICIES_CRDS to the folder of the CRDs"
)
each_sample = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

NOTES = {
    # Correct: the head of these clusters runs trials in addition to the workers with TPUs.
    "head-runs-trials": {
        "ray-cluster.tpu-v4-singlehost",
        "ray-cluster.tpu-v6e-256-multihost",
        "ray-job.tpu-v6e-16-multihost",
        "ray-job.tpu-v6e-singlehost",
        "ray-service.tpu-single-host",
    },
    # This project was not tested with Ray 2.46.
    "ray-not-supported": {"ray-job.pytorch-distributed-training", "ray-service.mobilenet"},
    # Its workers may use 4 GiB but request 1 GiB.
    "memory-not-reserved": {"ray-service.incremental-upgrade"},
    # 1 to 10 slices without an autoscaler.
    "never-scales-up": {"ray-service.tpu-single-host"},
}
"""The samples with each note. All notes are correct."""


def _documents() -> Iterator[Document]:
    for path in FILES:
        yield from read_documents(path.read_text(encoding="utf-8"), path.stem)


@needs_samples
@each_sample
def test_an_official_sample_has_no_false_finding(path: Path) -> None:
    assert [each for each in lint_file(path) if each.severity != "note"] == []


@needs_samples
def test_the_notes_on_the_samples_are_expected() -> None:
    notes: dict[str, set[str]] = {}
    for path in FILES:
        for each in lint_file(path):
            notes.setdefault(each.rule, set()).add(path.stem)

    assert notes == NOTES


@needs_samples
def test_every_cluster_of_the_samples_is_read() -> None:
    of_ray = [each for each in _documents() if each.data.get("kind") in ("RayCluster", "RayJob", "RayService")]

    assert [each.source for each in of_ray if len(clusters_in(each)[0]) != 1] == []


@needs_definitions
def test_valid_files_match_every_official_definition() -> None:
    definitions = load_definitions(DEFINITIONS)

    sound = [yaml.safe_load(text) for text in SOUND.values()]
    wrong = [problem for each in sound if each.get("kind") in definitions for problem in problems(definitions, each)]
    assert wrong == []
