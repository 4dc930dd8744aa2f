"""AuditCallback changes nothing in a run, measures its trials from outside, and estimates the gain of a policy."""

import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray import tune

from tests.evidence.audit.comparing import TOLERANCE, estimate_and_gain
from tune_policies import AuditCallback, ProbeError
from tune_policies.trainers.usage import policy_callback

pytestmark = pytest.mark.ci

RAY = {"num_cpus": 4}

MIB = 2**20


def wait_mostly(config):
    held = bytearray(100 * MIB)
    for _ in range(config.get("steps", 8)):
        time.sleep(0.5)
        tune.report({"held": len(held)})


def use_a_child(config):
    code = "import time\nheld = bytearray(200 * 2**20)\nwhile time.process_time() < 4: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    tune.report({"loss": 1})


def run(trainable, folder, name="run", **kwargs):
    return tune.run(
        trainable, **{"storage_path": str(folder), "name": name, "verbose": 0, "reuse_actors": True, **kwargs}
    )


@pytest.fixture
def audited(monkeypatch):
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", "tune_policies.AuditCallback")


def test_an_audit_states_what_trials_used_and_which_policy_to_write(tmp_path, capfd, audited):
    trials = run(tune.with_resources(wait_mostly, {"cpu": 2}), tmp_path, num_samples=4).trials

    printed = " ".join(capfd.readouterr().out.split())
    assert "Audit of the run run" in printed
    assert "trials with 2 CPUs used 0.0" in printed
    # On a busy machine, starting two more processes takes longer than the trials.
    advice = r"would run up to 4 trials at once instead of 2 .* PROGRAM|would fit at once instead of 2, but"
    assert re.search(advice, printed)
    assert all(trial.placement_group_factory.required_resources == {"CPU": 2} for trial in trials)
    assert all(trial.last_result.keys().isdisjoint({"usage", "slot"}) for trial in trials)
    assert not list(Path(tmp_path, "run").glob("resource_usage*"))


@pytest.mark.rest
def test_child_processes_of_trials_count(tmp_path, capfd, audited):
    run(use_a_child, tmp_path)

    used = capfd.readouterr().out.partition("- trials with 1 CPU used ")[2].split()
    # The trial itself only waits, and the child gets the CPU time that other processes leave.
    assert float(used[0]) > 0.1
    assert float(used[4]) > 200


@pytest.mark.rest
def test_an_audit_begins_later_if_ray_does_not_answer_at_first(tmp_path, capfd, audited, monkeypatch):
    read = policy_callback._read_capacity
    num_failures = itertools.count(1)

    def answer_later():
        if next(num_failures) <= 3:
            raise ProbeError("Ray does not answer")
        return read()

    monkeypatch.setattr(policy_callback, "_read_capacity", answer_later)

    run(tune.with_resources(wait_mostly, {"cpu": 2}), tmp_path, num_samples=4)

    printed = " ".join(capfd.readouterr().out.split())
    assert "trials with 2 CPUs used 0.0" in printed
    assert "trials: 4 finished" in printed


@pytest.mark.rest
def test_each_run_of_a_program_has_its_audit_and_its_page(tmp_path, capfd, audited, monkeypatch):
    monkeypatch.setenv("TUNE_POLICIES_AUDIT_PAGES", str(tmp_path / "pages"))

    for name in ("first", "second"):
        run(wait_mostly, tmp_path, name, config={"steps": 1})

    assert capfd.readouterr().out.count("Audit of the run ") == 2
    pages = sorted((tmp_path / "pages").iterdir())
    assert [page.name for page in pages] == ["first.html", "second.html"]
    assert all("policy is suggested" in page.read_text() for page in pages)


@pytest.mark.rest
def test_a_run_inside_a_trial_has_its_own_audit(tmp_path, audited):
    def outer(config):
        # A Ray that the program starts passes its environment to trials.
        os.environ.update(RAY_TUNE_CALLBACKS="tune_policies.AuditCallback", TUNE_POLICIES_AUDIT_PAGES=config["pages"])
        tune.run(wait_mostly, config={"steps": 1}, storage_path=config["pages"], name="inner", verbose=0)
        tune.report({"loss": 1})

    run(outer, tmp_path, "outer", config={"pages": str(tmp_path / "pages")})

    assert (tmp_path / "pages" / "inner.html").exists()


@pytest.mark.rest
def test_a_restored_run_continues_its_audit(tmp_path, capfd, audited):
    first = tune.Tuner(
        fail_in_the_first_run,
        param_space={"marker": str(tmp_path / "marker"), "number": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    )
    first.fit()
    Path(tmp_path, "marker").touch()
    capfd.readouterr()

    restored = tune.Tuner.restore(str(tmp_path / "run"), fail_in_the_first_run, restart_errored=True).fit()

    printed = capfd.readouterr().out
    assert restored.num_errors == 0
    assert "trials: 2 finished" in printed
    assert "1 CPU   -      3 " in printed  # three starts in both parts


def fail_in_the_first_run(config):
    if config["number"] and not Path(config["marker"]).exists():
        raise ValueError("first")
    tune.report({"loss": 1})


def run_out_of_memory(config):
    raise MemoryError


@pytest.mark.rest
def test_an_audit_states_what_retries_trials_that_run_out_of_memory(tmp_path, capfd, audited):
    run(run_out_of_memory, tmp_path, num_samples=2, raise_on_failed_trial=False)

    printed = capfd.readouterr().out
    assert "out of memory: 2 failures" in printed
    assert "trials that run out of memory would be retried with more under LearningPolicy()" in printed
    assert "Let each trial run longer" not in printed  # no trial has finished


class Interrupt(tune.Callback):
    """Presses Ctrl-C when a trial has reported five times and was measured."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] == 5:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.rest
def test_the_audit_of_an_interrupted_run_promises_no_speed(tmp_path, capfd, audited, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # they do not close their files after Ctrl-C
    trainable = tune.with_resources(wait_mostly, {"cpu": 4})

    run(trainable, tmp_path, config={"steps": 100}, num_samples=4, callbacks=[Interrupt()])

    printed = " ".join(capfd.readouterr().out.split())
    assert "trials: 1 cut off, 3 never started" in printed
    assert "would run up to 4 trials at once instead of 1" in printed
    assert "as fast" not in printed


class BrokenAudit(AuditCallback):
    """An audit in which every hook of a trial fails."""

    def _now_s(self):
        raise RuntimeError("out of order")


@pytest.mark.rest
def test_no_error_of_an_audit_ends_the_run(tmp_path, caplog):
    with caplog.at_level(logging.ERROR, logger="tune_policies"):
        analysis = run(wait_mostly, tmp_path, config={"steps": 2}, num_samples=2, callbacks=[BrokenAudit()])

    assert [trial.status for trial in analysis.trials] == ["TERMINATED"] * 2
    assert len(caplog.records) == len({record.getMessage() for record in caplog.records}) > 0


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["trainables", "scikit_learn"])
def test_under_the_named_policy_a_program_is_as_fast_as_estimated(name, tmp_path):
    program = ["-m", "tests.evidence.audit.programs", name, "{folder}"]

    advice, plain_s, policy_s = estimate_and_gain(program, tmp_path)

    assert advice["speedup"] > 1.1
    assert plain_s / policy_s == pytest.approx(advice["speedup"], rel=TOLERANCE)
