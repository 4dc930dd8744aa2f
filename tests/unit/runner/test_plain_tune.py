"""Programs that compare plain Tune with a policy are drawn from a seed, and their outcomes are compared."""

import pytest

from tests.evidence.plain_tune.comparing import compare
from tests.evidence.plain_tune.drawing import Amounts, Failure, Leave, Program, Request, draw, simpler
from tune_policies import ResourcePolicy

PROGRAM = Program(seed=0, nodes=(Amounts(cpus=2),), request=Request(bundles=(Amounts(cpus=1),)), policy="own")
TRIAL = {"x": 0.5, "y": 1, "status": "TERMINATED", "failures": 0, "steps_done": 4, "total": 2.0}


def outcome(*trials, seconds=10, error=None):
    return {"seconds": seconds, "error": error, "processes": 1, "trials": [{**TRIAL, **trial} for trial in trials]}


def test_equal_seeds_give_equal_programs():
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]


def test_each_program_has_a_policy_and_survives_json():
    for seed in range(300):
        program = draw(seed)

        assert isinstance(program.resource_policy(), ResourcePolicy)
        assert Program.model_validate_json(program.model_dump_json()) == program


def test_simpler_programs_are_simplified_until_none_is_left():
    program = draw(3)
    for _ in range(40):
        program = next(simpler(program), program)

    assert [*simpler(program)] == []


@pytest.mark.parametrize(
    ("plain", "policy", "verdict"),
    [
        (outcome({}), outcome({}), "agrees"),
        (outcome({}), outcome({}, seconds=15.9), "agrees"),
        (outcome({}), outcome({}, seconds=16.1), "slow"),
        (outcome({}), outcome({"status": "PENDING"}, error="hang"), "hang"),
        (outcome({}), outcome(error="TuneError"), "error"),
        (outcome({}), None, "error"),
        (outcome({}, {}), outcome({}), "differs"),
        (outcome({}), outcome({"total": 1.5}), "differs"),
        (outcome({}), outcome({"x": 0.25, "total": 1.0}), "differs"),
        (outcome({}), outcome({"failures": 1}), "differs"),
        (outcome({}), outcome({"status": "ERROR"}), "differs"),
        (outcome({}, error="hang"), None, "plain Tune did not end"),
    ],
)
def test_a_run_under_a_policy_is_compared_with_plain_tune(plain, policy, verdict):
    assert compare(PROGRAM, plain, policy)[0] == verdict


@pytest.mark.parametrize(("x", "verdict"), [(0.1, "agrees"), (0.9, "differs")])
def test_only_trials_that_the_program_lets_fail_may_fail(x, verdict):
    failure = Failure(how="raise", at_step=3, times=1, below=0.4)
    program = PROGRAM.model_copy(update={"scheduler": "asha", "failure": failure})
    failed = outcome({"x": x, "total": 4 * x, "status": "ERROR", "failures": 1})

    assert compare(program, outcome({"x": x, "total": 4 * x}), failed)[0] == verdict


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler": "asha"},
        {"searcher": "optuna", "failure": Failure(how="raise", at_step=1, times=1, below=0.4), "max_failures": 1},
        {"leaves": (Leave(at_s=1, node=1),)},
    ],
    ids=["a scheduler that stops trials", "failures of suggested configs", "a node that leaves"],
)
def test_differences_that_depend_on_time_are_ignored(changes):
    program = PROGRAM.model_copy(update=changes)

    assert compare(program, outcome({"failures": 1}), outcome({"steps_done": 2, "total": 1.0}))[0] == "agrees"
