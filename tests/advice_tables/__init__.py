"""The messages with an advice, by subject: one module per table, and helpers that several tables use."""

from . import (
    benchmarks,
    commands,
    doctor,
    files,
    lint_clusters,
    lint_devices,
    lint_fields,
    lint_pod_templates,
    lint_pods,
    manifests,
    measurements,
    plans,
    policies,
    probe,
    runs,
)

TABLES = {
    "benchmarks": benchmarks.TABLE,
    "commands": commands.TABLE,
    "doctor": doctor.TABLE,
    "files": files.TABLE,
    "lint_clusters": lint_clusters.TABLE,
    "lint_devices": lint_devices.TABLE,
    "lint_fields": lint_fields.TABLE,
    "lint_pod_templates": lint_pod_templates.TABLE,
    "lint_pods": lint_pods.TABLE,
    "manifests": manifests.TABLE,
    "measurements": measurements.TABLE,
    "plans": plans.TABLE,
    "policies": policies.TABLE,
    "probe": probe.TABLE,
    "runs": runs.TABLE,
}
"""The tables by the names of their modules."""
