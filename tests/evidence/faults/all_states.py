"""Explores all reachable states of the slot assignment of a small run, and checks three claims in each state.

``RunSlots`` and ``SlotBoard`` are real. The model replaces Ray, Tune and the plan: Ray grants a request if its node is
alive and has enough free slots, and one other program may occupy the resources of one slot. Trials are anonymous, so
states that differ only in the names of trials are the same state. All trials are equally fast, so no slot stays idle.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from ray.tune import PlacementGroupFactory

from tune_policies import Resources, TrialSlot
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.placement.fill_nodes import Placement
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.scheduling.choose_slots import RunSlots, Start, Withdraw
from tune_policies.trainers.scheduling.slot_board import SlotTypes, assignment_to, place_of
from tune_policies.trainers.scheduling.trial_record import TrialRecord
from tune_policies.values.units import GIB

SLOTS: Final = (
    TrialSlot(trial=Resources(cpus=1, gpus=0.25, memory_bytes=GIB), max_concurrent_trials=3),
    TrialSlot(trial=Resources(cpus=2, memory_bytes=GIB), max_concurrent_trials=1),
)


class _Types(SlotTypes):
    """Compares the two slots of the model only once, because each change of the nodes compares them."""

    def same_type(self, slot: TrialSlot) -> int | None:
        return _same_type(slot)


@cache
def _same_type(slot: TrialSlot) -> int | None:
    return SlotTypes(SLOTS).same_type(slot)


_TYPES: Final = _Types(SLOTS)
_OWN: Final = PlacementGroupFactory([{"CPU": 1.0}])
_REQUESTS: Final = tuple(slot.placement_group_factory() for slot in SLOTS)
_LATER_S: Final = 1_000_000.0
"""The time of each decision, in seconds. Late requests and old blocks are from time 0."""


class Node(NamedTuple):
    """A node of the model."""

    node_id: str
    slot_type: int
    num_slots: int

    @property
    def placement(self) -> Placement:
        """The placement of the node's slots."""
        return _placement_on(self)


@cache
def _placement_on(node: Node) -> Placement:
    return Placement(slot_type=node.slot_type, node_id=node.node_id, count=node.num_slots)


class Trial(NamedTuple):
    """A trial: the number of slots whose memory it needs, and the slot type in which it has run, or ``None``."""

    num_slots: int
    ran_in: int | None = None


class Held(NamedTuple):
    """A trial with a slot on a node. ``phase`` is ``"new"``, ``"late"``, ``"granted"`` or ``"running"``."""

    trial: Trial
    node: int
    num_slots: int
    phase: str

    @property
    def is_granted(self) -> bool:
        """Whether the trial occupies resources of Ray."""
        return self.phase in ("granted", "running")


class State(NamedTuple):
    """A state of the run.

    Attributes:
        waiting: The waiting trials, in order.
        held: The trials with a slot, in the order in which they got it.
        paused: The paused trials, sorted.
        alive: The indices of the living nodes.
        blocked: The indices of the nodes whose placements count as blocked.
        holder: The index of the node that another program uses, or ``None``.
    """

    waiting: tuple[Trial, ...]
    held: tuple[Held, ...]
    paused: tuple[Trial, ...]
    alive: frozenset[int]
    blocked: frozenset[int]
    holder: int | None


def _key(trial: Trial) -> tuple[int, int]:
    ran_in = -1 if trial.ran_in is None else trial.ran_in
    return trial.num_slots, ran_in


class _ModelPlan:
    """Replaces ``RunPlan`` by placements on the living nodes."""

    def __init__(self) -> None:
        self.slot_types = _TYPES
        self.plan = SimpleNamespace(by_config=None, slots=SLOTS)
        self.placements: list[Placement] = []
        self.factories: dict[Placement, PlacementGroupFactory] = {}
        self.is_feasible = True
        self.starts_trials = True

    def use(self, nodes: Iterable[Node]) -> None:
        self.placements = [node.placement for node in nodes]
        self.factories = {place: _REQUESTS[place.slot_type] for place in self.placements}

    def follow_nodes(self, nodes: object) -> bool:
        return True

    def fitting_memory(self, needed: MemoryFloor, planned: object, node_id: object) -> MemoryFloor:
        return needed  # the nodes have more memory than their slots

    def stop_waiting_for_trial(self) -> None:
        pass  # no trial has its own request


