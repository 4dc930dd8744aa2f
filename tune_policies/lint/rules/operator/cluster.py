"""What the operator refuses of a cluster as a whole: options that need another, and things said in two places."""

import re
from collections.abc import Iterator

from tune_policies.lint.rule import Found, Rule, RuleSet
from tune_policies.lint.rules.parts import (
    AUTOSCALER_V2,
    is_autoscaling,
)
from tune_policies.lint.rules.pods import groups_of, head_of
from tune_policies.lint.rules.sources import API, VALIDATION
from tune_policies.manifests.cluster_in_file import ClusterInFile

_RAY_IMAGE = re.compile(r"(?:.*/)?ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)(?:[-.].*)?")


def _version_of_image(cluster: ClusterInFile) -> Iterator[Found]:
    wanted = cluster.spec.rayVersion
    if wanted is None or re.fullmatch(r"\d+\.\d+\.\d+", wanted) is None:
        return
    for group in groups_of(cluster.spec):
        image = group.container.image
        if image and (found := _RAY_IMAGE.fullmatch(image)) and found[1] != wanted:
            yield Found(
                (*group.container_path, "image"),
                f"{group.name} has Ray {found[1]} in its image, but rayVersion is {wanted}",
                "write the image's version in rayVersion, and the same image version in all groups",
            )


def _v2_in_environment(cluster: ClusterInFile) -> Iterator[Found]:
    head = head_of(cluster.spec)
    for number, variable in enumerate(head.container.env):
        if variable.name != AUTOSCALER_V2:
            continue
        if not is_autoscaling(cluster.spec) and variable.value in ("1", "true"):
            message = f"the head has {AUTOSCALER_V2}={variable.value}, but enableInTreeAutoscaling is not true"
            yield Found((*head.container_path, "env", number), message, "write enableInTreeAutoscaling: true")
        elif is_autoscaling(cluster.spec) and cluster.spec.autoscalerOptions.version:
            message = f"autoscalerOptions.version is said, and {AUTOSCALER_V2} in the head's environment too"
            yield Found((*head.container_path, "env", number), message, "keep autoscalerOptions.version alone")


def _options_unused(cluster: ClusterInFile) -> Iterator[Found]:
    options = cluster.spec.autoscalerOptions
    if not is_autoscaling(cluster.spec) and (said := sorted(options.model_fields_set | set(options.model_extra or {}))):
        yield Found(
            ("autoscalerOptions",),
            f"autoscalerOptions has {', '.join(said)}, but enableInTreeAutoscaling is not true",
            "write enableInTreeAutoscaling: true, or leave autoscalerOptions out",
        )


RULES: RuleSet = (
    Rule(
        "version-of-image",
        "warning",
        "Head and workers must run the same Ray, and the operator decides by rayVersion what it may use.",
        f"{API} (RayClusterSpec.rayVersion)",
        _version_of_image,
    ),
    Rule(
        "autoscaler-v2-twice",
        "error",
        "The operator refuses the variable without an autoscaler, and beside autoscalerOptions.version.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _v2_in_environment,
    ),
    Rule(
        "autoscaler-options-unused",
        "note",
        "Without an autoscaler nobody reads them: the numbers of pods stay as they are.",
        f"{API} (RayClusterSpec.enableInTreeAutoscaling)",
        _options_unused,
    ),
)
