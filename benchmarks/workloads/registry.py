"""The workloads by name: those that come with the benchmarks, and a user's own as ``module:function``."""

import ast
import importlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple, cast

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import suggest

from .steps import Steps, Workload


class BuiltIn(NamedTuple):
    """A workload that comes with the benchmarks.

    Attributes:
        name: By which it is asked for.
        path: Its module below this package, and its function there.
        describe: What one step does.
        size_means: What its size counts.
        sizes: Those that are run where none is named, ascending powers of two.
        needs: The packages that it imports; this project's extras have the same names.
    """

    name: str
    path: str
    describe: str
    size_means: str
    sizes: tuple[int, ...]
    needs: tuple[str, ...]


def _every_fourth(first: int, last: int) -> tuple[int, ...]:
    """Return the powers of two from 2 ** first to 2 ** last, each four times the one before."""
    return tuple(2**exponent for exponent in range(first, last + 1, 2))


def _by_name(*workloads: BuiltIn) -> dict[str, BuiltIn]:
    return {workload.name: workload for workload in workloads}


_BATCHES: Final = _every_fourth(0, 12)
_LARGE_BATCHES: Final = _every_fourth(0, 8)
_ELEMENTS: Final = _every_fourth(10, 24)


def _in_torch(name: str, describe: str, sizes: tuple[int, ...], size_means: str = "batch") -> BuiltIn:
    return BuiltIn(name, f"torch_workloads:{name.replace('-', '_')}", describe, size_means, sizes, ("torch",))


def _in_tensorflow(name: str, describe: str) -> BuiltIn:
    path = f"tensorflow_workloads:{name.removeprefix('tf-')}"
    return BuiltIn(name, path, describe, "batch", _BATCHES, ("tensorflow",))


BUILT_IN: Final = _by_name(
    _in_torch("matmul", "product of two matrices", (*_every_fourth(4, 12), 8192), "rows"),
    _in_torch("mlp", "training of an MLP 784-256-256-10", _BATCHES),
    _in_torch("cnn", "training of a CNN of 2 convolutions on 28 x 28", _BATCHES),
    _in_torch("transformer", "training of a transformer of 2 layers, width 128, on 64 tokens", _BATCHES),
    _in_torch("resnet18", "training of ResNet-18 on 32 x 32", _BATCHES),
    _in_torch("resnet50", "training of ResNet-50 on 224 x 224", _LARGE_BATCHES),
    _in_torch("resnet50-tf32", "training of ResNet-50, in TF32", _LARGE_BATCHES),
    _in_torch("resnet50-fp16", "training of ResNet-50, in float16", _LARGE_BATCHES),
    _in_tensorflow("tf-mlp", "the MLP, in TensorFlow"),
    _in_tensorflow("tf-cnn", "the CNN, in TensorFlow"),
    BuiltIn("doubling", "numba_kernels:doubling", "an array times two, by numba", "elements", _ELEMENTS, ("numba",)),
    BuiltIn("boosting", "boosting:boosting", "10 rounds of XGBoost", "rows", _every_fourth(10, 20), ("xgboost",)),
    _in_torch("iterative-tasks", "an iteration on data that a task gets and gives back", _ELEMENTS, "elements"),
    _in_torch("iterative-actor", "an iteration on data that an actor keeps on the device", _ELEMENTS, "elements"),
)
"""All that are worth a user's time."""

SYNTHETIC: Final = _by_name(
    BuiltIn(
        "affine", "registry:affine", "waits for a + b * n on a clock, no work at all", "n", _every_fourth(4, 14), ()
    )
)
"""Of known cost, for tests of what measures and decides: it waits on a clock, busily. Never run where none is named."""


def find_workload(name: str) -> BuiltIn:
    """Return the workload of this name that comes with the benchmarks.

    Raises:
        InvalidResourcesError: There is none.
    """
    found = BUILT_IN.get(name) or SYNTHETIC.get(name)
    if found is None:
        raise InvalidResourcesError(
            f"unknown workload {name!r}{suggest(name, BUILT_IN)} (known: {', '.join(BUILT_IN)}; "
            "one of your own is named module:function)"
        )
    return found


def check_needs(workload: BuiltIn) -> None:
    """Check that the packages of a workload are installed, without an import of them.

    Raises:
        InvalidResourcesError: One is not.
    """
    for package in workload.needs:
        if importlib.util.find_spec(package) is None:
            raise InvalidResourcesError(
                f"workload {workload.name!r} needs {package}, which is not installed: "
                f"pip install 'tune-policies[{package}]', or leave it out"
            )


