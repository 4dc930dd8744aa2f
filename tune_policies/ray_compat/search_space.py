"""Reads and draws from Tune's search spaces, as Tune does it itself.

Ray documents how a space is written (``tune.choice``, ``tune.randint``), not what these return, nor how configs are
drawn outside of a run. All of it is the same in Ray 2.50 and 2.60.
"""

from collections.abc import Mapping
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Integer, Quantized
from ray.tune.search.variant_generator import generate_variants


def is_domain(value: object) -> bool:
    """Return whether a value of a config is one that Tune draws from. A grid is none, but a dict."""
    return isinstance(value, Domain)


def draw(space: Mapping[str, Any], random_state: Any) -> list[dict[str, Any]]:
    """Return the configs of one draw: one, or where the space has grids one for each combination of their values.

    The public ``BasicVariantGenerator`` draws the same, but only for a run, from a seed that it keeps to itself.

    Args:
        space: The space.
        random_state: A ``numpy.random.RandomState``, which goes on with each draw.

    Raises:
        Exception: Whatever the user's own functions in the space raise, or Tune of its domains.
    """
    return [spec["config"] for _, spec in generate_variants({"config": space}, random_state=random_state)]


def extremes(domain: object) -> list[int]:
    """Return the smallest and the largest value of a choice of whole numbers, or all of its values; else nothing."""
    if isinstance(domain, Categorical):
        values = list(domain.categories)
        return values if all(isinstance(each, int) and not isinstance(each, bool) for each in values) else []
    if not isinstance(domain, Integer):
        return []
    sampler = domain.get_sampler()
    step = int(sampler.q) if isinstance(sampler, Quantized) else 1
    if step > 1:  # of which the upper bound is one itself
        return [-(-domain.lower // step) * step, domain.upper // step * step]
    return [domain.lower, domain.upper - 1]
