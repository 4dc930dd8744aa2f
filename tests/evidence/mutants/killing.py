"""Runs the unit tests on mutants. One process collects the tests, and forks a child process for each mutant.

First, all tests run on the unchanged code, to record which lines each test executes and how long it takes. For each
mutant, a fork replaces the code of the changed function, and runs the tests that execute the changed line until one
fails. The fastest tests run first. A mutant that takes ten times as long as the unchanged code counts as killed.
"""

import gc
import inspect
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import pytest

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.values.errors import InvalidResourcesError

from .operators import Mutant, count_mutants, mutant

ROOT: Final = Path(__file__).parents[3]
_TESTS: Final = ROOT / "tests" / "unit"
_SLACK: Final = 10
_LEAST_CPU_S: Final = 30
_MOST_BYTES: Final = 8 * 2**30
_PYTEST: Final = ("--quiet", "--timeout=0", "--tb=no", "--no-header", "--capture=no", "-p", "no:cacheprovider")
_NOT_MADE: Final = 3
"""The exit status of a fork that cannot replace the code."""
_ABOUT_OTHERS: Final = (
    *("hostile", "lint", "writing", "written", "leaks", "mutat"),
    *("shell", "load_cluster", "usage", "optimum"),
)
"""Words in the names of test files that are skipped because they do not test placement, policies or runs."""

_PLAN_WORDS: Final = frozenset({"Policy", "placement", "tune_policies.plan"})
_RUN_WORDS: Final = frozenset({"trainers.scheduling", "trainers.retries", "small_runs"})

_SLOW: Final = "all_states"
"""A word in the names of test files that take too long to run on every mutant."""

PLANS: Final = ("placement", "plan", "policies")
"""The folders in ``tune_policies`` of the modules that plan."""

RUN_CORE: Final = (
    "idle_slots",
    "inner_scheduler",
    "own_requests",
    "own_slots",
    "requests_without_plan",
    "limit_by_progress",
    "run_events",
    "run_failures",
    "trial_growth",
    "run_learning",
    "run_plan",
    "choose_slots",
    "slot_board",
    "trial_record",
    "trial_requests",
    "wrapping_scheduler",
)
"""The modules in ``trainers/scheduling`` that decide about the trials of a run."""


class Reach(NamedTuple):
    """The CPU time of a traced test in seconds, and the lines that the test executes, by file."""

    seconds: float
    lines: Mapping[str, frozenset[int]]


class Result(NamedTuple):
    """The result of a mutant. ``end`` is ``"survived"``, ``"killed"``, ``"killed: too long"`` or ``"not made"``."""

    file: str
    line: int
    change: str
    end: str


def default_modules() -> list[Path]:
    """Return the modules that are changed by default: those that plan, and those that decide about trials in a run."""
    package = ROOT / "tune_policies"
    paths = [package / "trainers" / "scheduling" / f"{name}.py" for name in RUN_CORE]
    for folder in (*PLANS, "trainers/retries"):
        paths += (package / folder).glob("*.py")
    return sorted(path for path in paths if path.name != "__init__.py")


def imported_path(path: Path) -> Path:
    """Return the absolute path from which Python imports a module. The package contains links to some folders."""
    path = path.resolve()
    inner = path.relative_to(ROOT.resolve())
    linked = ROOT / "tune_policies" / inner
    if linked.exists():
        return linked
    return ROOT / inner


def killing_tests(paths: Iterable[Path]) -> list[Path]:
    """Return the test files that may detect a mistake in ``paths``.

    For a module of a run, these are the test files that import such modules or that test small runs. For all other
    modules, they are the test files that mention plans, policies or placement.
    """
    words: set[str] = set()
    for path in paths:
        words |= _RUN_WORDS if "trainers" in path.parts else _PLAN_WORDS
    skipped = (*_ABOUT_OTHERS, _SLOW)
    files = []
    for path in sorted(_TESTS.rglob("test_*.py")):
        if any(word in path.name for word in skipped):
            continue
        text = path.read_text()
        if any(word in text for word in words):
            files.append(path)
    return files


