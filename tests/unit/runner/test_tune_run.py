"""Tests of the arguments of ``run`` that are refused before Tune starts."""

import inspect

import pytest
from ray import tune

from tune_policies import CpuPolicy, GpuPolicy, InvalidResourcesError, OomRetryScheduler, PolicyScheduler, run, tuner
from tune_policies.trainers.start.tune_run import OPTIONS


@pytest.mark.parametrize(
    ("resources", "advice"),
    [
        pytest.param({"cpu": 2}, "Write the amounts in the policy: CpuPolicy(cpus=2)", id="CPUs"),
        pytest.param({"cpu": 2, "gpu": 0}, "Write the amounts in the policy: CpuPolicy(cpus=2)", id="no GPUs"),
        pytest.param({"cpu": 2, "gpu": 0.5}, "the policy: GpuPolicy(gpus=0.5, cpus=2)", id="CPUs and GPUs"),
        pytest.param({"cpu": 2, "license": 0}, "the policy: CpuPolicy(cpus=2)", id="none of another resource"),
        pytest.param({"cpu": 2, "license": 1}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="another resource"),
        pytest.param({"cpu": 0}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="nothing"),
        pytest.param({"cpu": "two"}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="no number"),
    ],
)
def test_the_error_for_resources_per_trial_contains_the_policy_to_write(resources, advice):
    with pytest.raises(InvalidResourcesError) as caught:
        run(lambda config: None, CpuPolicy(), resources_per_trial=resources)

    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(
    ("start", "arguments", "message"),
    [
        pytest.param(run, {"maymove": True}, "unknown argument 'maymove'; did you mean 'may_move'?", id="an option"),
        pytest.param(run, {"num_sample": 2}, "'num_sample'; did you mean 'num_samples'?", id="an argument of tune.run"),
        pytest.param(run, {"gpus": 1}, "unknown argument 'gpus'. It is a field of GpuPolicy", id="a policy's field"),
        pytest.param(run, {"param_space": {}}, "'param_space'. Write config=… in run", id="of tune.Tuner"),
        pytest.param(run, {"tune_config": None}, "Pass its fields to run, such as num_samples=…", id="a TuneConfig"),
        pytest.param(run, {"run_config": None}, "Pass its fields to run, such as name=…", id="a RunConfig"),
        pytest.param(tuner, {"config": {}}, "'config'. Write param_space=… in tuner", id="of tune.run"),
        pytest.param(tuner, {"metric": "a"}, "Write tune_config=tune.TuneConfig(metric=…)", id="of TuneConfig"),
        pytest.param(tuner, {"name": "a"}, "Write run_config=tune.RunConfig(name=…)", id="of RunConfig"),
        pytest.param(tuner, {"resources_per_trial": {"cpu": 2}}, "the policy: CpuPolicy(cpus=2)", id="resources"),
    ],
)
def test_an_unknown_argument_is_refused_before_ray_starts_with_what_to_write(start, arguments, message):
    with pytest.raises(InvalidResourcesError) as caught:
        start(lambda config: None, CpuPolicy(), **arguments)

    assert message in str(caught.value)


def test_tune_run_has_the_arguments_to_write_instead_of_those_of_a_tuner():
    assert {"config", "num_samples", "name"} <= inspect.signature(tune.run).parameters.keys()


def test_the_signatures_of_tune_name_all_arguments():
    """Otherwise, an unknown argument would raise an error of Tune, after Ray has started."""
    parameters = [*inspect.signature(tune.run).parameters.values(), *inspect.signature(tune.Tuner).parameters.values()]

    assert not [parameter for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]


@pytest.mark.parametrize("name", ["may_move", "falls_back"])
def test_a_text_is_not_accepted_as_true_or_false(name):
    assert name in OPTIONS
    with pytest.raises(InvalidResourcesError, match=f"{name} must be True or False, got 'no'"):
        PolicyScheduler(GpuPolicy() | CpuPolicy(), **{name: "no"})


@pytest.mark.parametrize("start", [run, tuner])
def test_a_tuner_is_not_a_trainable(start):
    with pytest.raises(InvalidResourcesError, match="a Tuner is not a trainable"):
        start(tune.Tuner(lambda config: None), CpuPolicy())


@pytest.mark.parametrize("inner", [CpuPolicy(), 4, tune.schedulers.ASHAScheduler], ids=["policy", "number", "class"])
def test_the_inner_scheduler_of_retries_must_be_a_scheduler(inner):
    with pytest.raises(InvalidResourcesError, match="inner must be a scheduler of Tune, got "):
        OomRetryScheduler(inner)
