"""The thread that looks for deadlocks of Train workers continues after errors."""

import time
from types import SimpleNamespace

import pytest

from tune_policies.trainers.watches import deadlock_watch
from tune_policies.values.errors import InfeasibleRequestError, ProbeError, RayVersionError

NO_ROOM = InfeasibleRequestError("3 workers", "room for 2", "CPU", "Use 2 workers.")


@pytest.fixture
def wait_with(monkeypatch):
    """A function that starts a watch whose readings are errors, or that finds a deadlock in a reading without one."""
    watches = []

    def start(*readings):
        left = [*readings]

        def read_records():
            reading = left.pop(0)
            if reading is not None:
                raise reading

        monkeypatch.setattr(deadlock_watch, "_INTERVAL_S", 0.01)
        monkeypatch.setattr(deadlock_watch, "read_records", read_records)
        monkeypatch.setattr(deadlock_watch, "remove_abandoned_groups", lambda records: None)
        monkeypatch.setattr(deadlock_watch, "remove_groups", lambda run_id, only_pending: None)
        monkeypatch.setattr(deadlock_watch._Wait, "_find_deadlock", lambda wait, records: NO_ROOM)
        watches.append(deadlock_watch._Wait(SimpleNamespace(own_id="run"), {}))
        return watches[-1], left

    yield start
    for watch in watches:
        watch.stop.set()


def wait_until(condition):
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "the watch does not continue"
        time.sleep(0.01)


def test_the_check_finds_a_deadlock_after_errors_that_it_logs_once(wait_with, caplog):
    watch, _ = wait_with(KeyError("NodeID"), ProbeError("Ray is busy"), TypeError("no answer"), None)

    wait_until(lambda: watch.verdict is not None)

    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.exc_info[0] for record in warnings] == [KeyError]
    assert watch.verdict.args == NO_ROOM.args


def test_the_check_ends_if_ray_lacks_a_name_that_it_needs(wait_with, caplog):
    watch, left = wait_with(RayVersionError("the deadlock check needs a name"), None)

    wait_until(lambda: "is disabled" in caplog.text)

    assert (watch.verdict, left) == (None, [None])
