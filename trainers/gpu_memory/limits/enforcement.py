"""Holds the frameworks of this process to its share of a GPU, as soon as each is there.

Nobody names the framework: one that is imported already is limited at once, one that the user's code imports later
at the end of that import.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Literal

import wrapt

from tune_policies.values.errors import MemoryLimitError

from .isolation import is_mig, isolate_by_mps
from .limiters.cupy_limiter import cupy_still_holds, limit_cupy
from .limiters.jax_limiter import jax_still_holds, limit_jax
from .limiters.tensorflow_limiter import limit_tensorflow, tensorflow_still_holds
from .limiters.torch_limiter import limit_torch, torch_still_holds
from .overhead import NOTHING_MEASURED, Overheads
from .share import Enforcement, GpuShare, Holding, SharedDevice, could_see_gpu

_LIMITERS: Final[dict[str, Callable[[Any, Holding], bool]]] = {
    "torch": limit_torch,
    "torch_npu": lambda _, holding: limit_torch(sys.modules["torch"], holding),  # it gives PyTorch its NPUs
    "tensorflow": limit_tensorflow,
    "jax": limit_jax,
    "cupy": limit_cupy,
}

_STILL_HOLDS: Final[dict[str, Callable[[Any, int], bool]]] = {
    "torch": torch_still_holds,
    "tensorflow": tensorflow_still_holds,
    "jax": jax_still_holds,
    "cupy": cupy_still_holds,
}
"""Whether the limit in bytes that was set is still in force, by framework."""

_MUST_SEE: Final[dict[SharedDevice, tuple[str, ...]]] = {"GPU": ("torch", "tensorflow"), "NPU": ("torch_npu",)}
"""Frameworks for which it is an error that they see no such device. Others come along with them where they are
installed (``import tensorflow`` imports JAX), so that they see none says nothing about the framework in use."""

_NOT_ENFORCEABLE: Final = {
    "numba.cuda": "numba",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "habana_frameworks": "habana",
}
"""Modules whose users may take GPU memory without any limit, by the name under which they are reported."""


@dataclass
class _InForce:
    """The share to which this process is held now.

    Attributes:
        holding: What the limiters work with.
        held: Frameworks that use the device.
        blind: Frameworks that were imported and see none.
        refusal: Why a framework could not be held. The user's code, or a library, may have caught the error.
    """

    holding: Holding
    held: set[str] = field(default_factory=set)
    blind: set[str] = field(default_factory=set)
    refusal: str | None = None

    def limit(self, name: str) -> None:
        """Hold a framework that has been imported to the share, if it sees the GPU.

        Raises:
            MemoryLimitError: It cannot be held.
        """
        record = self.holding.record
        try:
            sees_device = _LIMITERS[name](sys.modules[name], self.holding)
        except MemoryLimitError as error:
            self.refusal = str(error)
            record.warn(self.refusal)
            raise
        if not sees_device:
            self.blind.add(name)
            if not self.held:
                record.warn(f"{name} sees no {self.holding.share.device}")
            return
        self.held.add(name.removesuffix("_npu"))
        # Something uses the GPU; that what it has brought along does not is of no interest any more.
        record.warnings = [text for text in record.warnings if " sees no " not in text]
        if len(self.held) > 1:
            record.warn(f"{' and '.join(sorted(self.held))} are each held to the share, together they may take more")

    def check_sight(self, names: Iterable[str]) -> None:
        """Refuse to go on where nothing will hold the process, as its frameworks see no GPU and no other could.

        Args:
            names: What has just been imported.

        Raises:
            MemoryLimitError: No framework sees one.
        """
        device = self.holding.share.device
        if self._blind_of(names) and not (device == "GPU" and could_see_gpu(self.blind)):
            raise self._no_sight(self._blind_of(names)[0])

    def require(self) -> None:
        """Refuse to go on where something is not held.

        Raises:
            MemoryLimitError: A framework was refused, or none sees a GPU.
        """
        if self.refusal is not None:
            raise MemoryLimitError(self.refusal)
        blind = self._blind_of(sorted(self.blind))
        if blind:
            raise self._no_sight(blind[0])

    def _blind_of(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` whose blindness leaves the process without anything that holds it."""
        if self.held:
            return []
        return [name for name in names if name in self.blind and name in _MUST_SEE[self.holding.share.device]]

    def _no_sight(self, name: str) -> MemoryLimitError:
        device = self.holding.share.device
        return MemoryLimitError(
            f"Ray gave this process a share of a {device}, but {name} sees no {device}, so nothing can hold it "
            f"to its share: install a {name} that is built for the {device} and its driver, or plan with "
            "CpuPolicy"
        )

    def look_again(self) -> None:
        """Write down which limits hold no more: the user's code may have lifted them since."""
        record = self.holding.record
        for name, limit_bytes in list(record.limit_bytes.items()):
            try:
                still_holds = _STILL_HOLDS[name](sys.modules[name], limit_bytes)
            except Exception:  # noqa: BLE001, S112 - after some errors a device answers nothing but errors
                continue
            if not still_holds:
                record.release(name)
                record.warn(f"the limit of {name} was lifted or replaced after it was set, so it holds no more")

    def note(self, framework: str) -> None:
        """Write down that a framework which knows no limit is in use."""
        if framework not in self.holding.record.not_enforceable:
            self.holding.record.not_enforceable.append(framework)


