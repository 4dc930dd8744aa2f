"""Runs a Python program in this process, in the same way as ``python program.py`` and ``python -m module``.

The program gets its own ``__main__`` module, ``sys.argv`` and first entry of ``sys.path``, and the streams of this
process. Its errors and exits propagate, so that Python ends the process as it does after any program: it runs the exit
functions, flushes the streams and returns the exit status. The public ``runpy.run_path`` and ``run_module`` would
restore the previous ``__main__`` before the threads and exit functions of the program have ended.
"""

import builtins
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any


class AfterCommand(BaseException):
    """Ends a command, and makes ``main`` call ``function`` after it has restored the streams of the process.

    This is not an ``Exception``, because Typer would handle it.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self.function = function


def run_program(program: list[str]) -> None:
    """Run a program: a path and its arguments, or ``-m``, the name of a module and its arguments."""
    path = program[0]
    main: Any = ModuleType("__main__")
    main.__builtins__, main.__annotations__ = builtins, {}
    sys.modules["__main__"] = main
    sys.argv = program
    if path == "-m":
        sys.argv = ["-m", *program[2:]]  # runpy replaces the first argument with the path of the module
        _set_first_path(os.getcwd())  # noqa: PTH109  # a string, as in Python
        with _own_traceback():
            runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]  # Python calls it for `-m`
    elif pkgutil.get_importer(path) is not None:  # a folder or a ZIP file with a module __main__
        _set_first_path(os.path.abspath(path), is_main=True)  # noqa: PTH100
        with _own_traceback():
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    else:
        _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
        main.__file__, main.__cached__ = os.path.abspath(path), None  # noqa: PTH100
        code = _compiled(main)
        with _own_traceback():
            exec(code, main.__dict__)  # noqa: S102


def _compiled(main: Any) -> CodeType:
    path = main.__file__
    try:
        if path.endswith(".pyc"):
            main.__loader__ = SourcelessFileLoader("__main__", path)
            return main.__loader__.get_code("__main__")  # type: ignore[no-any-return]
        main.__loader__ = SourceFileLoader("__main__", path)
        return main.__loader__.source_to_code(main.__loader__.get_data(path), path)  # type: ignore[no-any-return]
    except SyntaxError as error:
        _show_traceback(error, None)
        raise


def _set_first_path(path: str, *, is_main: bool = False) -> None:
    """Replace the folder that Python adds to ``sys.path`` for this command with the folder of the program."""
    if not sys.flags.safe_path:
        sys.path[0] = path
    elif is_main:  # Python must find the module __main__ in any case
        sys.path.insert(0, path)


@contextmanager
def _own_traceback() -> Iterator[None]:
    """Hide the frames of this package in the traceback that Python prints for an error of the program."""
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        # The first frame is that of this function, and the second one called the program.
        traceback = error.__traceback__
        for _ in range(2):
            traceback = traceback and traceback.tb_next
        _show_traceback(error, traceback)
        raise


def _show_traceback(error: BaseException, traceback: TracebackType | None) -> None:
    hook = sys.excepthook  # a program may have replaced it

    def show(kind: type[BaseException], _: BaseException, __: TracebackType | None) -> None:
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = show
