"""Compares estimates of GPU memory with the peaks of real trainings: ``python -m tests.on_gpu.estimates RECORD``.

Without a GPU, the record contains only the estimates.
"""

import json
import multiprocessing
import sys
from pathlib import Path

import torch

from tests import models
from tests.on_gpu.device import used_bytes
from tune_policies.trainers import estimate_gpu_memory

TRAININGS = {
    "mlp, width 2048": models.mlp(batch=8192, width=2048),
    "mlp, width 4096": models.mlp(batch=4096, width=4096),
    "mlp, width 8192": models.mlp(batch=1024, width=8192),
    "mlp, depth 12": models.mlp(batch=4096, width=2048, depth=12),
    "resnet, 64 pixels": models.resnet(batch=256, size=64),
    "resnet, 128 pixels": models.resnet(batch=128, size=128),
    "resnet, 224 pixels": models.resnet(batch=64, size=224),
    "transformer, depth 6": models.transformer(batch=32, length=256, width=512, depth=6, words=10_000),
    "transformer, depth 12": models.transformer(batch=16, length=256, width=512, depth=12, words=10_000),
    "transformer, width 1024": models.transformer(batch=16, length=256, width=1024, depth=6, words=30_000),
}


def measure(name):
    """Train for five steps. Return the peak of PyTorch's allocator and the additional use of the GPU, in bytes."""
    before = used_bytes()
    TRAININGS[name].train(torch.optim.AdamW, 5, "cuda")
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), used_bytes() - before


def main():
    record = Path(sys.argv[1])
    rows = []
    for name, training in TRAININGS.items():
        estimate = estimate_gpu_memory(training.build, training.batch, torch.optim.AdamW, training.loss_fn)
        row = {"name": name, "estimated_bytes": estimate.peak_bytes, "with_overhead_bytes": estimate.total_bytes}
        if torch.cuda.is_available():
            # A new process for each model, because the allocator keeps what it has reserved.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row["allocated_bytes"], row["driver_bytes"] = pool.apply(measure, (name,))
        rows.append(row)
        record.write_text(json.dumps(rows, indent=1))
        print(row, flush=True)


if __name__ == "__main__":
    main()
