"""Reads and changes a trial's resource request, and the slot that is saved with the trial.

A request is a ``PlacementGroupFactory``. Ray keeps the label selectors and other arguments in private attributes.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.labels import merged
from tune_policies.placement.packing import BundleGroup, num_slots_for
from tune_policies.placement.trial_slot import SLOT_ATTRIBUTE, TrialSlot
from tune_policies.values.errors import InvalidResourcesError

_logger = logging.getLogger(__name__)


def bundles_of(resources: PlacementGroupFactory) -> list[Mapping[str, float]]:
    """Return the bundles of a request. The first bundle is for the trainable itself, and may be empty."""
    return [{}, *resources.bundles] if resources.head_bundle_is_empty else list(resources.bundles)


def reservation_of(resources: PlacementGroupFactory) -> BundleGroup:
    """Return the requested bundles with their strategy and label selectors."""
    selectors = resources._kwargs.get("bundle_label_selector") or [{}] * len(resources.bundles)
    head: list[dict[str, str]] = [{}] if resources.head_bundle_is_empty else []
    return BundleGroup(bundles_of(resources), resources.strategy, [*head, *selectors])


def with_bundles(resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
    """Return a copy of a request with other bundles. The copy's ``planned`` attribute is the original request."""
    other = PlacementGroupFactory(
        [dict(bundle) for bundle in bundles], resources.strategy, *resources._args, **resources._kwargs
    )
    other.planned = resources  # a restored trial has no other record of the original
    if SLOT_ATTRIBUTE in vars(resources):
        setattr(other, SLOT_ATTRIBUTE, getattr(resources, SLOT_ATTRIBUTE))
    return other


def with_selectors(
    resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]], selector: Mapping[str, str]
) -> PlacementGroupFactory:
    """Return a copy of a request with these bundles, each restricted to the nodes that ``selector`` matches.

    Args:
        resources: The trial's own request. It becomes the ``own_request`` attribute of the result.
        bundles: The bundles to reserve, with the trainable's own bundle first.
        selector: A label selector in Ray's format, or an empty mapping for any node.
    """
    kwargs = dict(resources._kwargs)
    if selector:
        own = kwargs.get("bundle_label_selector") or [{}] * len(resources.bundles)
        kwargs["bundle_label_selector"] = [merged(dict(each), dict(selector)) for each in own]
    other = PlacementGroupFactory([dict(each) for each in bundles], resources.strategy, *resources._args, **kwargs)
    other.own_request = resources
    return other


def planned_of(resources: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the original request if ``with_bundles`` returned ``resources``, and otherwise ``resources`` itself."""
    return getattr(resources, "planned", resources)


def own_request(trial: Trial) -> PlacementGroupFactory | None:
    """Return the trial's own request, or ``None`` if a policy replaced it in an earlier run."""
    asked = planned_of(trial.placement_group_factory)
    if SLOT_ATTRIBUTE in vars(asked) or hasattr(asked, "own_request"):
        return getattr(asked, "own_request", None)
    return asked


def has_raised_resources(trial: Trial) -> bool:
    """Return whether a scheduler changed the planned request of ``trial``, so that the trial cannot reuse a process."""
    asked = trial.placement_group_factory
    return planned_of(asked) is not asked


def slots_taken(trial: Trial) -> int:
    """Return the number of slots that ``trial`` occupies: 1 unless a scheduler gave the trial more resources."""
    if not has_raised_resources(trial):
        return 1
    asked = trial.placement_group_factory
    return max(map(num_slots_for, bundles_of(asked), bundles_of(planned_of(asked))))


def slot_before(trial: Trial) -> TrialSlot | None:
    """Return the last slot of ``trial``, possibly from before a restore, or ``None`` if no slot can be read.

    The trial's request may lack the slot, because Tune computes the request again when it restores a trial.
    """
    text = getattr(trial, SLOT_ATTRIBUTE, None)
    try:
        return None if text is None else TrialSlot.from_json(text)
    except InvalidResourcesError as error:  # another version of this package saved it
        _logger.warning("the last slot of %s cannot be read: %s", trial, error)
        return None


def remember_slot(trial: Trial, slot: TrialSlot) -> None:
    """Save ``slot`` with ``trial``, so that a restored trial still has it."""
    setattr(trial, SLOT_ATTRIBUTE, slot.to_json())  # Tune saves all attributes of a trial as JSON, with the experiment
    trial.invalidate_json_state()


_FALLBACK: Final = "policy_fallback"


def remember_fallback(trial: Trial) -> None:
    """Record in ``trial`` that it could not use its device, so that it does not try again after a restore."""
    setattr(trial, _FALLBACK, True)
    trial.invalidate_json_state()


def has_fallen_back(trial: Trial) -> bool:
    """Return whether ``trial`` could not use its device, possibly before a restore."""
    return bool(getattr(trial, _FALLBACK, False))
