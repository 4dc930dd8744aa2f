"""Rules of Kubernetes for parts of pods: names, images, variables, volumes, tolerations, affinities and claims.

They follow ``pkg/apis/core/validation/validation.go`` of Kubernetes. Its OpenAPI definitions are checked in
:mod:`tune_policies.kuberay.lint.pod_schema`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.lint.pod_schema import PodTemplate, as_list, as_mapping
from tune_policies.kuberay.lint.rule import Found, Rule
from tune_policies.kuberay.lint.template_rule import VALIDATION, is_filled_in_later, template_rule
from tune_policies.values.wording import shorten, suggest

RULES: Final[list[Rule]] = []

# These are ``IsDNS1123Label``, ``IsValidLabelValue`` and ``IsQualifiedName`` in
# k8s.io/apimachinery/pkg/util/validation.
_LABEL_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_QUALIFIED_NAME: Final = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)

_Problem: TypeAlias = tuple[Path, str, str]
"""The path below the template, a message that continues the name of the pod, and a fix."""


@template_rule(RULES, "pod-refused", "error", VALIDATION)
def _pod_refused(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    for find in _CHECKS:
        for path, message, fix in find(template):
            yield Found((*template.path, *path), f"{template.name} {message}", fix)


def _names(template: PodTemplate) -> Iterator[_Problem]:
    top = len(template.path)
    fix = "use lower-case letters, digits and dashes, with a letter or digit at both ends"
    for path, container in template.containers:
        name = container.get("name")
        if isinstance(name, str) and name and not _LABEL_NAME.fullmatch(name) and not is_filled_in_later(name):
            yield (*path[top:], "name"), f"has the container name {shorten(name)}, which is not valid", fix
        # An initial container that always restarts is a sidecar, which may have probes:
        # https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/.
        if path[-2] == "initContainers" and container.get("restartPolicy") != "Always":
            for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
                if container.get(field) is not None:
                    yield (*path[top:], field), f"has a {field} in an initial container", f"remove {field}"
    for number, volume in enumerate(as_list(template.spec.get("volumes"))):
        name = as_mapping(volume).get("name")
        if isinstance(name, str) and not _LABEL_NAME.fullmatch(name) and not is_filled_in_later(name):
            path = ("spec", "volumes", number, "name")
            yield path, f"has the volume name {shorten(name)}, which is not valid", fix


_IMAGE_NAME: Final = re.compile(r"[a-z0-9./_:-]+")
"""Matches the name of a repository, with its registry. Only a tag may contain upper-case letters."""


def _has_upper_case(repository: str) -> bool:
    """Return whether only upper-case letters make the name of a repository invalid. Placeholders have no others."""
    is_placeholder = repository == repository.upper()
    return (
        not is_placeholder and not _IMAGE_NAME.fullmatch(repository) and bool(_IMAGE_NAME.fullmatch(repository.lower()))
    )


def _images(template: PodTemplate) -> Iterator[_Problem]:
    for path, container in template.containers:
        image, where = container.get("image"), (*path[len(template.path) :], "image")
        if not image:
            yield (
                where,
                f"has no image for its container {shorten(container.get('name'))}",
                "write the image, such as image: rayproject/ray:2.60.0",
            )
            continue
        if not isinstance(image, str) or is_filled_in_later(image):
            continue
        # Without the tag and the digest. The first part is a registry if it is a host name.
        registry, _, path_in_registry = re.sub(r"@.*|:[^/]*\Z", "", image.strip()).partition("/")
        has_host = path_in_registry and re.search(r"[.:]|^localhost$", registry)
        repository = path_in_registry if has_host else f"{registry}/{path_in_registry}"
        if image != image.strip():
            yield where, f"has spaces around the image {image!r}", "remove the spaces"
        elif _has_upper_case(repository):
            yield where, f"has the image {shorten(image)}, whose name is not valid", "write the name in lower case"


def _labels(template: PodTemplate) -> Iterator[_Problem]:
    fix = "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    for path in (("metadata", "labels"), ("spec", "nodeSelector")):
        for key, value in as_mapping(as_mapping(template.data.get(path[0])).get(path[1])).items():
            if not _QUALIFIED_NAME.fullmatch(key) and not is_filled_in_later(key):
                yield (*path, key), f"has the label {shorten(key)}, whose name is not valid", fix
            if isinstance(value, str) and not _LABEL_VALUE.fullmatch(value) and not is_filled_in_later(value):
                yield (*path, key), f"has the value {shorten(value)} for the label {key}, which is not valid", fix


def _users(template: PodTemplate) -> Iterator[_Problem]:
    of_pod = as_mapping(template.spec.get("securityContext"))
    for path, container in template.containers:
        own = as_mapping(container.get("securityContext"))
        # The settings of a container take precedence over those of the pod.
        context = {**of_pod, **{key: value for key, value in own.items() if value is not None}}
        if context.get("runAsNonRoot") is True and context.get("runAsUser") == 0:
            where = path[len(template.path) :] if "runAsUser" in own else ("spec",)
            message = "has runAsNonRoot: true, but runAsUser 0 is root"
            yield (*where, "securityContext", "runAsUser"), message, "write the ID of another user, such as 1000"


_OF_VARIABLES: Final = (
    *(f"metadata.{name}" for name in ("name", "namespace", "uid")),
    *(f"spec.{name}" for name in ("nodeName", "serviceAccountName")),
    *(f"status.{name}" for name in ("hostIP", "hostIPs", "podIP", "podIPs")),
)
_OF_FILES: Final = tuple(f"metadata.{name}" for name in ("annotations", "labels", "name", "namespace", "uid"))


def _field_problem(reference: object, where: Path, known: tuple[str, ...]) -> Iterator[_Problem]:
    """Yield the problem of a ``fieldRef``. The names of a label and an annotation are not checked."""
    field = as_mapping(reference).get("fieldPath")
    # A label or an annotation is written as ``metadata.labels['name']``.
    if isinstance(field, str) and field not in known and "['" not in field:
        message = f"reads the field {shorten(field)}, which is not available{suggest(field, known)}"
        yield (*where, "fieldPath"), message, f"write one of {', '.join(known)}"


def _environment(template: PodTemplate) -> Iterator[_Problem]:
    names = [container.get("name") for _, container in template.containers]
    for path, container in template.containers:
        for number, variable in enumerate(as_list(container.get("env"))):
            variable = as_mapping(variable)
            where, name = (*path[len(template.path) :], "env", number), shorten(variable.get("name"))
            sources = [key for key, value in as_mapping(variable.get("valueFrom")).items() if value is not None]
            # An empty value next to a source is valid, because it is the default.
            if variable.get("value") and sources:
                yield where, f"sets both value and valueFrom of the variable {name}", "write only one of them"
            elif isinstance(variable.get("valueFrom"), Mapping) and len(sources) != 1:
                yield (*where, "valueFrom"), f"must have exactly one source for the variable {name}", "write one source"
            source = as_mapping(variable.get("valueFrom"))
            yield from _field_problem(source.get("fieldRef"), (*where, "valueFrom", "fieldRef"), _OF_VARIABLES)
            of = as_mapping(source.get("resourceFieldRef")).get("containerName")
            if isinstance(of, str) and of and of not in names:
                field = (*where, "valueFrom", "resourceFieldRef", "containerName")
                yield field, f"reads the resources of {of!r}, but has no such container", "write a container's name"


def _volumes(template: PodTemplate) -> Iterator[_Problem]:
    for number, volume in enumerate(as_list(template.spec.get("volumes"))):
        sources = [key for key, value in as_mapping(volume).items() if key != "name" and value is not None]
        if len(sources) > 1:
            name = shorten(as_mapping(volume).get("name"))
            message = f"has {len(sources)} sources for the volume {name}: {', '.join(map(str, sources))}"
            yield ("spec", "volumes", number), message, "write only one of them"


_ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")

_MOST_PERMISSIONS: Final = 0o777


def _parts_of_volumes(template: PodTemplate) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield each volume and each source of a projected volume, with its path below the template."""
    for number, volume in enumerate(as_list(template.spec.get("volumes"))):
        path: Path = ("spec", "volumes", number)
        yield path, as_mapping(volume)
        projected = as_mapping(as_mapping(volume).get("projected"))
        for at, source in enumerate(as_list(projected.get("sources"))):
            yield (*path, "projected", "sources", at), as_mapping(source)


