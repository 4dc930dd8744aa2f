"""Measures the GPU memory outside the allocator of each framework: ``python -m tests.on_gpu.overheads RECORD``."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import ray

from tune_policies import ResourcePolicyError
from tune_policies.trainers import calibrate_gpu_overhead

FRAMEWORKS = {"torch": "torch", "jax": "jax", "cupy": "cupy", "tensorflow": "tensorflow"}


def main():
    record = Path(sys.argv[1])
    installed = [name for name, module in FRAMEWORKS.items() if find_spec(module)]
    ray.init(address="local", include_dashboard=False)
    found = {}
    for framework in installed:
        try:
            measured = calibrate_gpu_overhead([framework], timeout_s=60)
            found[framework] = measured.model_dump(mode="json")
        except ResourcePolicyError as error:
            found[framework] = str(error)
        record.write_text(json.dumps(found, indent=1))
        print(framework, found[framework], flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
