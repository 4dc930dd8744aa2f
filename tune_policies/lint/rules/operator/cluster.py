"""What the operator refuses of a cluster as a whole: options that need another, and things said in two places."""

import re
from collections.abc import Iterator

from tune_policies.lint.rule import Found, Rule, RuleSet
from tune_policies.lint.rules.parts import (
    AUTOSCALER_V2,
    annotations_of,
    at,
    extra,
    is_autoscaling,
    mapping,
    numbered,
    version_of,
)
from tune_policies.lint.rules.pods import groups_of, head_of, workers_of
from tune_policies.lint.rules.sources import API, FEATURES, VALIDATION
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.documents import Path
from tune_policies.values import suggest

_TOKEN_FROM = (2, 52)
_KUBERNETES_TOKEN_FROM = (2, 55)
_MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
_AUTOSCALER_COMMAND = "KUBERAY_GEN_AUTOSCALER_START_CMD"
_TLS = ("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_RAY_IMAGE = re.compile(r"ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)(?:[-.].*)?")


def _version_of_image(cluster: ClusterInFile) -> Iterator[Found]:
    wanted = cluster.spec.rayVersion
    if wanted is None or re.fullmatch(r"\d+\.\d+\.\d+", wanted) is None:
        return
    for group in groups_of(cluster.spec):
        image = group.container.image
        if image and (found := _RAY_IMAGE.fullmatch(image.rpartition("/")[2])) and found[1] != wanted:
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


def _autoscaler_command(cluster: ClusterInFile) -> Iterator[Found]:
    for number, variable in numbered(extra(cluster.spec.autoscalerOptions, "env")):
        if variable.get("name") == _AUTOSCALER_COMMAND:
            message = f"{_AUTOSCALER_COMMAND} is set by the operator itself"
            yield Found(("autoscalerOptions", "env", number), message, "leave it out")


def _options_unused(cluster: ClusterInFile) -> Iterator[Found]:
    options = cluster.spec.autoscalerOptions
    if not is_autoscaling(cluster.spec) and (said := sorted(options.model_fields_set | set(options.model_extra or {}))):
        yield Found(
            ("autoscalerOptions",),
            f"autoscalerOptions has {', '.join(said)}, but enableInTreeAutoscaling is not true",
            "write enableInTreeAutoscaling: true, or leave autoscalerOptions out",
        )


def _managed_by(cluster: ClusterInFile) -> Iterator[Found]:
    value = extra(cluster.spec, "managedBy")
    if value is not None and value not in _MANAGERS:
        message = f"managedBy is {value!r}{suggest(str(value), _MANAGERS)}"
        yield Found(("managedBy",), message, f"write {' or '.join(_MANAGERS)}, or leave it out")


def _redis(cluster: ClusterInFile) -> Iterator[Found]:
    head = head_of(cluster.spec)
    options = extra(cluster.spec, "gcsFaultToleranceOptions")
    variables, params = head.environment, head.spec.rayStartParams
    annotations = annotations_of(cluster)
    is_on = options is not None or str(annotations.get("ray.io/ft-enabled", "")).lower() == "true"
    way_out = "say it in gcsFaultToleranceOptions alone"
    if "RAY_REDIS_ADDRESS" in variables and (options is not None or not is_on):
        without = "" if options is not None else ", without gcsFaultToleranceOptions"
        where = head.variable_path("RAY_REDIS_ADDRESS")
        yield Found(where, f"the head has RAY_REDIS_ADDRESS in its environment{without}", way_out)
    if options is not None and "REDIS_PASSWORD" in variables:
        where = head.variable_path("REDIS_PASSWORD")
        yield Found(where, "REDIS_PASSWORD stands beside gcsFaultToleranceOptions", way_out)
    if options is not None and params.get("redis-password"):
        where = ("headGroupSpec", "rayStartParams", "redis-password")
        yield Found(where, "redis-password stands beside gcsFaultToleranceOptions", way_out)
    if "REDIS_USERNAME" in variables:
        where = head.variable_path("REDIS_USERNAME")
        yield Found(where, "REDIS_USERNAME stands in the head's environment", way_out)
    if params.get("redis-username"):
        where = ("headGroupSpec", "rayStartParams", "redis-username")
        yield Found(where, "redis-username stands in rayStartParams", way_out)
    for name in ("ray.io/ft-enabled", "ray.io/external-storage-namespace"):
        if options is not None and annotations.get(name):
            message = f"the annotation {name} stands beside gcsFaultToleranceOptions"
            yield Found(("gcsFaultToleranceOptions",), message, "leave the annotation out")