def _mounts(template: PodTemplate) -> Iterator[_Problem]:
    for path, container in template.containers:
        for number, mount in enumerate(as_list(container.get("volumeMounts"))):
            where, mount = (*path[len(template.path) :], "volumeMounts", number), as_mapping(mount)
            if ":" in str(mount.get("mountPath")):
                yield (*where, "mountPath"), f"has the mountPath {mount['mountPath']!r}", "use a path without ':'"
            inside = str(mount.get("subPath") or "")
            if inside.startswith("/") or ".." in inside.split("/"):
                fix = "use a relative path without '..'"
                yield (*where, "subPath"), f"has the subPath {inside!r}, which leaves the volume", fix
    for path, volume in _parts_of_volumes(template):
        yield from _permissions(path, volume)
        for at, item in enumerate(as_list(as_mapping(volume.get("downwardAPI")).get("items"))):
            where = (*path, "downwardAPI", "items", at, "fieldRef")
            yield from _field_problem(as_mapping(item).get("fieldRef"), where, _OF_FILES)
        claim = as_mapping(as_mapping(volume.get("ephemeral")).get("volumeClaimTemplate"))
        for at, mode in enumerate(as_list(as_mapping(claim.get("spec")).get("accessModes"))):
            if mode not in _ACCESS_MODES:
                where = (*path, "ephemeral", "volumeClaimTemplate", "spec", "accessModes", at)
                yield where, f"has the access mode {shorten(mode)}", f"write one of {', '.join(_ACCESS_MODES)}"