_in_force: _InForce | None = None
_record: Enforcement | None = None
_is_watching_imports = False


def current_enforcement() -> Enforcement | None:
    """Return what holds this process to its share now; ``None``: nothing was asked to."""
    return _record


def checked_enforcement() -> Enforcement | None:
    """Return what still holds this process to its share; ``None``: nothing was asked to.

    A limit that was lifted or replaced since it was set leaves the record, with a warning there. Never raises.
    """
    if _in_force is not None:
        _in_force.look_again()
    return current_enforcement()


def require_limit() -> None:
    """Refuse to go on where this process could not be held to its share; to be asked at each result.

    Raises:
        MemoryLimitError: A limit was refused, whoever caught the error, or none of the imported frameworks sees the
            GPU.
    """
    if _in_force is not None:
        _in_force.require()


def note_whole_devices() -> Enforcement:
    """Write down that this process has whole devices now, and no neighbour there.

    No framework is held from now on; a limit that one has got for an earlier trial in the process stays as it was set.
    A MIG device is a whole one that its GPU holds to its size.
    """
    global _in_force, _record
    _in_force = None
    _record = Enforcement(isolation="mig" if is_mig() else None)
    return _record


def enforce(
    share: GpuShare,
    *,
    overheads: Overheads = NOTHING_MEASURED,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
) -> Enforcement:
    """Hold every framework of this process to ``share``, now or when it is imported.

    A framework that sees no GPU uses no GPU memory, so it is let be where another one is held already, or could be
    when it is imported. Where none could, the GPU that Ray gave is out of everybody's reach: an error, unless the
    framework is one that others bring along.
    Each framework is held to the share by itself. A later call, for the next trial in the same process, takes the
    place of this one.

    Args:
        share: What the process may use.
        overheads: What the frameworks use outside their allocators.
        isolation: ``"mps"``: also let NVIDIA's MPS daemon hold the process, where one answers.
        on_void_limit: What to do about a setting that turns a limit into none: an error, or a warning in the result.

    Returns:
        What holds, filled further as frameworks are imported.

    Raises:
        MemoryLimitError: The limit could not be applied. The import of a framework may raise it later.
    """
    global _in_force, _record
    record = _record = Enforcement(share_bytes=share.memory_bytes)
    in_force = _in_force = _InForce(Holding(share, overheads, on_void_limit, record))
    if isolation == "mps":  # first of all: it must be there before CUDA starts
        isolate_by_mps(in_force.holding)
    present = [name for name in _LIMITERS if name in sys.modules]
    for name in present:
        in_force.limit(name)
    in_force.check_sight(present)
    for module in _NOT_ENFORCEABLE.keys() & sys.modules.keys():
        in_force.note(_NOT_ENFORCEABLE[module])
    _watch_imports()
    return record


def _watch_imports() -> None:
    global _is_watching_imports
    if _is_watching_imports:  # a hook stays for the life of the process
        return
    _is_watching_imports = True
    for name in _LIMITERS.keys() - sys.modules.keys():
        wrapt.register_post_import_hook(_limit_late, name)
    for name in _NOT_ENFORCEABLE.keys() - sys.modules.keys():
        wrapt.register_post_import_hook(_note_late, name)


def _limit_late(module: ModuleType) -> None:
    if _in_force is not None:
        _in_force.limit(module.__name__)
        _in_force.check_sight([module.__name__])


def _note_late(module: ModuleType) -> None:
    if _in_force is not None:
        _in_force.note(_NOT_ENFORCEABLE[module.__name__])
