import inspect
import pickle

import pytest

from tune_policies import (
    InfeasibleRequestError,
    InvalidResourcesError,
    MemoryLimitError,
    ProbeError,
    ResourcePolicyError,
)

ERRORS = [
    InvalidResourcesError("gpus above 1 must be whole, got 1.5"),
    InfeasibleRequestError("1 GPU", "no node has a GPU", "GPU", "Add one.", fallback="Or take CpuPolicy()."),
    ProbeError("no Ray"),
    MemoryLimitError("no device"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_has_the_common_base_and_round_trips_through_pickle(error):
    copy = pickle.loads(pickle.dumps(error))

    assert isinstance(copy, ResourcePolicyError)
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def test_an_invalid_resources_error_is_a_value_error():
    assert issubclass(InvalidResourcesError, ValueError)


def _errors(cls=ResourcePolicyError):
    return [cls, *(each for subclass in cls.__subclasses__() for each in _errors(subclass))]


def test_every_error_shortens_long_texts():
    num_arguments = {each: max(1, len(inspect.getfullargspec(each.__init__).args) - 1) for each in _errors()}

    messages = [str(each(*["a" * 100_000] * number)) for each, number in num_arguments.items()]

    assert max(map(len, messages)) < 5_000
