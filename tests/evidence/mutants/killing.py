"""Runs the unit tests on mutants, each in a process of its own that has all else imported already.

First all tests run once on the code as it is, to see which lines each reaches and how long it takes. A mutant is then
tried on the tests that reach its line, the quickest first, until one fails. Where an import reaches the line, as for a
constant, that is all tests. A mutant that takes ten times as long as the tests did counts as killed.
"""

import ast
import gc
import importlib.abc
import importlib.util
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

import pytest

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table

from .operators import Mutant, count_mutants, mutant

ROOT: Final = Path(__file__).parents[3]
_TESTS: Final = ROOT / "tests" / "unit"
_SLACK: Final = 10
_LEAST_CPU_S: Final = 30
_PYTEST: Final = ("-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider")
_OWN: Final = ("tune_policies", "trainers", "benchmarks")
_ABOUT_OTHERS: Final = ("hostile", "lint", "kuberay", "catalog", "writing", "written", "leaks", "mutat", "timing")
"""Tests whose files have such a word in their names do not concern placement and policies."""


class Reach(NamedTuple):
    """What one test reaches.

    Attributes:
        seconds: How long it takes, traced.
        lines: The lines that it runs, by file.
    """

    seconds: float
    lines: Mapping[str, frozenset[int]]


class Result(NamedTuple):
    """What became of a mutant; ``end`` is ``"survived"``, ``"killed"``, or ``"killed: too long"``."""

    file: str
    line: int
    change: str
    end: str


def killing_tests() -> list[Path]:
    """Return the files of the tests that are about placement, policies and plans."""
    return [path for path in sorted(_TESTS.glob("test_*.py")) if not any(word in path.name for word in _ABOUT_OTHERS)]


class _Tracer:
    """A plugin of pytest that notes which lines of some files each test runs."""

    def __init__(self, files: Collection[str]) -> None:
        self._files = files
        self.reached: dict[str, Reach] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        lines: defaultdict[str, set[int]] = defaultdict(set)

        def note(frame: FrameType, event: str, arg: object) -> Any:
            lines[frame.f_code.co_filename].add(frame.f_lineno)
            return note

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            return note(frame, event, arg) if frame.f_code.co_filename in self._files else None

        start = time.perf_counter()
        sys.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            kept = {file: frozenset(each) for file, each in lines.items()}
            self.reached[item.nodeid] = Reach(time.perf_counter() - start, kept)


class _Chosen:
    """A plugin of pytest that runs some tests only, in their order."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._order = {name: i for i, name in enumerate(ids)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((each for each in items if each.nodeid in self._order), key=lambda e: self._order[e.nodeid])


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a tree in place of its file."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, str(self._path), "exec"), module.__dict__)  # it is our own code


def _in_child(work: Callable[[], int], cpu_s: int) -> int:
    """Start a process that does ``work`` in silence and ends with what it returns; return its number."""
    gc.freeze()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30,) * 2)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        code = work()
    finally:
        os._exit(code)


def _run_tests(files: Sequence[str], plugin: object) -> int:
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.chdir(ROOT)
    for name in [each for each in sys.modules if each.partition(".")[0] in _OWN]:
        del sys.modules[name]  # this command has imported some of the code that is tried
    return int(pytest.main([*_PYTEST, *files], plugins=[plugin]))


def read_reach(targets: Collection[Path], tests: Sequence[Path]) -> dict[str, Reach]:
    """Run all tests once on the code as it is.

    Raises:
        RuntimeError: They fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reach")

        def work() -> int:
            tracer = _Tracer({str(path) for path in targets})
            code = _run_tests([str(path) for path in tests], tracer)
            file.write_bytes(pickle.dumps(tracer.reached))
            return code

        _, status = os.waitpid(_in_child(work, 3600), 0)
        if status:
            raise RuntimeError(f"the tests fail on the code as it is: run `pytest {_TESTS.relative_to(ROOT)}` first")
        reached: dict[str, Reach] = pickle.loads(file.read_bytes())  # written above
        return reached


def _tests_of(path: Path, line: int, reached: Mapping[str, Reach]) -> list[str]:
    """Return the tests that reach a line, or all that reach its file where an import does; the quickest first."""
    of_file = {name: each for name, each in reached.items() if str(path) in each.lines}
    of_line = {name: each for name, each in of_file.items() if line in each.lines[str(path)]}
    chosen = of_line or of_file
    return sorted(chosen, key=lambda name: chosen[name].seconds)


def try_mutants(chosen: Sequence[tuple[Path, int]], reached: Mapping[str, Reach], processes: int) -> Iterator[Result]:
    """Try mutants by their files and numbers, so many at a time."""
    running: dict[int, tuple[Path, Mutant]] = {}
    waiting = iter(chosen)
    while True:
        while len(running) < processes and (following := next(waiting, None)) is not None:
            path, made = following[0], mutant(following[0].read_text(), following[1])
            tests = _tests_of(path, made.line, reached)
            files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)

            def work() -> int:
                sys.meta_path.insert(0, _Mutated(name, path, made.tree))  # noqa: B023  # called before they change
                return _run_tests(files, _Chosen(tests))  # noqa: B023

            cpu_s = _LEAST_CPU_S + int(_SLACK * sum(reached[each].seconds for each in tests))
            running[_in_child(work, cpu_s) if tests else _in_child(lambda: 5, 1)] = path, made
        if not running:
            return
        process, status = os.wait()
        path, made = running.pop(process)
        yield Result(path.relative_to(ROOT).as_posix(), made.line, made.change, _end(status))


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "killed: too long" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
    survived = os.WEXITSTATUS(status) in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return "survived" if survived else "killed"


def measure_mutants(paths: Sequence[Path], number: int, seed: int, processes: int) -> None:
    """Print for each module how many of so many mutants the tests kill, and each that survives."""
    sources = {path: path.read_text() for path in paths}
    each_one = [(path, i) for path, source in sources.items() for i in range(count_mutants(source))]
    chosen = random.Random(seed).sample(each_one, min(number, len(each_one)))
    in_all = Counter(path for path, _ in each_one)
    reached = read_reach(paths, killing_tests())
    results = []
    for result in try_mutants(chosen, reached, processes):
        results.append(result)
        print(f"{len(results)}/{len(chosen)} {result.end}: {result.file}:{result.line} {result.change}", flush=True)
    table = empty_table(f"{len(chosen):,} of {len(each_one):,} mutants", "Module", "Mutants", "Tried", "Killed", "%")
    for path in paths:
        ends = [each.end for each in results if each.file == path.relative_to(ROOT).as_posix()]
        table.add_row(path.relative_to(ROOT).as_posix(), *_row(in_all[path], ends))
    table.add_row("all", *_row(len(each_one), [each.end for each in results]))
    TextConsole(width=120).print(table)
    for result in sorted(results):
        if result.end == "survived":
            print(f"* {result.file}:{result.line}: {result.change}")
    print(f"{len(reached):,} tests\n{describe_machine('pytest', 'hypothesis')}\ncommand: {own_command()}")


def _row(num_mutants: int, ends: Sequence[str]) -> tuple[str, ...]:
    killed = sum(1 for end in ends if end != "survived")
    return f"{num_mutants:,}", f"{len(ends):,}", f"{killed:,}", f"{100 * killed / len(ends):.0f}" if ends else ""
