"""Rules for values of KubeRay's chart ``ray-cluster``, beside those for the cluster that the chart makes of them."""

from collections.abc import Iterator
from typing import Final

from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.rule import VALUES, DocumentRule, Found
from tune_policies.kuberay.lint.rules.cluster_parts import mapping
from tune_policies.kuberay.manifests.chart_values import unknown_keys


def _unknown_key(document: Document) -> Iterator[Found]:
    for path, near in unknown_keys(dict(mapping(document.data))):
        yield Found(path, f"{path[-1]} is nothing that the chart reads{near}", "leave it out, or correct the name")


RULES: Final = (
    DocumentRule(
        "chart-key-unknown",
        "note",
        "Helm passes over values that no template names. Known are the keys of the chart's versions up to 1.7.",
        "https://github.com/ray-project/kuberay/tree/v1.7.0/helm-chart/ray-cluster",
        (VALUES,),
        _unknown_key,
    ),
)
