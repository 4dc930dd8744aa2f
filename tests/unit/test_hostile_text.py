"""Tests that text of 100 kB is parsed in linear time and shortened in errors, and that long numbers are handled.

The time limit is a hundred times the CPU time that a linear pattern needs. A quadratic pattern needs
minutes for the same text.
"""

import time

import pytest

from tune_policies.cluster.accelerators import gpu_memory_of_type
from tune_policies.cluster.labels import check_selector, is_label_value
from tune_policies.cluster.ray_totals import to_resources
from tune_policies.files.yaml_documents import read_scalar
from tune_policies.kuberay.design.catalog_file import check_dns_label, parts_of_gpus
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.reading.kubernetes_quantities import parse_quantity
from tune_policies.oom import classify_oom_text
from tune_policies.oom.signatures import match_signature
from tune_policies.probe.doctor.node_checks import is_older
from tune_policies.ray_compat.connection import last_error
from tune_policies.trainers.gpu_memory.framework_settings import torch_own_fraction
from tune_policies.trainers.gpu_memory.mps import mps_own_limit
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import GIB, parse_bytes

pytestmark = pytest.mark.ci

LENGTH = 100_000
MOST_S = 5.0

MANIFEST = """
apiVersion: ray.io/v1
kind: RayService
metadata: {{name: a, annotations: {{ray.io/initializing-timeout: {text!r}}}}}
spec:
  rayClusterConfig:
    rayVersion: {text!r}
    headGroupSpec:
      rayStartParams: {{num-gpus: {text!r}}}
      template:
        spec: {{containers: [{{image: {text!r}, resources: {{limits: {{cpu: {text!r}, memory: {text!r}}}}}}}]}}
"""

READERS = {
    "an amount of memory": parse_bytes,
    "an amount of Kubernetes": parse_quantity,
    "a number in YAML": lambda text: read_scalar(text, None, (True, False)),
    "a manifest": lambda text: lint_text(MANIFEST.format(text=text), "a.yaml"),
    "the message of an error": lambda text: [
        match_signature((name,), text) for name in ("RuntimeError", "jaxlib.xla_extension.XlaRuntimeError")
    ],
    "the type of an error": lambda text: match_signature((text, f"torch.{text}", f"numpy.{text}", f"cupy.{text}"), ""),
    "a traceback": lambda text: classify_oom_text(f'Traceback (most recent call last):\n  File "a"\n{text}'),
    "a label": lambda text: (is_label_value(text), check_selector({text: text})),
    "the name of a node type": check_dns_label,
    "a device of Kubernetes": lambda text: parts_of_gpus([f"nvidia.com/mig-{text}"], {}, 1),
    "a resource of Ray": lambda text: to_resources({"CPU": 1, text: 1}),
    "the type of an accelerator": gpu_memory_of_type,
    "the output of a child": lambda text: last_error(text.encode()),
    "settings of PyTorch's allocator": lambda text: torch_own_fraction({"PYTORCH_ALLOC_CONF": text}),
    "limits of MPS": lambda text: mps_own_limit(text, "0"),
    "a driver": lambda text: is_older(text, "1"),
}

# Each repeated text matches several parts of a pattern.
REPEATED = {
    "digits": "1",
    "letters": "a",
    "dots": "1.",
    "blanks": " ",
    "commas": "a,",
    "brackets": "[",
    "dashes": "a-",
    "slashes": "ray:1.1.1-/",
    "hours": "1h",
    "groups": "_group_1_",
    "names": "a.Error",
    "equals": "0=1",
    "TPU": "Attempting to reserve 1.1G ",
    "mmap": "unable to mmap 1 bytes from ",
    "cuDNN": "CUDNN_STATUS_",
    "driver": "CUDA error: a_ALLOC",
}


@pytest.mark.parametrize("repeated", REPEATED)
@pytest.mark.parametrize("reader", READERS)
def test_a_long_text_is_read_in_linear_time(reader, repeated):
    start = time.process_time()
    for before, after in (("", "!"), (" :", "\n%"), ("Attempting to reserve ", " possible"), ("1e", "e")):
        text = before + REPEATED[repeated] * (LENGTH // len(REPEATED[repeated])) + after
        try:
            READERS[reader](text)
        except InvalidResourcesError as error:
            assert len(str(error)) < 5_000  # noqa: PT017 - the text may be valid
        except ValueError:
            pass

    assert time.process_time() - start < MOST_S


@pytest.mark.parametrize("text", ["9" * 5000 + ".1", "1." + "9" * 5000, "9" * 5000, "²", "1²"])
def test_a_number_that_python_cannot_parse_does_not_raise_an_error(text):
    assert lint_text(MANIFEST.format(text=text), "a.yaml")
    assert mps_own_limit(f"0={text}G", "0") in (None, GIB)
    is_older(text, "1")
    parts_of_gpus([f"nvidia.com/mig-1g.{text}gb"], {}, 1)
