"""The crossover is looked for on a real Ray: a workload whose cost is known is measured where it matters."""

import pytest

from tests.clusters import nodes
from tests.on_ray.rays import local_ray
from tune_policies.benchmarks.decide.crossover import Search, powers_of_two, search_to_file
from tune_policies.benchmarks.decide.decide import Terms, UndecidedError, decide
from tune_policies.benchmarks.record.run_set import Settings
from tune_policies.benchmarks.record.run_set_file import read_run_set

WORKLOAD = """
import time
from tune_policies.benchmarks.workloads.steps import Steps

def spins(size, device):
    each = 0.0001 * size**3 if device == "cpu" else 0.0063

    def step():
        until = time.perf_counter() + each
        while time.perf_counter() < until:
            pass
        return 1.0

    return Steps(step, steps_per_epoch=2)
"""
# The GPU is logical, so there is nothing to read of it.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]


@pytest.fixture(scope="module", autouse=True)
def started_ray():
    with local_ray(num_cpus=2, num_gpus=1):
        yield


@pytest.fixture
def search(tmp_path, monkeypatch):
    (tmp_path / "spinning.py").write_text(WORKLOAD)
    monkeypatch.chdir(tmp_path)
    return Search(
        workload="spinning:spins",
        sizes=powers_of_two(1, 8),
        settings=Settings(
            sizes={"spinning:spins": (1,)}, devices=("cpu", "gpu"), num_rounds=2, num_blocks=3, has_control=False
        ),
        terms=Terms(steps_per_trial=100_000),
        command="a test",
        output=tmp_path / "run.json",
    )


@pytest.mark.timeout(200)
def test_the_size_at_the_crossover_alone_has_all_rounds_and_the_record_decides(search):
    run_set = search_to_file(search)

    rounds = {size: len({run.round for run in run_set.runs if run.arm.size == size}) for size in search.sizes}
    assert rounds == {1: 1, 2: 1, 4: 2, 8: 1}
    assert run_set.is_complete
    assert read_run_set(search.output) == run_set
    (decided,) = decide(run_set, search.terms, nodes((2, 1))).decision.workloads
    assert (decided.sizes[0].answer, decided.sizes[-1].answer) == ("CPU", "GPU")


def test_without_one_of_the_devices_there_is_no_crossover_and_nothing_is_measured(search):
    settings = search.settings.model_copy(update={"devices": ("cpu", "TPU")})

    with pytest.raises(UndecidedError, match="TPU is not there, so there is no crossover"):
        search_to_file(search._replace(settings=settings))

    assert not search.output.exists()
