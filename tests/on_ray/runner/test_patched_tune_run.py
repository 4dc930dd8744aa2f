"""Tests that the arguments of every call of ``tune.run`` change in a block, and that ``tune.run`` stays the same."""

import contextvars
import functools
import importlib
import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray import tune

from tune_policies import RayVersionError
from tune_policies.ray_compat import patched_tune_run

RAY = {"num_cpus": 4}

pytestmark = [pytest.mark.rest, pytest.mark.ray_border]


def report_once(config):
    tune.report({"block": config.get("block")})


def named(block):
    """Return a function that adds the name of the block to the config that is passed to ``tune.run``."""
    return lambda arguments: {"config": {"block": block}}


class Library:
    """A library that stored ``tune.run`` before any block, in each way in which Python stores a function."""

    of_class = staticmethod(tune.run)

    def __init__(self):
        self.of_instance = tune.run

    def by_default(self, *args, run=tune.run, **kwargs):
        return run(*args, **kwargs)


LIBRARY = Library()
PARTIAL = functools.partial(tune.run)
DICTIONARY = {"run": tune.run}
WRAPPER = functools.wraps(tune.run)(lambda *args, run=tune.run, **kwargs: run(*args, **kwargs))

WAYS_TO_RUN = {
    "the name in ray.tune": lambda: tune.run,
    "the name in Ray's module": lambda: importlib.import_module("ray.tune.tune").run,
    "a partial": lambda: PARTIAL,
    "a dictionary": lambda: DICTIONARY["run"],
    "a default argument": lambda: LIBRARY.by_default,
    "a class attribute": lambda: Library.of_class,
    "an instance attribute": lambda: LIBRARY.of_instance,
    "a wrapper": lambda: WRAPPER,
}


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_every_reference_to_tune_run_uses_the_change_only_in_a_block(way):
    """The change raises an error, so that no run starts. Without a block, Tune rejects the unknown argument."""
    run = WAYS_TO_RUN[way]()

    def refuse(arguments):
        raise LookupError(arguments["run_or_experiment"])

    with patched_tune_run.changed_tune_run(refuse), pytest.raises(LookupError, match="PPO"):
        run("PPO")
    with pytest.raises(TypeError, match="unknown_argument"):
        run("PPO", unknown_argument=1)


def refusing(name):
    """Return a change that ends the call with an error, so that no run starts."""

    def refuse(arguments):
        raise LookupError(name)

    return refuse


def test_blocks_may_end_in_another_order_or_context_than_they_began():
    before = state_of_run()
    context = contextvars.copy_context()
    first, second = (patched_tune_run.changed_tune_run(refusing(name)) for name in ("first", "second"))
    context.run(first.__enter__)
    context.run(second.__enter__)

    context.run(first.__exit__, None, None, None)
    with pytest.raises(LookupError, match="second"):
        context.run(tune.run, "PPO")
    second.__exit__(None, None, None)  # in another context

    assert state_of_run() == before
    assert context.run(patched_tune_run._running_blocks) == ()


def state_of_run():
    return tune.run.__code__, tune.run.__defaults__, tune.run.__kwdefaults__, vars(tune.run).copy()


def test_tune_run_is_restored_when_the_last_block_of_several_threads_ends():
    before, signature = state_of_run(), inspect.signature(tune.run)
    with ThreadPoolExecutor(8) as pool, patched_tune_run.changed_tune_run(named("outer")):
        barrier = threading.Barrier(8)

        def enter():
            barrier.wait()
            for _ in range(200):
                with patched_tune_run.changed_tune_run(named("inner")):
                    pass

        for done in [pool.submit(enter) for _ in range(8)]:
            done.result()
        in_block = tune.run.__code__

        assert inspect.signature(tune.run) == signature
    assert in_block is not before[0]
    assert state_of_run() == before


@pytest.mark.parametrize("module", ["ray.tune", "ray.tune.tune", "ray.tune.impl.tuner_internal"])
def test_a_wrapper_that_other_code_put_under_a_name_of_ray_stays(monkeypatch, module):
    original = tune.run

    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)

    monkeypatch.setattr(f"{module}.run", wrapper)

    def refuse(arguments):
        raise LookupError

    with patched_tune_run.changed_tune_run(refuse), pytest.raises(LookupError):
        importlib.import_module(module).run("PPO")
    assert importlib.import_module(module).run is wrapper


def test_a_version_of_ray_without_the_function_tune_run_is_reported(monkeypatch):
    for module in ("ray.tune", "ray.tune.tune", "ray.tune.impl.tuner_internal"):
        monkeypatch.setattr(f"{module}.run", print)

    with (
        pytest.raises(RayVersionError, match=r"applied needs: ray\.tune\.tune\.run"),
        patched_tune_run.changed_tune_run(named("")),
    ):
        pytest.fail("the block was entered")


def test_the_change_of_the_program_applies_in_all_threads_outside_of_blocks():
    """The program is another process, because the change stays until the program ends."""
    program = """
import threading
from ray import tune
from tune_policies.ray_compat import patched_tune_run

def change(name):
    def refuse(arguments):
        raise LookupError(name)
    return refuse

def change_used():
    try:
        tune.run("PPO")
    except LookupError as error:
        print(error)

patched_tune_run.change_tune_run_of_program(change("of the program"))
change_used()
with patched_tune_run.changed_tune_run(change("of a block")):
    change_used()
    thread = threading.Thread(target=change_used)
    thread.start()
    thread.join()
change_used()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["of the program", "of a block", "of the program", "of the program"]


def block_of_run(folder):
    (trial,) = tune.run(report_once, storage_path=str(folder), verbose=0).trials
    return trial.last_result["block"]


def test_every_way_to_run_tune_uses_the_change_of_the_innermost_block(tmp_path):
    run_config = tune.RunConfig(storage_path=str(tmp_path / "tuner"), verbose=0)
    experiment = tune.Experiment("experiment", report_once, storage_path=str(tmp_path / "experiments"))

    with patched_tune_run.changed_tune_run(named("outer")):
        with patched_tune_run.changed_tune_run(named("inner")):
            of_run = block_of_run(tmp_path / "inner")
        (of_tuner,) = tune.Tuner(report_once, run_config=run_config).fit()
    seen = []
    with patched_tune_run.changed_tune_run(lambda arguments: seen.append(arguments) or {}):
        tune.run_experiments(experiment, verbose=0)

    assert (of_run, of_tuner.metrics["block"]) == ("inner", "outer")
    assert [arguments["run_or_experiment"] for arguments in seen] == [[experiment]]


def test_tune_run_is_unchanged_in_other_threads_and_restored_after_an_error(tmp_path, monkeypatch):
    # With its signal handler enabled, Tune runs only in the main thread.
    monkeypatch.setenv("TUNE_DISABLE_SIGINT_HANDLER", "1")
    found = []

    def fail_in_block():
        with patched_tune_run.changed_tune_run(named("another thread")):
            thread = threading.Thread(target=lambda: found.append(block_of_run(tmp_path)))
            thread.start()
            thread.join()
            raise ValueError("in the block")

    before = tune.run.__code__
    with pytest.raises(ValueError, match="in the block"):
        fail_in_block()

    assert found == [None]
    assert tune.run.__code__ is before
