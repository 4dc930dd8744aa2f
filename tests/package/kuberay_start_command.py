"""What KubeRay tells ``ray start`` on a node of a group: its command, without KubeRay, read by bash and Ray itself.

After generateRayStartCommand, updateRayStartParamsResources and addWellKnownAcceleratorResources in
ray-operator/controllers/ray/common/pod.go of KubeRay 1.7. It shows what Ray reads of the command; not that KubeRay
writes it so.
"""

import json
import re
import subprocess
from fractions import Fraction
from math import ceil

from ray._private.parameter import RayParams
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray.autoscaler._private.kuberay.utils import parse_quantity
from ray.scripts.scripts import start

_FAMILIES = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}


def is_gpu(key):
    return key.endswith("gpu") or re.search(r"nvidia\.com/mig-\d+g\.\d+gb$", key) is not None


def _value(quantity):
    return str(ceil(Fraction(parse_quantity(str(quantity)))))


def _command_params(group):
    params = dict(group.get("rayStartParams", {}))
    own = {}
    for name, quantity in group.get("resources", {}).items():
        lower = name.lower()
        if lower in ("cpu", "memory"):
            params["num-cpus" if lower == "cpu" else "memory"] = _value(quantity)
        elif is_gpu(lower):
            params["num-gpus"] = _value(quantity)
        else:
            own[name] = float(parse_quantity(quantity))
    if own:
        params["resources"] = f"'{json.dumps(own)}'"
    amounts = group["template"]["spec"]["containers"][0]["resources"]
    limits = {key: quantity for key, quantity in amounts["limits"].items() if _value(quantity) != "0"}
    cpu = limits.get("cpu") or amounts["requests"].get("cpu") or "0"
    if _value(cpu) != "0":
        params.setdefault("num-cpus", _value(cpu))
    if "memory" in limits:
        params.setdefault("memory", _value(limits["memory"]))
    return _with_devices(params, limits)


def _with_devices(params, limits):
    try:
        told = json.loads(params.get("resources", "{}").strip("'\"` "))
        told = {str(name): float(amount) for name, amount in told.items()}
    except (ValueError, TypeError, AttributeError):
        return params
    is_told = bool(told.keys() & set(_FAMILIES.values()))
    for key in sorted(limits):
        if is_gpu(key):
            params.setdefault("num-gpus", _value(limits[key]))
        if key in _FAMILIES and not is_told:
            told[_FAMILIES[key]] = float(parse_quantity(str(limits[key])))
            params["resources"] = f"'{json.dumps(told)}'"
            is_told = True
    return params


def _flag(name, value):
    if value.lower() in ("true", "false") and name not in ("log-color", "include-dashboard", "include-log-monitor"):
        return f"--{name}" if value.lower() == "true" else ""
    return f"--{name}={value}"


def started_as(group):
    """What Ray counts on such a node, without devices that it finds; ``None``: it fails, or counts CPUs itself."""
    flags = " ".join(_flag(name, value) for name, value in sorted(_command_params(group).items()))
    # Only these words are echoed by bash; `ray start` reads them as it does on a node.
    words = subprocess.run(["bash", "-c", rf"printf '%s\0' {flags}"], capture_output=True, text=True, check=False)
    try:
        told = start.make_context("start", words.stdout.split("\0")[:-1]).params
        custom = json.loads(told["resources"])
        RayParams(num_cpus=told["num_cpus"], num_gpus=told["num_gpus"], resources=custom)
        spec = ResourceAndLabelSpec(told["num_cpus"], told["num_gpus"] or 0, told["memory"] or 0, 0, custom, {})
        spec._is_resolved = True
        counted = spec.to_resource_dict()
    except Exception:  # noqa: BLE001 - click's, a ValueError, a TypeError or an assertion
        return None
    return None if told["num_cpus"] is None or words.returncode else counted
