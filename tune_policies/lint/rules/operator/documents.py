"""What the operator refuses of the names of clusters, jobs and services, and of a service's own part."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tune_policies.lint.kinds import RAY_CLUSTER, RAY_JOB, RAY_SERVICE, kind_of
from tune_policies.lint.rule import DocumentRule, Found, RuleSet
from tune_policies.lint.rules.parts import at, mapping
from tune_policies.lint.rules.sources import API, CONSTANTS, VALIDATION
from tune_policies.manifests.documents import Document
from tune_policies.values import shorten, suggest

_LONGEST = {RAY_CLUSTER: 53, RAY_JOB: 47, RAY_SERVICE: 47}
_GENERATED = 5
"""So many characters Kubernetes adds to a ``generateName``."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
_DURATION = re.compile(r"\+?((\d++(\.\d*+)?|\.\d++)(ns|us|µs|ms|s|m|h))++")
_TIMEOUT = "ray.io/initializing-timeout"


def _name_too_long(document: Document) -> Iterator[Found]:
    kind = str(kind_of(document))
    longest = _LONGEST[kind]
    for field, most in (("name", longest), ("generateName", longest - _GENERATED)):
        name = at(document.data, ("metadata", field))
        if isinstance(name, str) and len(name) > most:
            yield Found(
                ("metadata", field),
                f"{field} {shorten(name)} has {len(name)} characters, but for a {kind} {most} are the most",
                "choose a shorter name",
            )


def _name_unusable(document: Document) -> Iterator[Found]:
    metadata = mapping(at(document.data, ("metadata",)))
    name, generated = metadata.get("name"), metadata.get("generateName")
    if name is None and generated is None:
        yield Found(("metadata",), f"the {kind_of(document)} has no name", "write metadata.name")
    if isinstance(name, str) and _NAME.fullmatch(name) is None:
        way_out = "use small letters, digits and '-', with a letter in front"
        yield Found(("metadata", "name"), f"the name {shorten(name)} is no DNS label (RFC 1035)", way_out)


def _upgrade_type(document: Document) -> Iterator[Found]:
    path = ("spec", "upgradeStrategy", "type")
    kind = at(document.data, path)
    if kind is not None and kind not in _UPGRADES:
        message = f"upgradeStrategy.type is {kind!r}{suggest(str(kind), _UPGRADES)}"
        yield Found(path, message, f"write {', '.join(_UPGRADES[:-1])} or {_UPGRADES[-1]}")


def _upgrade_options(document: Document) -> Iterator[Found]:
    strategy = mapping(at(document.data, ("spec", "upgradeStrategy")))
    if strategy.get("type") != "NewClusterWithIncrementalUpgrade":
        return
    path = ("spec", "upgradeStrategy", "clusterUpgradeOptions")
    if at(document.data, ("spec", "rayClusterConfig", "enableInTreeAutoscaling")) is not True:
        message = "an incremental upgrade needs the autoscaler, but enableInTreeAutoscaling is not true"
        yield Found(("spec", "upgradeStrategy", "type"), message, "write enableInTreeAutoscaling: true")
    options = mapping(strategy.get("clusterUpgradeOptions"))
    if not options:
        message = "an incremental upgrade needs clusterUpgradeOptions"
        yield Found(path[:2], message, "write stepSizePercent, intervalSeconds and gatewayClassName there")
        return
    surge, step = options.get("maxSurgePercent", 100), options.get("stepSizePercent")
    interval = options.get("intervalSeconds")
    for name, value in (("maxSurgePercent", surge), ("stepSizePercent", step)):
        if not _is_between(value, 0, 100):
            yield Found((*path, name), f"{name} is {shorten(value)}", "write a whole number from 0 to 100")
    if _is_between(surge, 0, 100) and _is_between(step, 0, 100) and step > surge:
        message = f"stepSizePercent {step} is above maxSurgePercent {surge}"
        yield Found((*path, "stepSizePercent"), message, f"write at most {surge}")
    if not _is_between(interval, 1, 2**31 - 1):
        yield Found((*path, "intervalSeconds"), f"intervalSeconds is {shorten(interval)}", "write 1 or more")
    if not options.get("gatewayClassName"):
        message = "clusterUpgradeOptions has no gatewayClassName"
        yield Found((*path, "gatewayClassName"), message, "name a GatewayClass of the Kubernetes cluster")