def check_workload(name: str) -> BuiltIn | None:
    """Check that a workload exists, before anything starts. A user's own module is found and parsed, not imported.

    An import could take seconds, or use the GPU that the measured processes need.

    Returns:
        The workload that comes with the benchmarks; ``None``: it is a user's own.

    Raises:
        InvalidResourcesError: There is no such workload, or a package that it needs is not installed.
    """
    if ":" not in name:
        built_in = find_workload(name)
        check_needs(built_in)
        return built_in
    module, function = _parts_of(name)
    defined = _names_defined_in(name, module)
    if defined is not None and function not in defined:
        raise InvalidResourcesError(f"workload {name!r}: {module} has no {function!r}{suggest(function, defined)}")
    return None


def _parts_of(name: str) -> tuple[str, str]:
    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidResourcesError(f"workload {name!r} must be module:function, such as my_benchmarks:train")
    folder = str(Path.cwd())
    if folder not in sys.path:  # `python -m` has put it there; another program may not have
        sys.path.append(folder)
    return module, function


def _names_defined_in(name: str, module: str) -> set[str] | None:
    """Return the names that a module defines; ``None``: only its import tells.

    Raises:
        InvalidResourcesError: There is no such module, or its source is not valid Python.
    """
    spec, where = None, None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        part = ".".join(parts[:number])
        found = (finder.find_spec(part, where) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            near = suggest(part, (each.stem for each in Path.cwd().glob("*.py"))) if number == 1 else ""
            raise InvalidResourcesError(f"workload {name!r}: there is no module {part!r} in {Path.cwd()}{near}")
        where = spec.submodule_search_locations
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(module)
    if source is None:
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InvalidResourcesError(f"workload {name!r}: {module} is not valid Python: {error}") from error
    return _names_bound_in(tree)


_DYNAMIC: Final = frozenset({"*", "__getattr__", "globals", "exec", "setattr", "vars"})
"""With one of these, a module may have names that its source does not show."""


def _names_bound_in(tree: ast.AST) -> set[str] | None:
    """Return every name that a source text mentions in a place that could bind it; ``None``: it may have others."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                names.add(bound)
            case ast.alias(name=bound, asname=renamed):
                names.add(renamed or bound.partition(".")[0])
            case ast.Name(id=bound):
                names.add(bound)
    return None if _DYNAMIC & names else names


def load_workload(name: str) -> Workload:
    """Import a workload that comes with the benchmarks, or ``module:function`` from the working directory.

    Raises:
        InvalidResourcesError: There is no such workload, it cannot be imported, or it cannot be called.
    """
    if ":" in name:
        return _load_from_working_directory(name)
    workload = find_workload(name)
    check_needs(workload)
    module, _, function = workload.path.partition(":")
    return cast(Workload, getattr(importlib.import_module(f".{module}", __package__), function))


def _load_from_working_directory(name: str) -> Workload:
    module, function = _parts_of(name)
    folder = str(Path.cwd())
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises
        why = f"the import of {module} raised {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            # Of the module itself, or of a package around it; else it is there and imports what is not.
            is_own = error.name is not None and f"{module}.".startswith(f"{error.name}.")
            own, other = f"there is no module {error.name!r} in {folder}", f"{module} imports {error.name!r}"
            why = own if is_own else f"{other}, which is not installed"
        raise InvalidResourcesError(f"workload {name!r}: {why}") from error
    found = getattr(imported, function, None)
    if found is None:
        raise InvalidResourcesError(f"workload {name!r}: {module} has no {function!r}")
    if not callable(found):
        raise InvalidResourcesError(
            f"workload {name!r} must be a function of a size and a device, and is of type {type(found).__name__}"
        )
    return cast(Workload, found)


CPU_COST: Final = (0.05e-3, 1e-6)
"""Seconds of a step, and seconds more for each unit of its size."""

OTHER_COST: Final = (1e-3, 0.05e-6)
"""The same on any device that is not the CPU. The two cost the same at size 1,000."""


def affine(size: int, device: str) -> Steps:
    """Take ``a + b * size`` seconds, which depend on the name of the device only; no device needs to be there."""
    fixed_s, per_unit_s = CPU_COST if device == "cpu" else OTHER_COST
    seconds = fixed_s + per_unit_s * size

    def wait() -> float:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return float(size)

    return Steps(with_transfers=wait, compute=wait, steps_per_epoch=1)
