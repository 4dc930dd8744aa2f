"""Which configs to measure: those of a list, or some of a search space, the largest and the smallest among them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ray import tune

from tune_policies.plan.gpu_memory_profile import flat
from tune_policies.ray_compat.tune_trial import class_of_function, draw, extremes, is_domain
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.value import shorten

Configs = Sequence[Mapping[str, Any]] | Mapping[str, Any]

_MOST_SEED: Final = 2**32 - 1


def configs_to_measure(configs: Configs, num_samples: int, seed: int) -> list[dict[str, Any]]:
    """Return the configs to measure, each once.

    Of a search space ``num_samples`` are drawn. In the first of them all whole numbers have their largest value, in the
    second their smallest: memory grows with them, and beyond what was measured it is not known, or extrapolated.

    Raises:
        InvalidResourcesError: An argument is wrong.
    """
    check_count(num_samples, least=1, name="num_samples")
    if check_count(seed, least=0, name="seed") > _MOST_SEED:
        raise InvalidResourcesError(f"seed must be a whole number from 0 to {_MOST_SEED}, got {shorten(seed)}")
    drawn = _drawn(configs, num_samples, seed) if isinstance(configs, Mapping) else list(_given(configs))
    different = list({repr(flat(config)): config for config in drawn}.values())
    if not different:
        raise InvalidResourcesError("no configs to measure: give at least one, or a search space")
    return different


def _given(configs: Any) -> Iterator[dict[str, Any]]:
    if isinstance(configs, str | bytes) or not hasattr(configs, "__iter__"):
        raise InvalidResourcesError(f"configs must be a list of configs or a search space, got {shorten(configs)}")
    for number, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise InvalidResourcesError(
                f"configs[{number}] must be a mapping of names to values, got {shorten(config)}"
            )
        if (name := _name_of_space(config)) is not None:
            raise InvalidResourcesError(
                f"configs[{number}] has no value for {name!r}, but a search space: give values, or as configs the one "
                "space of which num_samples are drawn"
            )
        yield dict(config)


def _name_of_space(config: Mapping[str, Any]) -> str | None:
    for name, value in config.items():
        if is_domain(value) or name == "grid_search":
            return str(name)
        if isinstance(value, Mapping) and (within := _name_of_space(value)) is not None:
            return str(name) if within == "grid_search" else f"{name}/{within}"
    return None


def _drawn(space: Mapping[str, Any], num_samples: int, seed: int) -> list[dict[str, Any]]:
    import numpy as np

    state = np.random.RandomState(seed)  # one for all draws: from a number each would draw the same
    spaces = [_with_whole_numbers(space, max), _with_whole_numbers(space, min), *[space] * num_samples]
    try:
        return [config for each in spaces[:num_samples] for config in draw(each, state)]
    except Exception as error:  # whatever the user's own functions in it raise, or Tune of its domains
        raise InvalidResourcesError(
            f"no configs can be drawn from the search space: {type(error).__name__}: {error}"
        ) from error


def _with_whole_numbers(space: Any, choose: Callable[[list[int]], int]) -> Any:
    """Return the space with the largest or the smallest value in place of each choice of whole numbers.

    A grid stays one: all its values are measured.
    """
    if isinstance(space, Mapping):
        if space.keys() == {"grid_search"}:
            return dict(space)
        return {name: _with_whole_numbers(value, choose) for name, value in space.items()}
    if isinstance(space, list):
        return [_with_whole_numbers(value, choose) for value in space]
    return choose(values) if (values := extremes(space)) else space


def check_trainable(trainable: Any) -> None:
    """Raise ``InvalidResourcesError`` unless it is what can be measured."""
    is_class = isinstance(trainable, type)
    if not callable(trainable) or (is_class and not issubclass(trainable, tune.Trainable)):
        raise InvalidResourcesError(
            f"a trainable is a function of a config or a subclass of ray.tune.Trainable, got {shorten(trainable)}"
        )
    if not is_class:
        try:
            class_of_function(trainable)
        except ValueError as error:  # it takes no config
            raise InvalidResourcesError(f"{shorten(trainable)} is no trainable: {error}") from error