class MutantRun:
    """A pytest plugin that runs the collected tests on mutants instead of on the unchanged code.

    Args:
        chosen: The mutants, as pairs of a file and the number of a mutant.
        processes: The number of mutants that run in parallel.
    """

    def __init__(self, chosen: Sequence[tuple[Path, int]], processes: int) -> None:
        self._chosen = chosen
        self._processes = processes
        self.reached: dict[str, Reach] = {}
        self.results: list[Result] = []
        self.error = ""
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record failed tests."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the collected tests on the mutants. Return ``True``, so that pytest does not run the tests itself."""
        live = _live_functions()
        items = {item.nodeid: item for item in session.items}
        self.reached, failed = self._read_reach(session.items)
        if failed:
            self.error = f"these tests fail on the unchanged code: {', '.join(failed)}"
            return True
        running: dict[int, tuple[Path, Mutant]] = {}
        waiting = deque(self._chosen)
        while waiting or running:
            while waiting and len(running) < self._processes:
                path, number = waiting.popleft()
                made = mutant(path.read_text(), number)
                names = self._tests_of_line(path, made.line)
                work = _trial(path, made, [items[name] for name in names], live)
                seconds = sum(self.reached[name].seconds for name in names)
                process = _in_child(work, _LEAST_CPU_S + int(_SLACK * seconds))
                running[process] = path, made
            process, status = os.wait()
            path, made = running.pop(process)
            self.results.append(Result(path.relative_to(ROOT).as_posix(), made.line, made.change, _end(status)))
            print(len(self.results), *self.results[-1], flush=True)
        return True

    def _tests_of_line(self, path: Path, line: int) -> list[str]:
        """Return the names of the tests that execute a line, the fastest first."""
        names = [name for name, reach in self.reached.items() if line in reach.lines.get(str(path), ())]
        return sorted(names, key=lambda name: self.reached[name].seconds)

    def _read_reach(self, items: Sequence[pytest.Item]) -> tuple[dict[str, Reach], list[str]]:
        """Run all tests on the unchanged code in forks. Return the ``Reach`` of each test, and the failed tests."""
        files = {str(path) for path, _ in self._chosen}
        size = -(-len(items) // self._processes)
        with tempfile.TemporaryDirectory() as folder:

            def read(start: int) -> int:
                reached = dict(_each_traced(items[start : start + size], files))
                Path(folder, str(start)).write_bytes(pickle.dumps((reached, self._failed)))
                return 0

            children = [_in_child(partial(read, start), 3600) for start in range(0, len(items), size)]
            for child in children:
                os.waitpid(child, 0)
            reached_by_all: dict[str, Reach] = {}
            failed_in_all: list[str] = []
            for part in Path(folder).iterdir():
                reached, failed = pickle.loads(part.read_bytes())
                reached_by_all |= reached
                failed_in_all += failed
        return reached_by_all, failed_in_all


def _each_traced(items: Sequence[pytest.Item], files: Collection[str]) -> Iterator[tuple[str, Reach]]:
    for item, following in zip(items, [*items[1:], None], strict=True):
        lines: defaultdict[str, set[int]] = defaultdict(set)

        def note(frame: FrameType, event: str, arg: object, lines: dict[str, set[int]] = lines) -> Any:
            lines[frame.f_code.co_filename].add(frame.f_lineno)
            return note

        def trace(frame: FrameType, event: str, arg: object, note: Callable[..., Any] = note) -> Any:
            if frame.f_code.co_filename in files:
                return note(frame, event, arg)
            return None

        start = time.process_time()
        sys.settrace(trace)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.settrace(None)
        seconds = time.process_time() - start
        yield item.nodeid, Reach(seconds, {file: frozenset(numbers) for file, numbers in lines.items()})


def _trial(
    path: Path, made: Mutant, items: Sequence[pytest.Item], live: Mapping[tuple[str, str, int], Sequence[FunctionType]]
) -> Callable[[], int]:
    """Return the function that applies the mistake in a fork, and runs the tests until one fails.

    The function returns 1 if a test fails, 0 if all pass, and ``_NOT_MADE`` if it cannot replace the code.
    """

    def work() -> int:
        before = dict(_functions(compile(path.read_text(), str(path), "exec")))
        after = dict(_functions(compile(made.tree, str(path), "exec")))
        changed = [name for name in before if before[name] != after[name]]
        for name in changed:
            for function in live.get((str(path), *name), ()):
                try:
                    function.__code__ = after[name]
                except ValueError:  # the new code uses other variables of the enclosing function
                    return _NOT_MADE
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return 1
        return 0

    return work


def _functions(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield the functions of a module and its classes by name and line, without nested functions."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType):
            continue
        if inner.co_flags & inspect.CO_OPTIMIZED:
            yield (inner.co_qualname, inner.co_firstlineno), inner
        else:  # the body of a class
            yield from _functions(inner)


def _live_functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions in memory by file, name and line."""
    live: dict[tuple[str, str, int], list[FunctionType]] = {}
    for item in gc.get_objects():
        if isinstance(item, FunctionType):
            code = item.__code__
            place = (code.co_filename, code.co_qualname, code.co_firstlineno)
            live.setdefault(place, []).append(item)
    return live


def _in_child(work: Callable[[], int], cpu_s: int) -> int:
    """Fork a process that runs ``work`` without output and exits with its result. Return the process ID."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        code = work()
    finally:
        os._exit(code)


def _end(status: int) -> str:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _NOT_MADE:
        return "not made"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return "killed: too long"
    if status:
        return "killed"
    return "survived"


def measure_mutants(paths: Sequence[Path], number: int, seed: int, processes: int) -> None:
    """Print, for each module, how many of ``number`` random mutants the tests kill, and list the surviving mutants."""
    possible = []
    num_possible = {}
    for path in paths:
        num_possible[path] = count_mutants(path.read_text())
        possible += [(path, i) for i in range(num_possible[path])]
    chosen = random.Random(seed).sample(possible, min(number, len(possible)))
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.chdir(ROOT)
    run = MutantRun(chosen, processes)
    pytest.main([*_PYTEST, *map(str, killing_tests(paths))], plugins=[run])
    if run.error:
        raise InvalidResourcesError(run.error)
    if not run.reached:
        raise InvalidResourcesError("pytest collected no tests. Run `pytest tests/unit` to see the errors.")
    table = empty_table(f"{len(chosen):,} of {len(possible):,} mutants", "Module", "Mutants", "Tried", "Killed", "%")
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        ends = [result.end for result in run.results if result.file == name]
        table.add_row(name, *_row(num_possible[path], ends))
    table.add_row("all", *_row(len(possible), [result.end for result in run.results]))
    TextConsole(width=120).print(table)
    for result in sorted(run.results):
        if result.end == "survived":
            print(f"* {result.file}:{result.line}: {result.change}")
    print(f"{len(run.reached):,} tests\n{describe_machine('pytest', 'hypothesis')}\ncommand: {own_command()}")


def _row(num_mutants: int, ends: Sequence[str]) -> tuple[str, ...]:
    tried = [end for end in ends if end != "not made"]
    num_killed = len(tried) - tried.count("survived")
    percentage = ""
    if tried:
        percentage = f"{100 * num_killed / len(tried):.0f}"
    return f"{num_mutants:,}", f"{len(tried):,}", f"{num_killed:,}", percentage
