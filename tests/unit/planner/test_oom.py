import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.oom_errors import (
    ACCELERATOR,
    ACTOR_KILLED,
    GIB,
    HOST,
    KILLED_BY_RAY,
    NEAR_MISSES,
    SEVERAL_KILLED,
    TORCH_OOM,
    build,
    torch_text,
)
from tune_policies.oom import OutOfMemory, classify_oom, classify_oom_text
from tune_policies.oom.memory_monitor import KilledWorker, NodeProcess
from tune_policies.ray_compat.kernel_kills import old_notes

NONE = OutOfMemory(kind="none")
POSITIVE = [form for form, _ in (ACCELERATOR | HOST | KILLED_BY_RAY).values()]
NEGATIVE = list(NEAR_MISSES.values())


def cases(table):
    return [pytest.param(*row, id=name) for name, row in table.items()]


@pytest.mark.parametrize(("form", "expected"), cases(ACCELERATOR))
def test_an_accelerator_oom_error_is_recognized_with_its_numbers(form, expected):
    framework, asked, limit, cause = expected

    found = classify_oom(build(*form))

    assert found.model_copy(update={"needed_share": None}) == OutOfMemory(
        kind="accelerator", framework=framework, requested_bytes=asked, limit_bytes=limit, cause=cause
    )


@pytest.mark.parametrize(
    ("in_use", "gpus", "cause"),
    [
        pytest.param("8.90 GiB", 0.25, "own_limit", id="more than its fraction"),
        pytest.param("8.90 GiB", 0.5, "neighbour", id="within its fraction"),
        pytest.param("8.90 GiB", 1, "neighbour", id="within a whole GPU"),
    ],
)
def test_other_processes_are_the_cause_only_if_the_trial_was_within_its_fraction(in_use, gpus, cause):
    """Without a limit of PyTorch, as on a simulated GPU, the error does not contain the fraction."""
    error = RuntimeError(
        "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 39.56 GiB of which 2.10 GiB is "
        f"free. Including non-PyTorch memory, this process has {in_use} memory in use."
    )

    assert classify_oom(error).cause_with(gpus) == cause


@pytest.mark.parametrize(("form", "expected"), cases(HOST))
def test_a_host_oom_error_is_recognized_with_its_request(form, expected):
    framework, asked = expected

    assert classify_oom(build(*form)) == OutOfMemory(kind="host", framework=framework, requested_bytes=asked)


@pytest.mark.parametrize(("form", "used_bytes"), cases(KILLED_BY_RAY))
def test_a_kill_by_rays_memory_monitor_is_recognized_with_the_memory_of_the_worker(form, used_bytes):
    found = classify_oom(build(*form))

    assert (found.kind, found.framework, found.used_bytes, found.requested_bytes) == ("host", "ray", used_bytes, None)


