"""Tests of the reading of trials' processes on several nodes, which may be slow or lost."""

from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from tests.evidence.faults.churn import AtOnce
from tests.evidence.faults.simulated_ray import Clock
from tune_policies.trainers.usage import trial_reader
from tune_policies.trainers.usage.trial_reader import TrialReader

USED = {"cpu_s": 1.0, "host_bytes": 1, "gpu_bytes": None, "device_bytes": None, "gpu_utilization": None}
LATE = GetTimeoutError("no answer")


class Nodes:
    """The nodes of a cluster with one trial each: the driver's node ``a``, and the nodes ``b`` and ``c``.

    Attributes:
        errors: The error of each node that does not answer, by node ID. The error of ``gcs`` is that of Ray itself.
        asked: The nodes that were asked, in order.
        clock: The clock of the reader.
    """

    def __init__(self, monkeypatch):
        self.actors = {f"trial {node}": f"actor {node}" for node in "abc"}
        self.errors = {}
        self.asked = []
        self.clock = Clock()
        self.clock.now_s = 1000.0
        fake_ray = SimpleNamespace(
            get=self._answer,
            remote=lambda **_: lambda _: SimpleNamespace(options=self._new_reader),
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a"),
        )
        monkeypatch.setattr(trial_reader, "ray", fake_ray)
        monkeypatch.setattr(trial_reader, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
        monkeypatch.setattr(trial_reader, "time", self.clock)
        monkeypatch.setattr(trial_reader, "BackgroundTask", CaughtAtOnce)
        monkeypatch.setattr(trial_reader, "living_actors", self._living_actors)
        monkeypatch.setattr(trial_reader.process_facts, "read_processes", self._facts)
        self.num_readers = 0
        self.reader = TrialReader()
        for trial_id in self.actors:
            self.reader.begin(trial_id)

    def _living_actors(self):
        if "gcs" in self.errors:
            raise self.errors["gcs"]
        return [
            SimpleNamespace(actor_id=actor_id, group_id="", node_id=actor_id[-1], pid=1)
            for actor_id in self.actors.values()
        ]

    def _facts(self, process_ids):
        return {
            "at_s": self.clock.now_s,
            "usable_cpus": 1.0,
            "load": 1.0,
            "processes": dict.fromkeys(process_ids, USED),
        }

    def _new_reader(self, scheduling_strategy):
        self.num_readers += 1

        def read(process_ids):
            self.asked.append(scheduling_strategy)
            return scheduling_strategy, process_ids

        return SimpleNamespace(remote=lambda: SimpleNamespace(read=SimpleNamespace(remote=read)))

    def _answer(self, asked, timeout):
        node, process_ids = asked
        if node in self.errors:
            raise self.errors[node]
        return self._facts(process_ids)

    def read(self, after_s=1.0):
        """Return the trials that are read ``after_s`` seconds later."""
        self.clock.now_s += after_s
        self.reader.read(self.actors)
        return {trial_id[-1] for trial_id in self.reader.read({})}


class CaughtAtOnce(AtOnce):
    """Replaces ``BackgroundTask``: the work ends at once, and ``take`` returns each result or error once."""

    def start(self, work):
        try:
            return super().start(work)
        except (RuntimeError, TypeError) as error:
            self._answer = error
            return True

    def take(self):
        answer, self._answer = self._answer, None
        return answer


@pytest.fixture
def nodes(monkeypatch):
    return Nodes(monkeypatch)


def test_the_processes_on_all_nodes_are_read(nodes):
    assert nodes.read() == {"a", "b", "c"}


def test_the_other_nodes_are_read_while_a_node_is_slow(nodes):
    nodes.errors["b"] = LATE

    assert [nodes.read() for _ in range(3)] == [{"a", "c"}] * 3


def test_a_slow_node_is_read_again_after_a_pause(nodes, caplog):
    nodes.errors["b"] = LATE
    nodes.read()
    nodes.errors.clear()

    assert nodes.read(9.0) == {"a", "c"}
    assert nodes.read(1.0) == {"a", "b", "c"}
    assert caplog.messages == ["the processes of trials on node b could not be read, and will be read again: no answer"]


def test_a_node_that_stays_slow_is_asked_less_and_less_often_but_at_least_every_five_minutes(nodes):
    nodes.errors["b"] = LATE
    for _ in range(3600):
        nodes.read()

    assert 12 <= nodes.asked.count("b") <= 16
    assert nodes.asked.count("c") == 3600


def test_the_reader_of_a_lost_node_is_started_again(nodes):
    nodes.read()
    nodes.errors["b"] = RayActorError()
    nodes.read()
    nodes.errors.clear()

    assert nodes.read(10.0) == {"a", "b", "c"}
    assert nodes.num_readers == 3


def test_the_processes_are_read_again_after_ray_could_not_be_reached(nodes, caplog):
    nodes.errors["gcs"] = RuntimeError("Failed to connect to GCS")
    assert nodes.read() == set()
    nodes.errors.clear()

    assert nodes.read(9.0) == set()
    assert nodes.read(1.0) == {"a", "b", "c"}
    assert len(caplog.messages) == 1


def test_another_error_is_raised(nodes):
    nodes.errors["gcs"] = TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        nodes.read()
