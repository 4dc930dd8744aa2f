"""Mistakes in GPUs that pods share below Ray, and in pods that Ray resizes in place."""

from tests.unit.kuberay.planted.planting import plant
from tests.unit.kuberay.planted.sound import CLUSTER

_L4 = "groupName: l4\n"
_WHOLE = '                  nvidia.com/gpu: "2"\n'
_NO_LIMIT = CLUSTER.replace(_WHOLE, "")
_PARAMS = "rayStartParams: {}"
_TEMPLATE = "      template:\n"
_CONTAINERS = "          containers:\n"
_LIMITS = "                limits:\n"
_PURPOSE = "    purpose: trials\n"


def _annotated(text: str) -> str:
    return f"      template:\n        metadata:\n          annotations:\n            {text}\n"


def _resized(limits: str) -> str:
    return f"    ray.io/ippr: '{{\"groups\": {{{limits}}}}}'\n"


_OF_L4 = '"l4": {"max-cpu": "16", "max-memory": "64Gi", "resize-timeout": 60}'
_COUNTED = _NO_LIMIT.replace(_PARAMS, 'rayStartParams: {num-gpus: "1"}', 1)

# fmt: off
MISTAKES = (
    plant("no isolation", _COUNTED, _TEMPLATE, _annotated('gpu-fraction: "0.5"'),
          "kai-gpu-memory-not-isolated", "gpu-fraction", after=_L4),
    plant("a fraction above 1", _COUNTED, _TEMPLATE, _annotated('gpu-fraction: "2"'),
          "kai-invalid-part", "gpu-fraction", after=_L4),
    plant("memory with a unit", _COUNTED, _TEMPLATE, _annotated('gpu-memory: "4Gi"'),
          "kai-invalid-part", "gpu-memory", after=_L4),
    plant("a misspelled annotation", _COUNTED, _TEMPLATE, _annotated('gpu_fraction: "0.5"'),
          "kai-invalid-part", "gpu_fraction", after=_L4),
    plant("an annotation in the plural", _COUNTED, _TEMPLATE, _annotated('gpu-fractions: "0.5"'),
          "kai-invalid-part", "gpu-fractions", after=_L4),
    plant("memory of HAMi with a unit", CLUSTER, _LIMITS, f'{_LIMITS}                  nvidia.com/gpumem: 10Gi\n',
          "hami-invalid-amount", "gpumem", after=_L4),
    plant("a misspelled amount for HAMi", CLUSTER, _LIMITS, f'{_LIMITS}                  nvidia.com/gpu-mem: 900\n',
          "device-resource-misspelled", "gpu-mem", after=_L4),
    plant("a part of a MiB", CLUSTER, _LIMITS, f'{_LIMITS}                  nvidia.com/gpumem: "0.5"\n',
          "device-fraction", "gpumem", after=_L4),
    plant("more than all memory", CLUSTER, _LIMITS, f'{_LIMITS}                  nvidia.com/gpumem-percentage: 150\n',
          "hami-invalid-amount", "gpumem", after=_L4),
    plant("no KAI Scheduler", _COUNTED, _TEMPLATE, _annotated('gpu-fraction: "0.5"'),
          "kai-scheduler-missing", "gpu-fraction", after=_L4),
    plant("a label instead of an annotation", _COUNTED, _TEMPLATE,
          _annotated('gpu-fraction: "0.5"').replace("annotations", "labels"),
          "kai-invalid-part", "gpu-fraction", after=_L4),
    plant("a container that does not exist", _COUNTED, _TEMPLATE,
          _annotated('{gpu-fraction: "0.5", gpu-fraction-container-name: ray}'),
          "kai-invalid-part", "gpu-fraction-container-name", after=_L4),
    plant("a number of GPUs in words", _COUNTED, _TEMPLATE,
          _annotated('{gpu-fraction: "0.5", gpu-fraction-num-devices: two}'),
          "kai-invalid-part", "gpu-fraction-num-devices", after=_L4),
    plant("a part that Ray does not count", _NO_LIMIT, _TEMPLATE, _annotated('gpu-fraction: "0.5"'),
          "shared-gpu-not-counted", "gpu-fraction", after=_L4),
    plant("a claim that Ray does not count", _NO_LIMIT, _LIMITS,
          f"                claims: [{{name: gpu}}]\n{_LIMITS}", "claim-not-counted", "claims:", after=_L4),
    plant("a claim that no container uses", CLUSTER, _CONTAINERS,
          f"          resourceClaims: [{{name: gpu, resourceClaimTemplateName: one-gpu}}]\n{_CONTAINERS}",
          "claim-not-used", "resourceClaims", after=_L4),
    plant("cores without memory", CLUSTER, _LIMITS, f'{_LIMITS}                  nvidia.com/gpucores: "50"\n',
          "hami-memory-not-stated", "gpucores", after=_L4),
    plant("memory without GPUs", _NO_LIMIT, _LIMITS, f'{_LIMITS}                  nvidia.com/gpumem: "9000"\n',
          "hami-gpus-missing", "gpumem", after=_L4),
    plant("a size without a timeout", CLUSTER, _PURPOSE,
          _resized(_OF_L4.replace(', "resize-timeout": 60', "")), "resize-refused", "ray.io/ippr"),
    plant("a misspelled annotation of the cluster", CLUSTER, _PURPOSE,
          _resized(_OF_L4).replace("ippr", "iprr"), "resize-ignored", "ray.io/iprr"),
    plant("an annotation of the pods", CLUSTER, _TEMPLATE, _annotated("ray.io/ippr: '{}'"),
          "resize-ignored", "ray.io/ippr", after=_L4),
    plant("a size that pods already have", CLUSTER, _PURPOSE,
          _resized(_OF_L4.replace("16", "4").replace("64Gi", "4Gi")), "resize-ignored", "ray.io/ippr"),
    plant("a size of a group that does not exist", CLUSTER, _PURPOSE,
          _resized(_OF_L4.replace("l4", "l40")), "resize-ignored", "ray.io/ippr"),
)
# fmt: on