def _gcs_backend(cluster: ClusterInFile) -> Iterator[Found]:
    options = mapping(extra(cluster.spec, "gcsFaultToleranceOptions"))
    path = ("gcsFaultToleranceOptions",)
    if options.get("backend") != "rocksdb":
        if options.get("storage") is not None:
            message = "storage is for the backend rocksdb, but the backend is redis"
            yield Found((*path, "storage"), message, "write backend: rocksdb, or leave storage out")
        return
    for name in ("redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace"):
        if options.get(name):
            yield Found((*path, name), f"{name} is for Redis, but the backend is rocksdb", "leave it out")
    storage = mapping(options.get("storage"))
    if storage.get("claimName") and (
        said := [k for k in ("size", "storageClassName", "accessModes") if storage.get(k)]
    ):
        message = f"claimName names a volume that there is, but {said[0]} describes a new one"
        yield Found((*path, "storage", said[0]), message, "keep claimName alone, or leave it out")


def _authentication(cluster: ClusterInFile) -> Iterator[Found]:
    options = mapping(extra(cluster.spec, "authOptions"))
    is_token, by_kubernetes = options.get("mode") == "token", bool(options.get("enableK8sTokenAuth"))
    version = version_of(cluster.spec.rayVersion)
    needed = _KUBERNETES_TOKEN_FROM if by_kubernetes else _TOKEN_FROM
    if by_kubernetes and not is_token:
        message = "enableK8sTokenAuth needs mode: token"
        yield Found(("authOptions", "enableK8sTokenAuth"), message, "write mode: token")
    if is_token and (version is None or version[:2] < needed):
        told = "no rayVersion is given" if version is None else f"rayVersion is {cluster.spec.rayVersion}"
        least = ".".join(map(str, needed))
        message = f"authOptions needs Ray {least} or later, but {told}"
        yield Found(("authOptions",), message, f"use Ray {least} or later and name it in rayVersion")
    if by_kubernetes and options.get("secretName"):
        message = "secretName stands beside enableK8sTokenAuth"
        yield Found(("authOptions", "secretName"), message, "keep one of the two")
    if by_kubernetes and cluster.kind in ("RayJob", "RayService"):
        message = f"enableK8sTokenAuth does not work with a {cluster.kind}"
        yield Found(("authOptions", "enableK8sTokenAuth"), message, "leave it out")


def _upgrade_strategy(cluster: ClusterInFile) -> Iterator[Found]:
    kind = mapping(extra(cluster.spec, "upgradeStrategy")).get("type")
    where = ("upgradeStrategy", "type")
    if kind is not None and cluster.kind in ("RayJob", "RayService"):
        yield Found(where, f"the cluster of a {cluster.kind} has an upgradeStrategy of its own", "leave it out")
    elif kind not in (None, "Recreate", "None"):
        yield Found(where, f"upgradeStrategy.type is {kind!r}", "write Recreate or None")


def _network_policy(cluster: ClusterInFile) -> Iterator[Found]:
    policy = mapping(extra(cluster.spec, "networkPolicy"))
    unused = {"DenyAllEgress": "ingressRules", "DenyAllIngress": "egressRules"}.get(str(policy.get("mode")))
    named = list(numbered(policy.get("workerGroups")))
    parts = [*((name,) for name in ("head", "worker")), *(("workerGroups", number) for number, _ in named)]
    for part in parts:
        if unused and at(policy, (*part, unused)):
            message = f"{unused} has no meaning with mode {policy['mode']}"
            yield Found(("networkPolicy", *part, unused), message, "leave it out, or write mode: DenyAll")
    known = [group.spec.groupName for group in workers_of(cluster.spec)]
    for number, each in named:
        if each.get("groupName") not in known:
            message = f"there is no group {each.get('groupName')!r}{suggest(str(each.get('groupName')), known)}"
            yield Found(("networkPolicy", "workerGroups", number), message, "name one of workerGroupSpecs")
    for name, path, group in workers_of(cluster.spec) if policy else ():
        if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", group.groupName) is None:
            message = f"{name} has no name that a NetworkPolicy can bear"
            yield Found((*path, "groupName"), message, "use small letters, digits and '-'")