class Model:
    """Computes the successors of a state with the real ``RunSlots``.

    Args:
        nodes: The nodes, better slot types first.
        trials: The number of slots that each trial needs.
        may_change: Whether nodes may leave and join again.
    """

    def __init__(self, nodes: tuple[Node, ...], trials: tuple[int, ...], *, may_change: bool = True) -> None:
        self.nodes = nodes
        self._index_of = {node.node_id: index for index, node in enumerate(nodes)}
        self.may_change = may_change
        self._plan = _ModelPlan()
        self._slots = RunSlots(self._plan, may_move=False, falls_back=False)  # type: ignore[arg-type]
        everything = frozenset(range(len(nodes)))
        self.start = State(tuple(Trial(number) for number in trials), (), (), everything, frozenset(), None)
        # All of these results depend only on a state, and the checks of similar states need the same results.
        self._step = cache(self._take_step)
        self._grant = cache(self._take_grant)
        self._release = cache(self._take_release)
        self._names: dict[tuple[Trial, int], _Name] = {}
        self._cycles: dict[State, tuple[State, ...]] = {}
        self._ends: set[State] = set()

    def free(self, state: State, node: int) -> int:
        """Return the number of slots of a node whose resources are really free."""
        if node not in state.alive:
            return 0
        used = sum(held.num_slots for held in state.held if held.node == node and held.is_granted)
        return self.nodes[node].num_slots - used - int(state.holder == node)

    # The state of the real objects.

    def _load(self, state: State, *, blocks_are_old: bool = False) -> dict[Any, TrialRecord]:
        slots = self._slots
        self._plan.use(self.nodes[index] for index in sorted(state.alive))
        slots.waiting = {}
        slots.board = type(slots.board)(self._plan.placements)
        records: dict[Any, TrialRecord] = {}
        for trial in state.waiting:
            name: Any = self._name(trial, len(records))
            records[name] = name.record
            slots.wait(name)
        for held in state.held:
            name = self._name(held.trial, len(records))
            records[name] = name.record
            requested_s = 0.0 if held.phase == "late" else _LATER_S
            placement = self.nodes[held.node].placement
            assignment = assignment_to(placement, SLOTS, num_slots=held.num_slots, requested_s=requested_s)
            slots.board.assign(name, assignment._replace(is_granted=held.is_granted))
        at_s = 0.0 if blocks_are_old else _LATER_S
        slots.board._blocked = {place_of(self.nodes[index].placement): at_s for index in state.blocked}
        return records

    def _name(self, trial: Trial, number: int) -> "_Name":
        key = trial, number
        if key not in self._names:
            self._names[key] = _Name(trial)
        name = self._names[key]
        name.record.planned = _REQUESTS[0]
        return name

    def _read(self, state: State, records: dict[Any, TrialRecord], **changes: Any) -> State:
        slots = self._slots
        names = list(records)[len(state.waiting) :]
        phases = {name: held.phase for name, held in zip(names, state.held, strict=True)}
        held = []
        for name, assignment in slots.assignments.items():
            phase = phases.get(name, "new")
            if not assignment.is_granted:
                phase = "new" if assignment.requested_s == _LATER_S else "late"
            elif phase != "running":
                phase = "granted"
            held.append(Held(_trial(name), self._index_of[str(assignment.node_id)], assignment.num_slots, phase))
        places = {place_of(node.placement): index for index, node in enumerate(self.nodes)}
        blocked = frozenset(places[place] for place in slots.board._blocked)
        waiting = tuple(map(_trial, slots.waiting))
        return state._replace(waiting=waiting, held=tuple(held), blocked=blocked, **changes)

    # Decisions.

    def step(self, state: State, *, blocks_are_old: bool = False) -> State:
        """Return the state after one step of the run: at most one withdrawal and one start."""
        return self._step(state, blocks_are_old)

    def _take_step(self, state: State, blocks_are_old: bool) -> State:
        records, slots = self._load(state, blocks_are_old=blocks_are_old), self._slots
        withdrawal = slots.withdrawal(records, _LATER_S)
        if withdrawal is not None:
            self._withdraw(withdrawal)
        startable = slots.startable(records, slots.waiting, _LATER_S)
        chosen = slots.choose(records, startable, num_paused=0, num_future=10**9, now_s=_LATER_S)
        assert chosen is None or isinstance(chosen, Start)
        return self._read(state, records)

    def _withdraw(self, withdrawal: Withdraw) -> None:
        self._slots.release(withdrawal.trial, _LATER_S)
        self._slots.wait(withdrawal.trial)

    # Events.

    def events(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the name and the next state of each event that is possible in ``state``."""
        yield "step", self.step(state)
        if state.blocked:
            yield "blocks become old", self.step(state, blocks_are_old=True)
        for index, held in enumerate(state.held):
            yield from self._events_of(state, index, held)
        for trial in dict.fromkeys(state.paused):
            paused = list(state.paused)
            paused.remove(trial)
            yield "resume", state._replace(paused=tuple(paused), waiting=(*state.waiting, trial))
        if any(held.phase == "new" for held in state.held):
            yield "patience elapses", self.wait(state)
        for node in range(len(self.nodes)):
            yield from self._events_of_node(state, node)

    def _events_of(self, state: State, index: int, held: Held) -> Iterator[tuple[str, State]]:
        if not held.is_granted:
            if self.free(state, held.node) >= held.num_slots:
                yield "grant", self.grant(state, index)
            return
        rest = state._replace(held=state.held[:index] + state.held[index + 1 :])
        if held.phase == "granted":
            running = Trial(held.trial.num_slots, self.nodes[held.node].slot_type)
            after = held._replace(trial=running, phase="running")
            yield "start", state._replace(held=(*state.held[:index], after, *state.held[index + 1 :]))
        else:
            yield "finish", self._released(state, index, rest)
            paused = tuple(sorted((*state.paused, held.trial), key=_key))
            yield "pause", self._released(state, index, rest._replace(paused=paused))
        yield "fail", self._released(state, index, rest)
        yield "requeue", self._released(state, index, rest._replace(waiting=(*state.waiting, held.trial)))

    def _released(self, state: State, index: int, expected: State) -> State:
        """Release a slot with the real board, and return the state, whose trial is where ``expected`` has it."""
        return self._release(state, index)._replace(waiting=expected.waiting, paused=expected.paused)

    def _take_release(self, state: State, index: int) -> State:
        records = self._load(state)
        name = list(self._slots.assignments)[index]
        self._slots.release(name, _LATER_S)
        return self._read(state, records)

    def grant(self, state: State, index: int) -> State:
        """Return the state after Ray has granted the request of ``held[index]``."""
        return self._grant(state, index)

    def _take_grant(self, state: State, index: int) -> State:
        records = self._load(state)
        self._slots.grant(list(self._slots.assignments)[index])
        return self._read(state, records)

    def wait(self, state: State) -> State:
        """Return the state after each request has waited longer than Ray normally takes."""
        later = []
        for held in state.held:
            later.append(held._replace(phase="late") if held.phase == "new" else held)
        return state._replace(held=tuple(later))

    def _events_of_node(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        if state.holder == node:
            yield "holder leaves", state._replace(holder=None)
        elif state.holder is None and self.free(state, node) > 0:
            yield "holder arrives", state._replace(holder=node)
        if not self.may_change:
            return
        if node not in state.alive:
            yield "node joins", self._follow(state, state.alive | {node}, state.holder)
        elif len(state.alive) > 1:
            holder = None if state.holder == node else state.holder
            yield "node leaves", self._follow(state, state.alive - {node}, holder)

    def _follow(self, state: State, alive: frozenset[int], holder: int | None) -> State:
        """Return the state after the nodes changed: trials of lost nodes wait again, and their requests are gone."""
        records, slots = self._load(state), self._slots
        for name, assignment in list(slots.assignments.items()):
            if assignment.is_granted and self._index_of[str(assignment.node_id)] not in alive:
                self._withdraw(Withdraw(name, "its node was lost"))
        self._plan.use(self.nodes[index] for index in sorted(alive))
        for withdrawal in slots.follow_nodes(records, None):
            self._withdraw(withdrawal)
        return self._read(state, records, alive=alive, holder=holder)

    # Claims.

    def check(self, state: State) -> str:
        """Return the claim that ``state`` violates, or ``""``."""
        for index, node in enumerate(self.nodes):
            granted = sum(held.num_slots for held in state.held if held.node == index and held.is_granted)
            if granted + int(state.holder == index) > node.num_slots:
                return f"node {node.node_id} is over-allocated"
            assigned = sum(held.num_slots for held in state.held if held.node == index)
            most = max((held.num_slots for held in state.held if held.node == index), default=0)
            if assigned > max(node.num_slots, most):
                return f"more trials are assigned to node {node.node_id} than it has slots"
        return self.check_moves(state) or self.check_waiting(state) or self.check_end(state)

    def check_moves(self, state: State) -> str:
        """Check that one step withdraws a request only for a free slot, and uses only allowed slots."""
        after = self.step(state)
        if len(after.held) < len(state.held):
            return "a request is withdrawn, but its trial gets no other slot"
        planned = {self.nodes[index].slot_type for index in state.alive}
        for held in state.held:
            new = held._replace(phase="new")
            is_withdrawn = after.held.count(held) < state.held.count(held)
            if is_withdrawn and after.held.count(new) > state.held.count(new):
                return "a request is withdrawn, and the same slot is requested again"
        for held in after.held:
            if held.is_granted or held in state.held:
                continue
            ran_in = held.trial.ran_in
            if ran_in in planned and self.nodes[held.node].slot_type != ran_in:
                return "a trial is moved to another type of device"
        return ""

    def check_waiting(self, state: State) -> str:
        """Check that no trial waits indefinitely while an allowed slot is really free."""
        cycle = self.settle(state)
        if cycle and all(self._starves(settled) for settled in cycle):
            return "a trial waits although an allowed slot is free"
        return ""

    def check_end(self, state: State) -> str:
        """Check that all trials can end if all nodes live, the other program ends, and trials finish."""
        everything = frozenset(range(len(self.nodes)))
        state = state._replace(holder=None, waiting=(*state.waiting, *state.paused), paused=())
        if state.alive != everything:
            state = self._follow(state, everything, None)
        seen: list[State] = []
        for _ in range(len(state.waiting) + len(state.held) + 1):
            seen.append(state)
            for index in reversed(range(len(state.held))):
                if state.held[index].is_granted:
                    rest = state._replace(held=state.held[:index] + state.held[index + 1 :])
                    state = self._released(state, index, rest)
            has_ended = not state.waiting and not state.held
            if has_ended or state in self._ends:
                self._ends.update(seen)
                return ""
            state = self.settle(state)[-1]
        return "not all trials can end"

    def settle(self, state: State) -> tuple[State, ...]:
        """Follow only decisions, grants and time. Return the states that repeat in the end."""
        seen: list[State] = []
        while state not in seen and state not in self._cycles:
            seen.append(state)
            for _ in range(_MAX_STEPS):
                before, state = state, self._grant_all(self.step(state))
                if state == before:
                    break
            if state.held and not all(held.is_granted for held in state.held):
                state = self._grant_all(self.step(self.wait(state), blocks_are_old=True))
        cycle = self._cycles.get(state) or tuple(seen[seen.index(state) :])
        self._cycles.update(dict.fromkeys(seen, cycle))
        return cycle

    def _grant_all(self, state: State) -> State:
        for index, held in enumerate(state.held):
            if not held.is_granted and self.free(state, held.node) >= held.num_slots:
                state = self.grant(state, index)
        return state

    def _starves(self, state: State) -> bool:
        """Return whether a trial has no resources although a node has room for it.

        A slot that is reserved for a trial that needs several slots does not count.
        """
        requested = [held for held in state.held if not held.is_granted]
        reserved = {held.node for held in requested if held.num_slots > 1}
        planned = {self.nodes[index].slot_type for index in state.alive}
        for trial in (*state.waiting, *(held.trial for held in requested)):
            for index, node in enumerate(self.nodes):
                is_allowed = trial.ran_in not in planned or node.slot_type == trial.ran_in
                if is_allowed and index not in reserved and self.free(state, index) >= trial.num_slots:
                    return True
        return False


_MAX_STEPS: Final = 20


class Exploration(NamedTuple):
    """The result of an exploration.

    Attributes:
        num_states: The number of states.
        violation: The claim that a state violates, or ``""``.
        path: The events that lead to this state.
    """

    num_states: int
    violation: str = ""
    path: tuple[str, ...] = ()


def explore(model: Model, *, limit: int | None = None) -> Exploration:
    """Check all states in breadth-first order until a claim is violated or ``limit`` states are known."""
    came_from: dict[State, tuple[State, str] | None] = {model.start: None}
    queue = deque([model.start])
    while queue:
        state = queue.popleft()
        violation = model.check(state)
        if violation:
            return Exploration(len(came_from), violation, tuple(_path(came_from, state)))
        for name, after in model.events(state):
            if after not in came_from and (limit is None or len(came_from) < limit):
                came_from[after] = state, name
                queue.append(after)
    return Exploration(len(came_from))


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    step = came_from[state]
    while step is not None:
        state, name = step
        names.append(name)
        step = came_from[state]
    return names[::-1]


class _Name:
    """A trial as ``RunSlots`` sees it."""

    def __init__(self, trial: Trial) -> None:
        self.model_trial = trial
        self.config: dict[str, Any] = {}
        self.record = _record(trial, self)


def _trial(name: Any) -> Trial:
    trial: Trial = name.model_trial
    return trial


def _record(trial: Trial, name: Any) -> TrialRecord:
    record = TrialRecord(name, own=_OWN, planned=_REQUESTS[0])
    if trial.num_slots > 1:
        record.needed = MemoryFloor(memory_bytes=trial.num_slots * GIB)
    if trial.ran_in is not None:
        record.slot = SLOTS[trial.ran_in]
        record.has_run = True
    return record


GPU_NODES: Final = (Node("a", 0, 2), Node("b", 0, 1))
"""Two nodes whose slots have the same type."""

THREE_NODES: Final = (*GPU_NODES, Node("c", 1, 1))
"""Two nodes with GPU slots and a node with CPU slots."""


def measure_all_states(num_trials: int) -> bool:
    """Explore runs of up to ``num_trials`` trials, and print the number of states. Return whether no claim failed."""
    start_s, is_sound, total = time.monotonic(), True, 0
    for nodes in (GPU_NODES, THREE_NODES):
        for trials in ((1,) * num_trials, (2,) + (1,) * (num_trials - 1)):
            found = explore(Model(nodes, trials))
            total += found.num_states
            is_sound &= not found.violation
            print(f"{len(nodes)} nodes, slots per trial {trials}: {found.num_states:,} states", flush=True)
            if found.violation:
                print(f"  {found.violation}, after: {', '.join(found.path)}")
    print(f"{total:,} states in {time.monotonic() - start_s:.0f} s\n{describe_machine()}\ncommand: {own_command()}")
    return is_sound
