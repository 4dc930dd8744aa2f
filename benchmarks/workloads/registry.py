"""Finds built-in workloads by name, and the user's own workloads as ``module:function``."""

import ast
import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple, cast

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten_names, suggest

from .steps import Steps, Workload


class BuiltIn(NamedTuple):
    """A built-in workload.

    Attributes:
        path: The module in this package and the function, as ``module:function``.
        sizes: The default sizes: ascending powers of two.
        needs: The packages that the workload imports. The project's extras have the same names.
    """

    name: str
    path: str
    sizes: tuple[int, ...]
    needs: tuple[str, ...]

    @property
    def size_unit(self) -> str:
        """What a size counts, such as ``"samples per batch"``."""
        return _SIZE_UNITS.get(self.name, "samples per batch")


def _every_fourth(first: int, last: int) -> tuple[int, ...]:
    """Return every second power of two, from 2 ** first to 2 ** last."""
    return tuple(2**exponent for exponent in range(first, last + 1, 2))


# The sizes cover several orders of magnitude, because the crossover of an unknown machine can be anywhere. Factors of
# four keep a sweep short.
_BATCHES: Final = _every_fourth(0, 12)
_LARGE_BATCHES: Final = _every_fourth(0, 8)
_ELEMENTS: Final = _every_fourth(10, 24)
_IN_TORCH: Final = {
    "matmul": (*_every_fourth(4, 12), 8192),
    **dict.fromkeys(("mlp", "cnn", "transformer", "resnet18"), _BATCHES),
    **dict.fromkeys(("resnet50", "resnet50-tf32", "resnet50-fp16"), _LARGE_BATCHES),
    **dict.fromkeys(("iterative-tasks", "iterative-actor"), _ELEMENTS),
}
_SIMULATIONS: Final = {
    "raytracing": _every_fourth(4, 10),
    "heat-2d": (*_every_fourth(4, 10), 2048),
    "heat-3d": _every_fourth(3, 7),
    "n-body": _every_fourth(4, 12),
}

_SIZE_UNITS: Final = {
    "matmul": "rows and columns",
    "doubling": "elements",
    "branching": "instructions",
    "raytracing": "pixels per side",
    "heat-2d": "points per side",
    "heat-3d": "points per side",
    "n-body": "bodies",
    "boosting": "rows",
    "iterative-tasks": "elements",
    "iterative-actor": "elements",
    "affine": "units of work",
}
"""What a size counts, by workload. All other built-in workloads train on batches of this many samples."""

BUILT_IN: Final = {
    **{
        name: BuiltIn(name, f"torch_workloads:{name.replace('-', '_')}", sizes, ("torch",))
        for name, sizes in _IN_TORCH.items()
    },
    **{
        name: BuiltIn(name, f"simulations:{name.replace('-', '_')}", sizes, ("torch",))
        for name, sizes in _SIMULATIONS.items()
    },
    "tf-mlp": BuiltIn("tf-mlp", "tensorflow_workloads:mlp", _BATCHES, ("tensorflow",)),
    "tf-cnn": BuiltIn("tf-cnn", "tensorflow_workloads:cnn", _BATCHES, ("tensorflow",)),
    "doubling": BuiltIn("doubling", "numba_kernels:doubling", _ELEMENTS, ("numba",)),
    "branching": BuiltIn("branching", "numba_kernels:branching", _every_fourth(6, 16), ("numba",)),
    "boosting": BuiltIn("boosting", "xgboost_workloads:boosting", _every_fourth(10, 20), ("xgboost",)),
}

_NUM_ARGUMENTS: Final = 2
"""The number of arguments of a workload: a size and a device."""

SYNTHETIC: Final = {"affine": BuiltIn("affine", "registry:affine", _every_fourth(4, 14), ())}
"""Workloads whose time per step is known, for tests of the measurements and decisions."""


def find_workload(name: str) -> BuiltIn:
    """Return the built-in workload of this name, or raise ``InvalidResourcesError``."""
    found = BUILT_IN.get(name) or SYNTHETIC.get(name)
    if found is None:
        raise InvalidResourcesError(
            f"unknown workload {name!r}{suggest(name, BUILT_IN)} (known: {', '.join(BUILT_IN)}; "
            "write module:function for your own workload)"
        )
    return found


def describe_sizes(workloads: Iterable[str]) -> str:
    """Return what the sizes of workloads count, such as ``"size: samples per batch (mlp); elements (doubling)"``."""
    by_unit: dict[str, list[str]] = {}
    for name in workloads:
        # Only for a user's own workload, the unit of the size is unknown.
        built_in = BUILT_IN.get(name) or SYNTHETIC.get(name)
        unit = "as defined by the workload"
        if built_in is not None:
            unit = built_in.size_unit
        by_unit.setdefault(unit, []).append(name)
    return "size: " + "; ".join(f"{unit} ({shorten_names(names)})" for unit, names in by_unit.items())


def check_needs(workload: BuiltIn) -> None:
    """Raise ``InvalidResourcesError`` if a package that the workload needs is not installed.

    The packages are not imported.
    """
    for package in workload.needs:
        if importlib.util.find_spec(package) is None:
            raise InvalidResourcesError(
                f"workload {workload.name!r} requires {package}, which is not installed. "
                f"Run pip install 'tune-policies[{package}]', or omit the workload"
            )