def _permissions(path: Path, volume: Mapping[str, Any]) -> Iterator[_Problem]:
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        part = as_mapping(volume.get(source))
        modes: list[tuple[Path, object]] = [((*path, source, "defaultMode"), part.get("defaultMode"))]
        for at, item in enumerate(as_list(part.get("items"))):
            modes.append(((*path, source, "items", at, "mode"), as_mapping(item).get("mode")))
        for where, mode in modes:
            if isinstance(mode, int) and not 0 <= mode <= _MOST_PERMISSIONS:
                fix = "write 0644"
                if re.fullmatch("[0-7]{3}", str(mode)):  # 644 instead of 0644 is a decimal number
                    fix = f"write 0{mode}, with a leading 0"
                yield where, f"has the permissions {mode}, which are above 0777 (511)", fix


def _tolerations(template: PodTemplate) -> Iterator[_Problem]:
    for number, toleration in enumerate(as_list(template.spec.get("tolerations"))):
        toleration, where = as_mapping(toleration), ("spec", "tolerations", number)
        # ``validateTolerations`` in Kubernetes. The operator is ``Equal`` if it is missing.
        is_exists = toleration.get("operator") == "Exists"
        if is_exists and toleration.get("value"):
            yield (*where, "value"), "has a toleration with operator Exists and a value", "remove the value"
        if not toleration.get("key") and not is_exists:
            yield where, "has a toleration without a key", "write a key, or operator: Exists"
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            message = "has a toleration with tolerationSeconds, but without effect: NoExecute"
            yield (*where, "tolerationSeconds"), message, "write effect: NoExecute, or remove tolerationSeconds"


