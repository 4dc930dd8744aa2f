"""``with_limits`` limits tasks and actors in the same way as trials.

CuPy and NVML are stand-ins (tests/stand_ins.py).
"""

import os
from contextlib import suppress

import pytest
import ray
from threadpoolctl import threadpool_info

from tests.on_ray.runner.test_limits_follow import GIB, NODE
from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InvalidResourcesError
from tune_policies.trainers import gpu_memory_usage, with_limits

pytestmark = pytest.mark.ci

SHARE = GpuMemoryPolicy(gpu_memory="4GiB", cpus=1).plan(ClusterCapacity.of(NODE))


def state():
    """Import CuPy, and return the limits and the environment of the process."""
    import cupy  # noqa: F401

    usage = gpu_memory_usage()
    return {
        "share": usage.share_bytes,
        "limited": [*usage.limit_bytes],
        "device": os.environ["CUDA_VISIBLE_DEVICES"],
        "threads": os.environ["OMP_NUM_THREADS"],
    }


def states():
    yield state()


def allocate(gib):
    import cupy

    return cupy.empty(gib * GIB).size


def import_and_ignore_errors():
    os.environ["STAND_IN_ALLOCATOR"] = "another"
    with suppress(Exception):
        import cupy  # noqa: F401


class Base:
    def __init__(self, first, *, second):
        self.of = first, second

    @property
    def both(self):
        return self.of


class Model(Base):
    """A class with a base class, and methods of every kind."""

    def state(self):
        return {"of": self.both, **state()}

    def fails(self):
        import_and_ignore_errors()

    def too_much(self):
        return allocate(5)

    @ray.method(num_returns=2)
    def two(self):
        return self.twice(1), self.of_class()

    @staticmethod
    def twice(number):
        return 2 * number

    @classmethod
    def of_class(cls):
        return cls.__name__


class AsyncModel:
    async def state(self):
        return state()

    async def states(self):
        yield state()


def remote(target, plan=SHARE, **options):
    return ray.remote(**plan.remote_options(), **options)(with_limits(plan)(target))


LIMITED = {"share": 4 * GIB, "limited": ["cupy"], "device": "0", "threads": "1"}


def result_of(reference):
    return ray.get(reference, timeout=60)


@pytest.mark.rest
def test_the_gpu_memory_of_a_task_is_limited(nvml):
    assert result_of(remote(state).remote()) == LIMITED
    with pytest.raises(MemoryError, match="Out of memory allocating 5,368,709,120 bytes"):
        result_of(remote(allocate).remote(5))
    with pytest.raises(ray.exceptions.RayTaskError, match=r'UnenforcedLimitError: .*Pass on_unenforced_limit="warn"'):
        result_of(remote(import_and_ignore_errors).remote())


def test_the_gpu_memory_of_an_actor_is_limited_and_its_class_is_kept(nvml):
    actor = remote(Model).remote(1, second=2)

    assert result_of(actor.state.remote()) == {"of": (1, 2), **LIMITED}
    assert result_of(actor.two.remote()) == [2, "Model"]
    assert result_of(actor.twice.remote(4)) == 8
    with pytest.raises(MemoryError, match="Out of memory"):
        result_of(actor.too_much.remote())
    with pytest.raises(TypeError, match="missing a required argument: 'first'"):
        remote(Model).remote()
    ray.kill(actor)


@pytest.mark.rest
def test_the_gpu_memory_of_async_actors_and_generators_is_limited(nvml):
    actor = remote(AsyncModel).remote()

    assert result_of(actor.state.remote()) == LIMITED
    assert [result_of(each) for each in actor.states.remote()] == [LIMITED]
    assert [result_of(each) for each in remote(states).remote()] == [LIMITED]
    ray.kill(actor)


@pytest.mark.rest
def test_a_reused_process_gets_a_new_limit_at_each_call(nvml):
    def share_of_process():
        return os.getpid(), state()["share"]

    kept = ray.remote(**SHARE.remote_options(reuse="keep"))(with_limits(SHARE)(share_of_process))

    (first, *shares), (second, *more) = result_of(kept.remote()), result_of(kept.options(num_gpus=0.5).remote())

    assert (first, shares, more) == (second, [4 * GIB], [8 * GIB])


@pytest.mark.rest
def test_a_multithreaded_actor_uses_the_planned_number_of_threads_and_no_gpu(nvml):
    import torch  # loads OpenMP together with the class, before the process is set up

    class Threads:
        def counts(self):
            assert torch.__version__
            return {pool["user_api"]: pool["num_threads"] for pool in threadpool_info()}

        def gpus(self):
            return os.environ["CUDA_VISIBLE_DEVICES"]

    plan = CpuPolicy(cpus=1).plan(ClusterCapacity.of(NODE))
    actor = remote(Threads, plan).options(max_concurrency=2).remote()

    assert result_of(actor.counts.remote()) == {"blas": 1, "openmp": 1}
    assert result_of(actor.gpus.remote()) == ""
    ray.kill(actor)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({"OMP_NUM_THREADS": "3"}, {"openmp": 3, "openblas": 3}),
        ({"OPENBLAS_NUM_THREADS": "2"}, {"openmp": 1, "openblas": 2}),
        ({"OMP_NUM_THREADS": "2,1", "NPROC": "5"}, {"openmp": 2, "openblas": 2, "NPROC": "5"}),
    ],
    ids=["OpenMP", "a BLAS library", "a list of numbers"],
)
def test_thread_variables_in_the_runtime_env_take_precedence_over_the_planned_threads(nvml, variables, counts):
    import torch

    class Threads:
        def counts(self):
            assert torch.__version__
            found = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
            return {**found, "NPROC": os.environ["NPROC"]}

    plan = CpuPolicy(cpus=1).plan(ClusterCapacity.of(NODE))

    actor = remote(Threads, plan, runtime_env={"env_vars": variables}).options(max_concurrency=2).remote()

    found = result_of(actor.counts.remote())
    assert found.items() >= {name: count for name, count in counts.items() if name in found}.items()
    ray.kill(actor)


@pytest.mark.parametrize(
    ("decorated", "message"),
    [
        (lambda: with_limits(SHARE)(ray.remote(state)), "is already remote. Write @with_limits below @ray.remote"),
        (lambda: with_limits(SHARE)(ray.remote(Model)), "is already remote. Write @with_limits below @ray.remote"),
        (lambda: with_limits(SHARE)(4), "with_limits takes a function or a class, got 4"),
        (lambda: with_limits(GpuPolicy()), "with_limits takes a plan, such as plan_on_cluster"),
    ],
    ids=["a remote function", "a remote class", "a number", "a policy"],
)
def test_invalid_targets_of_with_limits_are_rejected(decorated, message):
    with pytest.raises(InvalidResourcesError, match=message):
        decorated()
