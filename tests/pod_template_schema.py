"""Writes the schema of pod templates from Kubernetes' own OpenAPI definitions: ``make pod-template-schema``.

The definitions come from the package kubernetes-validate, which contains them for each version of Kubernetes. A field
counts as known if one of the versions has it. Descriptions are removed, and each definition is one line of the file.
"""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

VERSIONS: Final = tuple(f"v1.{minor}.0" for minor in range(30, 38))

_ROOT: Final = "PodTemplateSpec"

_ALWAYS_NEVER: Final = ["Always", "Never", "IfNotPresent"]
_SELECTOR_OPERATORS: Final = ["In", "NotIn", "Exists", "DoesNotExist"]
_HUGE_PAGES: Final = ("64Ki", "2Mi", "32Mi", "512Mi", "1Gi", "16Gi")
_PROFILES: Final = ["Localhost", "RuntimeDefault", "Unconfined"]

# Kubernetes publishes its definitions without enumerations. These are the constants of
# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/api/core/v1/types.go, as far as
# pkg/apis/core/validation/validation.go or the kubelet refuses other values. An empty text counts as a missing field.
# They were compared with the constants of github.com/kubernetes/api of July 2026.
ENUMS: Final[dict[str, dict[str, list[str]]]] = {
    "AppArmorProfile": {"type": _PROFILES},
    "Container": {
        "imagePullPolicy": _ALWAYS_NEVER,
        "restartPolicy": ["Always", "Never", "OnFailure"],
        "terminationMessagePolicy": ["File", "FallbackToLogsOnError"],
    },
    "ContainerPort": {"protocol": ["TCP", "UDP", "SCTP"]},
    "ContainerResizePolicy": {"restartPolicy": ["NotRequired", "RestartContainer"]},
    # The kubelet fails to create a volume with another medium.
    "EmptyDirVolumeSource": {"medium": ["Memory", "HugePages", *(f"HugePages-{size}" for size in _HUGE_PAGES)]},
    "HTTPGetAction": {"scheme": ["HTTP", "HTTPS"]},
    "HostPathVolumeSource": {
        "type": ["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"]
    },
    "ImageVolumeSource": {"pullPolicy": _ALWAYS_NEVER},
    "LabelSelectorRequirement": {"operator": _SELECTOR_OPERATORS},
    "NodeSelectorRequirement": {"operator": [*_SELECTOR_OPERATORS, "Gt", "Lt"]},
    "PersistentVolumeClaimSpec": {"volumeMode": ["Block", "Filesystem"]},
    "PodOS": {"name": ["linux", "windows"]},
    "PodSecurityContext": {
        "fsGroupChangePolicy": ["Always", "OnRootMismatch"],
        "supplementalGroupsPolicy": ["Merge", "Strict"],
        "seLinuxChangePolicy": ["MountOption", "Recursive"],
    },
    "PodSpec": {
        "dnsPolicy": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
        "preemptionPolicy": ["Never", "PreemptLowerPriority"],
        "restartPolicy": ["Always", "OnFailure", "Never"],
    },
    "SeccompProfile": {"type": _PROFILES},
    "SecurityContext": {"procMount": ["Default", "Unmasked"]},
    "Toleration": {
        "effect": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
        "operator": ["Exists", "Equal", "Gt", "Lt"],
    },
    "TopologySpreadConstraint": {
        "nodeAffinityPolicy": ["Honor", "Ignore"],
        "nodeTaintsPolicy": ["Honor", "Ignore"],
        "whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
    },
    "VolumeMount": {
        "mountPropagation": ["None", "HostToContainer", "Bidirectional"],
        "recursiveReadOnly": ["Disabled", "IfPossible", "Enabled"],
    },
}

_KEPT: Final = ("type", "required", "items", "additionalProperties", "format")


def _read(package: Path, version: str) -> dict[str, Any]:
    """Return the definitions of a version, by the last part of their names in the API groups that pods use."""
    with zipfile.ZipFile(package) as files:
        name = f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict/_definitions.json"
        found: dict[str, Any] = json.loads(files.read(name))["$defs"]
    groups = ("io.k8s.api.core.v1.", "io.k8s.apimachinery.pkg.")
    return {key.rpartition(".")[2]: value for key, value in found.items() if key.startswith(groups)}


def _compact(schema: Any) -> Any:
    """Return a schema without descriptions, with quantities as a format."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition(".")[2]
        if name in ("Quantity", "IntOrString"):
            kind = "number" if name == "Quantity" else "integer"
            return {"type": ["string", kind, "null"], "format": name}
        return {"$ref": f"#/$defs/{name}"}
    found = {key: _compact(schema[key]) for key in _KEPT if key in schema}
    if "properties" in schema:
        found["properties"] = {name: _compact(value) for name, value in schema["properties"].items()}
    return found


def _merge(versions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the definitions of several versions with the fields of all of them. Newer versions take precedence."""
    merged: dict[str, Any] = {}
    for definitions in versions:
        for name, definition in definitions.items():
            compact = _compact(definition)
            fields = {**merged.get(name, {}).get("properties", {}), **compact.get("properties", {})}
            required = set(compact.get("required", ())) & set(merged.get(name, compact).get("required", ()))
            merged[name] = {**compact, **({"properties": fields} if fields else {})}
            merged[name].pop("required", None)
            if required:
                merged[name]["required"] = sorted(required)
    return merged


def _reachable(definitions: dict[str, Any], name: str, found: set[str]) -> None:
    if name not in found:
        found.add(name)
        for part in json.dumps(definitions[name]).split('"#/$defs/')[1:]:
            _reachable(definitions, part.partition('"')[0], found)


def pod_template_schema(package: Path) -> str:
    """Return the text of the schema file.

    Args:
        package: The wheel of kubernetes-validate.
    """
    definitions = _merge([_read(package, version) for version in VERSIONS])
    names: set[str] = set()
    _reachable(definitions, _ROOT, names)
    for name, enums in ENUMS.items():
        for field, values in enums.items():
            definitions[name]["properties"][field] = {"enum": [*values, "", None]}
    lines = [f'"{name}": {json.dumps({"title": name, **definitions[name]}, sort_keys=True)}' for name in sorted(names)]
    head = {"$comment": f"Kubernetes {VERSIONS[0]} to {VERSIONS[-1]}, Apache License 2.0: make pod-template-schema"}
    return f'{json.dumps(head)[:-1]},\n"$defs": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(pod_template_schema(Path(sys.argv[1])))