def _tls(cluster: ClusterInFile) -> Iterator[Found]:
    options = extra(cluster.spec, "tlsOptions")
    if not isinstance(options, dict) or options.get("enabled") is False:
        return
    for group in groups_of(cluster.spec):
        for name in group.environment:
            if name in _TLS:
                where = group.variable_path(name)
                yield Found(where, f"{group.name} has {name} beside tlsOptions", "leave it out: the operator sets it")


def _feature_gates(cluster: ClusterInFile) -> Iterator[Found]:
    gates = {
        "historyServerOptions": "RayClusterHistoryServer",
        "networkPolicy": "RayClusterNetworkPolicy",
        "tlsOptions": "RayClusterMTLS",
    }
    found: list[tuple[Path, str]] = [
        ((name,), gate) for name, gate in gates.items() if extra(cluster.spec, name) is not None
    ]
    if mapping(extra(cluster.spec, "gcsFaultToleranceOptions")).get("backend") == "rocksdb":
        found.append((("gcsFaultToleranceOptions", "backend"), "GCSFaultToleranceEmbeddedStorage"))
    if not is_autoscaling(cluster.spec):
        found += [((*path, "suspend"), "RayJobDeletionPolicy") for _, path, g in workers_of(cluster.spec) if g.suspend]
    for path, gate in found:
        message = f"{'.'.join(map(str, path))} needs the operator's feature gate {gate}"
        yield Found(path, message, f"start the operator with --feature-gates={gate}=true")


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
        "autoscaler-command",
        "error",
        "KubeRay 1.7 refuses it: it would hide the command that the operator writes there.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _autoscaler_command,
    ),
    Rule(
        "autoscaler-options-unused",
        "note",
        "Without an autoscaler nobody reads them: the numbers of pods stay as they are.",
        f"{API} (RayClusterSpec.enableInTreeAutoscaling)",
        _options_unused,
    ),
    Rule(
        "managed-by",
        "error",
        "The API server refuses any other value, and the field cannot be changed later.",
        f"{API} (RayClusterSpec.managedBy)",
        _managed_by,
    ),
    Rule(
        "redis-said-twice",
        "error",
        "The operator refuses Redis settings beside gcsFaultToleranceOptions, or a Redis address without them.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _redis,
    ),
    Rule(
        "gcs-backend",
        "error",
        "KubeRay 1.7 refuses settings of the other backend; earlier KubeRays know Redis alone.",
        f"{VALIDATION} (validateGcsFaultToleranceBackend)",
        _gcs_backend,
    ),
    Rule(
        "authentication",
        "error",
        "The operator refuses it: older Rays would run without tokens.",
        f"{VALIDATION} (ValidateRayClusterSpec, IsK8sAuthEnabled)",
        _authentication,
    ),
    Rule(
        "cluster-upgrade-strategy",
        "error",
        "KubeRay 1.6 and later refuse it: a RayJob or a RayService decides itself when its cluster changes.",
        f"{VALIDATION} (ValidateRayClusterUpgradeOptions)",
        _upgrade_strategy,
    ),
    Rule(
        "network-policy",
        "error",
        "KubeRay 1.7 refuses rules for what is not closed, and for groups that there are not.",
        f"{VALIDATION} (validateNetworkPolicy)",
        _network_policy,
    ),
    Rule(
        "tls-said-twice",
        "error",
        "KubeRay 1.7 refuses variables that it sets itself.",
        f"{VALIDATION} (validateTLSOptions)",
        _tls,
    ),
    Rule(
        "feature-gate",
        "note",
        "The operator refuses the field unless it was started with the gate.",
        FEATURES,
        _feature_gates,
    ),
)
