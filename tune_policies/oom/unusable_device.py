"""Recognizes the errors of a process that cannot use its device because the driver or the device failed.

The texts come from the CUDA runtime (``cudaGetErrorString``), from the initialization code of PyTorch and TensorFlow,
and from HIP and JAX.
"""

import re
from typing import Final

from tune_policies.oom.classify import walk_errors
from tune_policies.values.errors import MemoryLimitError

_TYPE: Final = f"{MemoryLimitError.__module__}.{MemoryLimitError.__qualname__}"
_TEXT: Final = re.compile(
    r"no (?:CUDA|HIP) GPUs are available|found no NVIDIA driver|NVIDIA driver on your system is too old"
    r"|CUDA driver initialization failed|CUDA driver version is insufficient|CUDA unknown error"
    # A stopped fabric manager, different versions of the driver and its libraries, or no MPS daemon
    r"|(?:Unexpected error from cudaGetDeviceCount.{0,200}Error 80[2-5]: |cudaErrorSystemNotReady)"
    r"|CUDA error: system not yet initialized"
    r"|CUDA-capable device\(s\) is/are busy or unavailable|no (?:CUDA|ROCm)-capable device is detected"
    r"|uncorrectable ECC error|failed call to cuInit|unable to initialize backend '(?:cuda|rocm|gpu)'|GPU is lost",
    re.IGNORECASE,
)


def is_unusable_device(error: object) -> bool:
    """Return whether ``error``, or an error inside it, means that the process cannot use its device."""
    return any(_TYPE in inner.types or _TEXT.search(inner.text) for inner in walk_errors(error))
