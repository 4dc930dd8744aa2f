"""Tests of the wording of messages."""

import pytest

from tests.clusters import nodes
from tune_policies import AcceleratorPolicy, AutoPolicy, InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.wording import with_article

NOUNS = "a GPU", "a CPU", "a TPU", "an HPU", "an NPU", "a neuron_core", "an AutoPolicy", "a GpuPolicy", "a usage record"


@pytest.mark.parametrize("expected", NOUNS)
def test_the_article_fits_how_the_noun_is_spoken(expected):
    assert with_article(expected.split(maxsplit=1)[1]) == expected


def test_errors_about_devices_and_policies_use_the_fitting_article():
    with pytest.raises(InfeasibleRequestError, match="Add an HPU node"):
        AcceleratorPolicy(resource="HPU").plan(nodes((4, 0)))
    with pytest.raises(InvalidResourcesError, match="an AutoPolicy cannot be changed"):
        AutoPolicy().cpus = 2