def _is_between(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _deletion_delay(document: Document) -> Iterator[Found]:
    path = ("spec", "rayClusterDeletionDelaySeconds")
    delay = at(document.data, path)
    if isinstance(delay, int) and delay < 0:
        yield Found(path, f"rayClusterDeletionDelaySeconds is {delay}", "write 0 or more")


def _head_service(document: Document) -> Iterator[Found]:
    path = ("spec", "rayClusterConfig", "headGroupSpec", "headService", "metadata", "name")
    if at(document.data, path):
        yield Found(path, "the head's service has a name of its own", "leave the name out")


def _initializing_timeout(document: Document) -> Iterator[Found]:
    path = ("metadata", "annotations", _TIMEOUT)
    text = at(document.data, path)
    if not isinstance(text, str) or not text:
        return
    is_number = re.fullmatch(r"[-+]?\d+", text) is not None
    is_positive = re.search("[1-9]", text) is not None and not text.startswith("-")
    if not is_positive or not (is_number or _DURATION.fullmatch(text)):
        message = f"the annotation {_TIMEOUT} is {text!r}"
        yield Found(path, message, 'write seconds, such as "300", or a duration, such as "5m"')


def _serve_config(document: Document) -> Iterator[Found]:
    path = ("spec", "serveConfigV2")
    text = at(document.data, path)
    if not isinstance(text, str):
        return
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or error
        yield Found(path, f"serveConfigV2 is no YAML: {problem}", "mend the text that stands under it")
        return
    if not isinstance(config, dict):
        yield Found(path, "serveConfigV2 is no mapping", "write Serve's configuration there, with applications")
    elif not config.get("applications"):
        yield Found(path, "serveConfigV2 has no applications", "name what Serve is to run")


ALL = (RAY_CLUSTER, RAY_JOB, RAY_SERVICE)
RULES: RuleSet = (
    DocumentRule(
        "name-too-long",
        "error",
        "KubeRay adds to the name those of services and of clusters, and Kubernetes' names end at 63 characters.",
        f"{CONSTANTS} (MaxRayClusterNameLength, MaxRayJobNameLength, MaxRayServiceNameLength)",
        ALL,
        _name_too_long,
    ),
    DocumentRule(
        "name-unusable",
        "error",
        "The operator refuses it: the name becomes that of a service.",
        f"{VALIDATION} (ValidateRayClusterMetadata, ValidateRayJobMetadata, ValidateRayServiceMetadata)",
        ALL,
        _name_unusable,
    ),
    DocumentRule(
        "service-upgrade-type",
        "error",
        "The operator refuses the service.",
        f"{VALIDATION} (ValidateRayServiceSpec)",
        (RAY_SERVICE,),
        _upgrade_type,
    ),
    DocumentRule(
        "service-upgrade-options",
        "error",
        "The operator refuses an incremental upgrade (KubeRay 1.5 and later) that it cannot carry out.",
        f"{VALIDATION} (ValidateClusterUpgradeOptions)",
        (RAY_SERVICE,),
        _upgrade_options,
    ),
    DocumentRule(
        "service-deletion-delay",
        "error",
        "The operator refuses the service.",
        f"{VALIDATION} (ValidateRayServiceSpec)",
        (RAY_SERVICE,),
        _deletion_delay,
    ),
    DocumentRule(
        "service-head-name",
        "error",
        "The old and the new cluster of an upgrade would have services of the same name.",
        f"{VALIDATION} (ValidateRayServiceSpec)",
        (RAY_SERVICE,),
        _head_service,
    ),
    DocumentRule(
        "service-initializing-timeout",
        "error",
        "From KubeRay 1.5 on the operator refuses the service.",
        f"{VALIDATION} (validateInitializingTimeout)",
        (RAY_SERVICE,),
        _initializing_timeout,
    ),
    DocumentRule(
        "service-config",
        "error",
        "The operator hands it to Serve only when it can read it, and so the service would never get ready.",
        f"{API} (RayServiceSpec.serveConfigV2)",
        (RAY_SERVICE,),
        _serve_config,
    ),
)
