"""Chooses the configs whose memory is measured, from a list or a search space."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tune_policies.plan.gpu_memory_profile import flat
from tune_policies.ray_compat.tune_trial import draw, extremes, is_domain
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.wording import shorten

Configs = Sequence[Mapping[str, Any]] | Mapping[str, Any]


def configs_to_measure(configs: Configs | None, num_samples: int, seed: int) -> list[dict[str, Any]]:
    """Return the configs to measure, without duplicates.

    ``num_samples`` configs are drawn from a search space. The first config contains the largest integers of the search
    space, and the second config contains the smallest integers. Memory often grows with integers, and predictions
    outside the measured range are extrapolations.
    """
    check_count(num_samples, least=1, name="num_samples")
    if configs is None:
        raise InvalidResourcesError(
            "configs is missing. Pass the configs to measure or the search space of your run, such as "
            'measure_gpu_memory(train_fn, [{"batch_size": 32}, {"batch_size": 256}])'
        )
    if isinstance(configs, Mapping):
        drawn = _drawn_configs(configs, num_samples, seed)
    else:
        drawn = list(_checked_configs(configs))
    # By text, because a config may contain values that have no hash.
    different = list({repr(flat(config)): config for config in drawn}.values())
    if not different:
        raise InvalidResourcesError("there are no configs to measure. Pass at least one config, or a search space")
    return different


def _checked_configs(configs: Any) -> Iterator[dict[str, Any]]:
    if isinstance(configs, str | bytes) or not hasattr(configs, "__iter__"):
        raise InvalidResourcesError(f"configs must be a list of configs or a search space, got {shorten(configs)}")
    for number, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise InvalidResourcesError(
                f"configs[{number}] must be a mapping of names to values, got {shorten(config)}"
            )
        name = _name_of_space(config)
        if name is not None:
            raise InvalidResourcesError(
                f"configs[{number}] has a search space for {name!r}, not a value. Use values, or pass one search "
                "space as configs"
            )
        yield dict(config)


def _name_of_space(config: Mapping[str, Any]) -> str | None:
    for name, value in config.items():
        if is_domain(value) or name == "grid_search":
            return str(name)
        if not isinstance(value, Mapping):
            continue
        within = _name_of_space(value)
        if within == "grid_search":
            return str(name)
        if within is not None:
            return f"{name}/{within}"
    return None


def _drawn_configs(space: Mapping[str, Any], num_samples: int, seed: int) -> list[dict[str, Any]]:
    import numpy as np

    spaces = [_with_whole_numbers(space, max), _with_whole_numbers(space, min), *[space] * num_samples]
    try:
        state = np.random.RandomState(seed)  # if the seed itself were passed, all draws would be equal
        return [config for drawn in spaces[:num_samples] for config in draw(drawn, state)]
    except Exception as error:  # caused by the seed, the user's functions, or Tune
        raise InvalidResourcesError(
            f"no configs can be drawn from the search space: {type(error).__name__}: {error}"
        ) from error


def _with_whole_numbers(space: Any, choose: Callable[[list[int]], int]) -> Any:
    """Return the search space with each integer domain replaced by the chosen value. Grids are not changed."""
    if isinstance(space, Mapping):
        if space.keys() == {"grid_search"}:
            return dict(space)
        return {name: _with_whole_numbers(value, choose) for name, value in space.items()}
    if isinstance(space, list):
        return [_with_whole_numbers(value, choose) for value in space]
    values = extremes(space)
    if values:
        return choose(values)
    return space
