"""Graphics and physics in PyTorch: a ray tracer, the heat equation in two and three dimensions, and gravity.

Each step starts from the same state and returns the mean square of its result. The state is computed on the CPU.
Squares are positive and do not cancel out, so the means on different devices agree closely.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .steps import Steps, torch_device

SEED: Final = 0
NUM_UPDATES: Final = 10
"""The number of updates of the heat equation in a step."""

_DIFFUSION: Final = 0.1
"""The fraction of a temperature difference that an update moves. In three dimensions, the explicit method is
unstable above 1/6."""

_TIME_STEP: Final = 0.01
_SOFTENING: Final = 0.1
"""A softening length that keeps the force between two bodies finite at any distance."""

_SPHERES: Final = (
    # Center (x, y, z) and radius. The eye is at the origin and looks along z. The last sphere is the floor.
    (0.0, 0.0, 4.0, 1.0),
    (-1.6, 0.3, 5.0, 1.0),
    (1.4, -0.5, 3.0, 0.5),
    (0.6, 0.9, 3.2, 0.3),
    (0.0, -101.0, 4.0, 100.0),
)
_LIGHT: Final = (0.5, 0.7, -0.5)
"""The direction to the light."""

_AMBIENT: Final = 0.1
"""The brightness of a point in shadow."""

_SKY: Final = 0.3
"""The brightness of a ray that hits nothing."""


def raytracing(size: int, device: str) -> Steps:
    """Return steps that render five spheres with shadows in ``size`` x ``size`` pixels, with one ray per pixel."""
    return _from_one_state(_rendered, _rays(size), device)


def _rays(size: int) -> Tensor:
    """Return the directions of the rays through the pixels, one per row."""
    pixels = (torch.arange(size) + 0.5) / size * 2 - 1
    y, x = torch.meshgrid(-pixels, pixels, indexing="ij")
    return normalize(torch.stack((x, y, torch.full_like(x, 1.5)), -1).reshape(-1, 3), dim=-1)


def _rendered(rays: Tensor) -> Tensor:
    """Return the brightness of each ray from the origin, from 0 to 1."""
    spheres = rays.new_tensor(_SPHERES)
    light = normalize(rays.new_tensor(_LIGHT), dim=0)
    distance, hit = _distances(torch.zeros_like(rays), rays, spheres).min(0)
    # A ray that hits nothing has an infinite distance, and infinity times zero would not be a number.
    points = rays * distance.nan_to_num(posinf=0.0)[:, None]
    normals = normalize(points - spheres[hit, :3], dim=-1)
    # Move the points slightly off their spheres, so that a sphere does not shadow itself.
    is_lit = _distances(points + 1e-3 * normals, light.expand_as(rays), spheres).min(0).values.isinf()
    diffuse = (normals @ light).clamp(min=0) * is_lit
    return torch.where(distance.isinf(), _SKY, _AMBIENT + (1 - _AMBIENT) * diffuse)


def _distances(origins: Tensor, directions: Tensor, spheres: Tensor) -> Tensor:
    """Return the distance from each ray's origin to each sphere along the ray, or infinity if the ray misses it.

    Each row is for one sphere.
    """
    found = []
    for sphere in spheres:
        to_centre = sphere[:3] - origins
        along = (to_centre * directions).sum(-1)
        # Half of the part of the ray inside the sphere. It is 0 if the ray misses the sphere.
        half_chord = (sphere[3].square() - to_centre.square().sum(-1) + along.square()).clamp(min=0).sqrt()
        distance = along - half_chord
        found.append(torch.where((half_chord > 0) & (distance > 0), distance, torch.inf))
    return torch.stack(found)


def _heat(num_dimensions: int, size: int, device: str) -> Steps:
    """Return steps that each do ten updates of the heat equation on a periodic grid with ``size`` points per side."""
    torch.manual_seed(SEED)
    return _from_one_state(_diffused, torch.rand((size,) * num_dimensions), device)


heat_2d = partial(_heat, 2)
heat_3d = partial(_heat, 3)


def _diffused(grid: Tensor) -> Tensor:
    for _ in range(NUM_UPDATES):
        # The discrete Laplace operator: the sum of the neighbors, minus the point itself for each of them.
        flow = -2 * grid.ndim * grid
        for dimension in range(grid.ndim):
            flow += torch.roll(grid, 1, dimension) + torch.roll(grid, -1, dimension)
        grid = grid + _DIFFUSION * flow
    return grid


def n_body(size: int, device: str) -> Steps:
    """Return steps that move ``size`` bodies in three dimensions by their mutual gravity."""
    torch.manual_seed(SEED)
    return _from_one_state(_speeds, torch.rand(size, 3), device)


def _speeds(positions: Tensor) -> Tensor:
    """Return the velocities after one leapfrog step from rest. The mass of a body is 1 / number of bodies."""
    half = 0.5 * _TIME_STEP
    # Half a step of acceleration, a step of motion, and the other half (kick, drift, kick).
    velocities = half * _accelerations(positions)
    return velocities + half * _accelerations(positions + _TIME_STEP * velocities)


def _accelerations(positions: Tensor) -> Tensor:
    differences = positions - positions[:, None]
    weights = (differences.square().sum(-1) + _SOFTENING**2) ** -1.5
    return torch.einsum("ij,ijk->ik", weights, differences) / len(positions)


def _from_one_state(work: Callable[[Tensor], Tensor], host: Tensor, device: str) -> Steps:
    """Return steps that apply ``work`` to the same state, with and without transfers from and to host memory."""
    where = torch_device(device)
    there = host.to(where)

    def with_transfers() -> Tensor:
        result = work(host.to(where))
        # The copy belongs to the transfers, and also waits for the device.
        result.cpu()
        return result.square().mean()

    return Steps(
        with_transfers=with_transfers,
        compute=lambda: work(there).square().mean(),
        steps_per_epoch=1,
        dtype="float32",
    )
