"""Converts a trial's resource request to bundles and back.

A request is a ``PlacementGroupFactory``. Ray keeps its label selectors and other arguments in private attributes.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Final

from ray.tune import PlacementGroupFactory

from tune_policies.placement.bundles import BundleGroup

_OWN: Final = "own_request"
"""The attribute of a request that a run gives to Tune, with the trainable's own request."""


@lru_cache(maxsize=1024)  # each call of ``request.bundles`` makes a deep copy
def bundles_of(request: PlacementGroupFactory) -> Sequence[Mapping[str, float]]:
    """Return the bundles of a request. The first bundle is for the trainable itself, and may be empty."""
    head: list[Mapping[str, float]] = [{}] if request.head_bundle_is_empty else []
    return (*head, *request.bundles)


def group_of(request: PlacementGroupFactory) -> BundleGroup:
    """Return the requested bundles with their strategy and label selectors."""
    selectors = request._kwargs.get("bundle_label_selector") or [{}] * len(request.bundles)
    head: list[dict[str, str]] = [{}] if request.head_bundle_is_empty else []
    return BundleGroup(bundles_of(request), request.strategy, [*head, *selectors])


def with_bundles(request: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
    """Return a copy of a request with other bundles."""
    return PlacementGroupFactory(
        [dict(bundle) for bundle in bundles], request.strategy, *request._args, **request._kwargs
    )


def with_group(request: PlacementGroupFactory, group: BundleGroup) -> PlacementGroupFactory:
    """Return a copy of a request with the bundles and the label selectors of ``group``."""
    kwargs = dict(request._kwargs)
    selectors = [dict(selector) for selector in group.selectors]
    if request.head_bundle_is_empty:
        selectors = selectors[1:]  # Ray does not reserve an empty bundle
    if any(selectors):
        kwargs["bundle_label_selector"] = selectors
    return PlacementGroupFactory([dict(bundle) for bundle in group.bundles], group.strategy, *request._args, **kwargs)


@lru_cache(maxsize=1024)  # one object for equal arguments, because requests are compared by identity
def with_own(request: PlacementGroupFactory, own: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return a request for Tune that also contains the trainable's own request.

    If Tune restarts a failed trial, ``Trial.reset`` copies the request to the new trial, but not the attributes that a
    run adds to the failed trial.
    """
    # Then the request itself is the trainable's own request, and nothing has to be added.
    if request == own:
        return own
    given = copy(request)
    setattr(given, _OWN, own)
    return given


def own_of(request: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the trainable's own request for a request of a trial."""
    own: PlacementGroupFactory = getattr(request, _OWN, request)
    return own