def node_requirements(template: PodTemplate) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the requirements of the node affinity that nodes must or should meet, each with its path below it."""
    affinity = as_mapping(as_mapping(template.spec.get("affinity")).get("nodeAffinity"))
    top: Path = ("spec", "affinity", "nodeAffinity")
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    terms: list[tuple[Path, object]] = []
    for number, term in enumerate(as_list(as_mapping(affinity.get(required)).get("nodeSelectorTerms"))):
        terms.append(((*top, required, "nodeSelectorTerms", number), term))
    for number, term in enumerate(as_list(affinity.get(preferred))):
        terms.append(((*top, preferred, number, "preference"), as_mapping(term).get("preference")))
    for path, term in terms:
        for number, requirement in enumerate(as_list(as_mapping(term).get("matchExpressions"))):
            yield (*path, "matchExpressions", number), as_mapping(requirement)


def _node_affinity(template: PodTemplate) -> Iterator[_Problem]:
    for path, requirement in node_requirements(template):
        operator, values = requirement.get("operator"), as_list(requirement.get("values"))
        key = shorten(requirement.get("key"))
        if operator in ("In", "NotIn") and not values:
            yield path, f"has a node affinity for {key} with operator {operator}, but no values", "write values"
        if operator in ("Exists", "DoesNotExist") and values:
            yield (*path, "values"), f"has a node affinity for {key} with {operator} and values", "remove values"
        if operator in ("Gt", "Lt") and len(values) != 1:
            yield path, f"has a node affinity for {key} with {operator}, which needs one value", "write one number"


def _spreads_and_weights(template: PodTemplate) -> Iterator[_Problem]:
    for number, spread in enumerate(as_list(template.spec.get("topologySpreadConstraints"))):
        skew = as_mapping(spread).get("maxSkew")
        if isinstance(skew, int) and skew < 1:
            path = ("spec", "topologySpreadConstraints", number, "maxSkew")
            yield path, f"has maxSkew {skew}", "write a number of 1 or more"
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        of_kind = as_mapping(as_mapping(template.spec.get("affinity")).get(kind))
        for number, term in enumerate(as_list(of_kind.get(field))):
            weight = as_mapping(term).get("weight")
            if isinstance(weight, int) and not 1 <= weight <= 100:
                of_weight = ("spec", "affinity", kind, field, number, "weight")
                yield of_weight, f"has a preference with weight {weight}", "write a number from 1 to 100"


def _claims(template: PodTemplate) -> Iterator[_Problem]:
    listed = [as_mapping(claim) for claim in as_list(template.spec.get("resourceClaims"))]
    names = [str(claim.get("name")) for claim in listed]
    for number, claim in enumerate(listed):
        sources = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(key)]
        if len(sources) != 1:
            message = f"has {len(sources)} sources for the resource claim {names[number]!r}"
            fix = "write either resourceClaimName or resourceClaimTemplateName"
            yield ("spec", "resourceClaims", number), message, fix
    for path, container in template.containers:
        resources = as_mapping(container.get("resources"))
        for number, claim in enumerate(as_list(resources.get("claims"))):
            name = as_mapping(claim).get("name")
            if isinstance(name, str) and name not in names:
                message = f"uses the resource claim {name!r}, which its pod does not have{suggest(name, names)}"
                where = (*path[len(template.path) :], "resources", "claims", number, "name")
                yield where, message, f"add {name!r} to spec.resourceClaims"


def _job_pods(template: PodTemplate) -> Iterator[_Problem]:
    # Kubernetes allows only Never and OnFailure for the pods of a Job:
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/.
    is_job = template.path[-1:] == ("submitterPodTemplate",)
    if is_job and template.spec.get("restartPolicy") == "Always":
        yield ("spec", "restartPolicy"), "has restartPolicy: Always, but runs in a Job", "write restartPolicy: Never"


_CHECKS: Final = (
    *(_names, _images, _labels, _users, _environment, _volumes, _mounts),
    *(_tolerations, _node_affinity, _spreads_and_weights, _claims, _job_pods),
)
