"""Tune a YOLO model with Ultralytics: trials on GPU fractions, and additional trials on the remaining CPUs."""

from pathlib import Path

import cv2
import numpy as np
from ray import tune
from ultralytics import YOLO

from tune_policies import CpuPolicy, GpuMemoryPolicy, MixedPolicy, applied

POLICY = MixedPolicy(GpuMemoryPolicy(gpu_memory="8GiB", cpus=1), CpuPolicy(cpus=1), speeds=(10, 1))


def write_squares(folder):
    """Write images of white squares, and return the path of their dataset file."""
    for number in range(8):
        image = np.zeros((64, 64, 3), np.uint8)
        image[16:48, number : number + 32] = 255
        for kind in ("images", "labels"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "images" / f"{number}.png"), image)
        (folder / "labels" / f"{number}.txt").write_text(f"0 {(number + 16) / 64} 0.5 0.5 0.5\n")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [square]\n")
    return str(folder / "data.yaml")


def main():
    data = write_squares(Path("squares").resolve())
    small = {"epochs": 2, "imgsz": 64, "batch": 4, "workers": 0, "plots": False, "save": False}
    folder = str(Path("runs").resolve())  # the default is a folder from the user's settings
    with applied(POLICY):
        results = YOLO("yolo11n.yaml").tune(
            data=data, project=folder, use_ray=True, iterations=2, space={"lr0": tune.loguniform(1e-4, 1e-2)}, **small
        )
    for trial in results:
        print(f"box loss {trial.metrics['val/box_loss']:.3f} in a slot of {trial.metrics['slot']}")
    print(f"best: {results.get_best_result('val/box_loss', 'min').config}")


if __name__ == "__main__":
    main()