def check_workload(name: str) -> BuiltIn | None:
    """Check that a workload exists, and return it if it is built in, or ``None`` if it is the user's own.

    The user's module is parsed but not imported, because an import could take seconds or use GPU memory that the
    measured processes need.

    Raises:
        InvalidResourcesError: The workload does not exist, its source is invalid, it takes other arguments, or a
            package that it needs is not installed.
    """
    if ":" not in name:
        built_in = find_workload(name)
        check_needs(built_in)
        return built_in
    module, function = _parts_of(name)
    package, *submodules = module.split(".")
    spec = importlib.util.find_spec(package)
    for part in submodules:  # for submodules, importlib.util.find_spec would import the package
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or ())
    if spec is None:
        near = suggest(module, (file.stem for file in Path.cwd().glob("*.py")))
        raise InvalidResourcesError(f"workload {name!r}: there is no module {module!r} in {Path.cwd()}{near}")
    # The source of an extension module cannot be read.
    if spec.origin is not None and spec.origin.endswith(".py"):
        _check_defines(function, Path(spec.origin), name)
    return None


def _check_defines(function: str, path: Path, name: str) -> None:
    """Raise ``InvalidResourcesError`` if a source file is not valid Python or does not define the function."""
    from tune_policies.files.reading import read_bytes  # imported here, because measured processes do not need it

    source = read_bytes(path, what=f"module of the workload {name!r}")
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InvalidResourcesError(f"workload {name!r}: {path} is not valid Python: {error}") from error
    # Names in nested code count too, for example in ``if`` and ``try`` at the top of the module.
    nodes = list(ast.walk(module))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    # Code such as `from x import *` can also define names that are not visible in the source.
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    may_define_more = names & {"*", "__getattr__"} or used & {"globals", "setattr", "exec"}
    if function not in names and not may_define_more:
        raise InvalidResourcesError(
            f"workload {name!r}: {path} does not define {function!r}{suggest(function, sorted(names))}"
        )
    for node in module.body:
        # A decorator may change the arguments.
        if isinstance(node, ast.FunctionDef) and node.name == function and not node.decorator_list:
            _check_arguments(node, name)


def _check_arguments(function: ast.FunctionDef, name: str) -> None:
    """Raise ``InvalidResourcesError`` if a function cannot be called with a size and a device."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    has_room = len(positional) >= _NUM_ARGUMENTS or arguments.vararg is not None
    # ``None`` in ``kw_defaults`` stands for a keyword argument without a default, which a call would lack.
    if num_required > _NUM_ARGUMENTS or not has_room or None in arguments.kw_defaults:
        raise _wrong_form(name, f"it is defined as {function.name}({ast.unparse(arguments)})")


def _wrong_form(name: str, why: str) -> InvalidResourcesError:
    function = name.rpartition(":")[2]
    return InvalidResourcesError(
        f"workload {name!r} must be a function of a size and a device that returns Steps, but {why}. A trainable of "
        f"Tune is not a workload. Write def {function}(size, device): return Steps(with_transfers=step), where step is "
        "a function without arguments that runs one training step. Import Steps from "
        "tune_policies.benchmarks.workloads.steps"
    )


def _parts_of(name: str) -> tuple[str, str]:
    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidResourcesError(f"workload {name!r} must be module:function, such as my_benchmarks:train")
    folder = str(Path.cwd())
    if folder not in sys.path:  # Python does not add the working directory for an installed command
        sys.path.append(folder)
    return module, function


def load_workload(name: str) -> Workload:
    """Import a built-in workload, or ``module:function`` from the working directory.

    Raises:
        InvalidResourcesError: The workload does not exist, cannot be imported, or cannot be called with a size and a
            device.
    """
    if ":" not in name:
        workload = find_workload(name)
        check_needs(workload)
        module, _, function = workload.path.partition(":")
        return cast(Workload, getattr(importlib.import_module(f".{module}", __package__), function))
    module, function = _parts_of(name)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # a user's module may raise any error
        raise InvalidResourcesError(
            f"workload {name!r}: the import of {module} raised {type(error).__name__}: {error}"
        ) from error
    found = getattr(imported, function, None)
    if found is None:
        raise InvalidResourcesError(f"workload {name!r}: {module} does not define {function!r}")
    # A class is callable, but it is probably a trainable of Tune.
    if not callable(found) or isinstance(found, type):
        raise _wrong_form(name, f"it is {_kind_of(found)}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # some functions of extension modules have no signature
        return cast(Workload, found)
    try:
        # Check the arguments without a call, because a call prepares the workload and can take long.
        signature.bind(1, "cpu")
    except TypeError:
        raise _wrong_form(name, f"it is defined as {function}{signature}") from None
    return cast(Workload, found)


def _kind_of(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    return f"of type {type(found).__name__}"


CPU_COST: Final = (0.05e-3, 1e-6)
"""The fixed time of a step on the CPU, and the additional time for each unit of size, in seconds."""

OTHER_COST: Final = (1e-3, 0.05e-6)
"""The corresponding times on other devices. At size 1,000, a step takes equally long on all devices."""


def affine(size: int, device: str) -> Steps:
    """Return steps that wait in a busy loop for ``a + b * size`` seconds.

    ``a`` and ``b`` are ``CPU_COST`` on the CPU and ``OTHER_COST`` on other devices.
    """
    fixed_s, per_unit_s = CPU_COST if device == "cpu" else OTHER_COST
    seconds = fixed_s + per_unit_s * size

    def wait() -> float:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return float(size)

    return Steps(with_transfers=wait, compute=wait, steps_per_epoch=1)
