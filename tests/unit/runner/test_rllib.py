"""An RLlib algorithm requests exactly the resources that a policy plans for a trial."""

import pytest

from tests.clusters import gpu_node, nodes
from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InvalidResourcesError
from tune_policies.trainers import size_algorithm

pytestmark = pytest.mark.rest  # tests/on_ray/runner/test_rllib.py runs algorithms with these configs


@pytest.fixture(scope="module")
def ppo():
    """Import RLlib only when a test needs it, because the import takes seconds."""
    return pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)


def reserved(ppo, sized):
    """Return the CPUs and GPUs of each bundle that RLlib creates for a config."""
    bundles = ppo.PPO.default_resource_request(sized.to_dict()).bundles
    return [(bundle.get("CPU", 0), bundle.get("GPU", 0)) for bundle in bundles]


@pytest.mark.parametrize(
    ("policy", "shape", "env_runners", "learners", "bundles"),
    [
        pytest.param(CpuPolicy(cpus=4), (8, 0), 3, 0, [(1, 0)] * 4, id="without learners, the main process learns"),
        pytest.param(CpuPolicy(cpus=1), (8, 0), 0, 0, [(1, 0)], id="with one CPU, the main process does everything"),
        pytest.param(CpuPolicy(cpus=2.5), (8, 0), 1, 0, [(1, 0)] * 2, id="half a CPU stays unused"),
        pytest.param(CpuPolicy(cpus=3, num_workers=2), (6, 0), 3, 2, [(1, 0)] * 6, id="learners"),
        pytest.param(GpuPolicy(gpus=1, cpus=2), (8, 2), 1, 0, [(1, 1), (1, 0)], id="a GPU"),
        pytest.param(GpuPolicy(gpus=0.5, cpus=3), (8, 1), 2, 0, [(1, 0.5), (1, 0), (1, 0)], id="a fraction of a GPU"),
        pytest.param(
            GpuPolicy(num_workers=2, cpus=2), (4, 2), 1, 2, [(1, 0)] * 2 + [(1, 1)] * 2, id="learners with GPUs"
        ),
    ],
)
def test_cpus_are_for_env_runners_and_gpus_for_learners(ppo, policy, shape, env_runners, learners, bundles):
    sized = size_algorithm(ppo.PPOConfig(), policy.plan(nodes(shape)))

    assert (sized.num_env_runners, sized.num_learners) == (env_runners, learners)
    assert reserved(ppo, sized) == bundles


def test_gpu_memory_becomes_the_gpu_fraction_of_the_learner(ppo):
    capacity = ClusterCapacity.of(gpu_node("a", gpus=1, cpus=16, gpu_memory_gib=80))

    sized = size_algorithm(ppo.PPOConfig(), GpuMemoryPolicy(gpu_memory="10GiB", cpus=2).plan(capacity))

    assert reserved(ppo, sized) == [(1, 0.125), (1, 0)]


def test_on_different_nodes_the_algorithm_fits_the_smallest_slot(ppo):
    sized = size_algorithm(ppo.PPOConfig(), GpuPolicy().plan(nodes((64, 4), (32, 4))))

    assert sized.num_env_runners == 7


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_original_config_is_unchanged(ppo, is_frozen):
    config = ppo.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=9)
    if is_frozen:
        config.freeze()
    before = config.to_dict()

    sized = size_algorithm(config, CpuPolicy(cpus=4).plan(nodes((4, 0))))

    assert config.to_dict() == before
    assert (type(sized), sized.env, sized.num_env_runners) == (ppo.PPOConfig, "CartPole-v1", 3)
    sized.training(lr=0.1)  # a frozen config would raise an error


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (CpuPolicy(cpus=1, num_workers=2), "2 whole CPUs, but an RLlib trial with num_workers=2 needs 3"),
        (CpuPolicy(cpus=0.5), "0 whole CPUs, but an RLlib trial with num_workers=0 needs 1"),
    ],
)
def test_too_few_cpus_raise_an_error(ppo, policy, message):
    with pytest.raises(InvalidResourcesError, match=message):
        size_algorithm(ppo.PPOConfig(), policy.plan(nodes((8, 0))))


def test_several_gpus_for_one_learner_raise_an_error(ppo):
    with pytest.raises(InvalidResourcesError, match="Use gpus=1 and num_workers=2"):
        size_algorithm(ppo.PPOConfig(), GpuPolicy(gpus=2, cpus=4).plan(nodes((8, 2))))


def test_the_old_api_stack_is_rejected(ppo):
    config = ppo.PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)

    with pytest.raises(InvalidResourcesError, match="the config uses RLlib's old API stack"):
        size_algorithm(config, CpuPolicy(cpus=2))


@pytest.mark.parametrize("config", [{}, {"env": "CartPole-v1"}, None, "PPO"])
def test_anything_but_an_algorithm_config_is_rejected(config):
    with pytest.raises(
        InvalidResourcesError, match=r"config must be RLlib's AlgorithmConfig, such as PPOConfig\(\), got"
    ):
        size_algorithm(config, CpuPolicy(cpus=2))