def test_the_killed_workers_and_the_other_processes_of_the_node_are_listed():
    """Workers that Ray considered but did not kill, and idle workers, are in neither list."""
    found = classify_oom(build("ray.exceptions.RayActorError", SEVERAL_KILLED))

    assert found.killed_workers == (
        KilledWorker(actor_id="af6d", used_bytes=GIB // 4),
        KilledWorker(actor_id="be11", used_bytes=5 * GIB // 2),
        KilledWorker(actor_id=None, used_bytes=GIB // 2),
    )
    assert found.other_processes == (
        NodeProcess(pid=11123, used_bytes=3 * GIB // 2, command="python -c import time; x=b'x'*(3500*2**20)"),
        NodeProcess(pid=10512, used_bytes=GIB // 4, command="python train.py"),
    )


@pytest.mark.parametrize(
    ("actor_id", "used_bytes"),
    [
        pytest.param("af6d", GIB // 4, id="a small actor"),
        pytest.param("be11", 5 * GIB // 2, id="the actor that took the memory"),
        pytest.param("0000", GIB // 2, id="an actor that was starting, which is listed without its ID"),
        pytest.param(None, GIB // 2, id="an unknown actor"),
    ],
)
def test_if_several_workers_are_killed_each_trial_gets_the_memory_of_its_own_worker(actor_id, used_bytes):
    found = classify_oom(build("ray.exceptions.RayActorError", SEVERAL_KILLED))

    assert found.of_actor(actor_id).used_bytes == used_bytes


@pytest.mark.parametrize(("name", "text"), cases(NEAR_MISSES))
def test_an_error_that_only_mentions_memory_is_not_an_oom_error(name, text):
    assert classify_oom(build(name, text)) == NONE


@pytest.mark.parametrize(
    "form", [pytest.param(row[0], id=name) for name, row in (ACCELERATOR | HOST | KILLED_BY_RAY).items()]
)
def test_a_traceback_is_classified_like_its_error(form):
    assert classify_oom_text(traceback_of(*form)) == classify_oom(build(*form))


@pytest.mark.parametrize(("name", "text"), cases(NEAR_MISSES))
def test_a_traceback_of_an_error_that_only_mentions_memory_is_not_an_oom_error(name, text):
    assert classify_oom_text(traceback_of(name, text)) == NONE


def traceback_of(name, text):
    return (
        'Traceback (most recent call last):\n  File "train.py", line 9, in train\n'
        f"    loss.backward()  # torch.OutOfMemoryError: CUDA out of memory\n{name}: {text}\n"
    )


def test_only_the_last_failure_of_a_trial_is_classified():
    header = "Failure # {} (occurred at 2026-01-01_00-00-00)\n"
    ran_out, wrong = traceback_of(TORCH_OOM, torch_text()), traceback_of("ValueError", "no")

    kinds = [
        classify_oom_text(header.format(1) + first + header.format(2) + second).kind
        for first, second in ((ran_out, wrong), (wrong, ran_out))
    ]

    assert kinds == ["none", "accelerator"]


def test_an_actor_that_ray_killed_is_recognized_without_an_error_type():
    text = f"Failure # 1 (occurred at 2026-01-01_00-00-00)\n{ACTOR_KILLED}\n"

    found = classify_oom_text(text)

    assert (found.kind, found.framework, found.used_bytes) == ("host", "ray", 25 * GIB // 2)


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried to allocate 2.00 GiB", "INFO torch.OutOfMemoryError: seen", "", "\n" * 9]
)
def test_a_text_without_an_error_is_not_an_oom_error(text):
    assert classify_oom_text(text) == NONE


def test_an_error_of_a_local_class_is_parsed():
    assert classify_oom_text(traceback_of("train.<locals>.Failed", torch_text())).kind == "accelerator"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("line", ["a\n", "RuntimeError: CUDA out of memory\n", "  x\n", "Attempting to reserve 1G "])
def test_a_huge_traceback_is_parsed_within_the_timeout(line):
    text = traceback_of(TORCH_OOM, "") + line * 500_000 + traceback_of(TORCH_OOM, torch_text())

    assert classify_oom_text(text).kind == "accelerator"


def test_a_printed_exception_group_is_parsed():
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in <module>\n'
        "  | ExceptionGroup: workers (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | ValueError: no\n"
        "    +---------------- 2 ----------------\n"
        f"    | {TORCH_OOM}: {torch_text()}\n"
        "    +------------------------------------\n"
    )

    assert classify_oom(text).requested_bytes == 2 * GIB


def test_a_suppressed_context_is_ignored():
    hidden = raised(ValueError("no"), cause=None, context=build(TORCH_OOM, ""))
    hidden.__suppress_context__ = True

    assert classify_oom(hidden) == NONE


def test_the_innermost_oom_error_is_classified():
    first = build(TORCH_OOM, torch_text())
    second = raised(MemoryError(), context=first)

    assert classify_oom(raised(RuntimeError("failed"), cause=second)) == classify_oom(first)


def raised(error, *, cause=None, context=None):
    error.__cause__, error.__context__ = cause, context
    if cause is None:
        error.__suppress_context__ = False
    return error


def by_rank(error):
    group = RuntimeError("Training failed due to worker errors")
    group.worker_failures = {0: ValueError("connection closed"), 3: error}
    return group


def attribute(name):
    def wrap(error):
        wrapper = RuntimeError("wrapped")
        setattr(wrapper, name, error)
        return wrapper

    return wrap


WRAPS = {
    "cause": lambda error: raised(ValueError("wrong"), cause=error),
    "context": lambda error: raised(KeyError("clean-up"), context=error),
    "group": lambda error: ExceptionGroup("workers", [ValueError("no"), error]),
    "nested group": lambda error: ExceptionGroup("nodes", [ExceptionGroup("workers", [error]), ValueError("no")]),
    "argument": lambda error: build("ray.tune.error.TuneError", error),
    "Ray's task": attribute("cause"),
    "Ray Train's workers": by_rank,
    "Ray Train's controller": attribute("controller_failure"),
    "Ray Train's health check": attribute("health_check_failure"),
    "Ray Train's traceback": attribute("_base_exc"),
}


@pytest.mark.parametrize("wrap", [pytest.param(wrap, id=name) for name, wrap in WRAPS.items()])
def test_a_wrapped_error_is_found(wrap):
    error = build(TORCH_OOM, torch_text())

    assert classify_oom(wrap(error)) == classify_oom(error)


@given(form=st.sampled_from(POSITIVE + NEGATIVE), wraps=st.lists(st.sampled_from(list(WRAPS.values())), max_size=8))
def test_the_result_does_not_depend_on_wrappers(form, wraps):
    error = wrapped = build(*form)
    for wrap in wraps:
        wrapped = wrap(wrapped)

    assert classify_oom(wrapped) == classify_oom(error)


def refuse(*_):
    raise RuntimeError("no")


class HostileError(Exception):
    """An error whose attributes and methods all raise errors."""

    __str__ = __repr__ = refuse
    args = message = cause = exceptions = worker_failures = __cause__ = __context__ = property(refuse)
    __class__ = property(refuse)


class Unnamed(type):
    __module__ = property(refuse)


def cycle():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length):
    error = build(TORCH_OOM, torch_text())
    for _ in range(length):
        error = raised(ValueError("wrong"), cause=error)
    return error


UNSOUND = {
    "raises": HostileError,
    "raises in a group": lambda: ExceptionGroup("", [HostileError()]),
    "has no type name": lambda: Unnamed("Nameless", (Exception,), {})(),
    "is its own cause": cycle,
    "nothing": lambda: None,
    "a number": lambda: 3,
    "a type": lambda: MemoryError,
    "a dict": lambda: {"error": MemoryError()},
}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in UNSOUND.items()])
def test_a_hostile_object_is_not_an_oom_error_and_raises_nothing(make):
    assert classify_oom(make()) == NONE


def test_a_chain_of_thousands_of_errors_is_read_to_its_end():
    assert classify_oom(chain(5000)).kind == "accelerator"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["9", "9,", "a", "a.", "_", " ", "x\n", "CUDA_", "shape[9,", "RuntimeError: ", "| "])
def test_a_huge_message_is_parsed_within_the_timeout(part):
    error = RuntimeError(f"CUDA out of memory. Tried to allocate 2.00 GiB. {part * 500_000}")

    assert classify_oom(error).kind == "accelerator"


@given(
    cls=st.sampled_from([RuntimeError, MemoryError, OSError, *(type(build(*form)) for form in POSITIVE)]),
    text=st.text() | st.sampled_from([text.replace("1", "9" * 40) for _, text in POSITIVE]),
    hostile=st.booleans(),
)
def test_classifying_an_error_never_raises_an_error(cls, text, hostile):
    error = raised(cls(text), context=HostileError() if hostile else None)

    assert classify_oom(error).kind in ("accelerator", "host", "none")


@given(
    st.text()
    | st.lists(st.sampled_from([*(text for _, text in POSITIVE), "\n", ": ", "Error", "9" * 5000])).map("".join)
)
def test_classifying_a_text_never_raises_an_error(text):
    assert classify_oom_text(text).kind in ("accelerator", "host", "none")
    assert classify_oom(RuntimeError(text)).kind in ("accelerator", "host", "none")


def test_notes_of_ended_processes_that_exceed_the_limit_are_returned_for_deletion():
    notes = [f"key:node:actor-{pid}:{pid}:{1000 - pid}".encode() for pid in range(6)]
    started = {0: 1000, 5: 7}  # process 5 has ended, and a new process has the same ID

    assert old_notes(notes, started.get, kept=3) == [notes[5], notes[4]]
    assert old_notes(notes, started.get, kept=5) == []
