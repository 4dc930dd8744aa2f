"""The state of this process: its devices, its threads, and its current trial.

A process may run several trials, tasks or method calls, one after the other. ``CURRENT`` is the only state of this
package that is kept between them. Import hooks, the code that extends results, and the public ``gpu_memory_usage``
access ``CURRENT`` from any thread.
"""

import sys
from types import ModuleType
from typing import Final

import wrapt

from ..gpu_memory.enforcement import MODULES
from ..gpu_memory.fraction_limits import GpuShare, LimitOptions
from ..usage.gpu_memory_records import GpuMemoryUsage
from .current_trial import CurrentTrial
from .process_devices import ProcessDevices
from .process_threads import ProcessThreads


class CurrentProcess:
    """The state of this process. Unpickling an instance returns ``CURRENT`` of the process that unpickles it.

    Attributes:
        devices: The devices that Ray assigned to the process.
        threads: The number of threads of the numerical libraries.
        trial: The current or last trial.
    """

    def __init__(self) -> None:
        self.devices = ProcessDevices()
        self.threads = ProcessThreads()
        self.trial = CurrentTrial()
        self._watches_imports = False

    def __reduce__(self) -> str:
        return "CURRENT"

    def bind_trial(self, cpus: float, share: GpuShare | None, options: LimitOptions) -> None:
        """Start measuring the usage of a trial, and limit its memory, also in frameworks that are imported later.

        Raises:
            MemoryLimitError: The trial's GPU memory cannot be limited, or other processes use this memory.
        """
        self._watch_imports()
        self.trial.bind(cpus, share, options, self.threads.note)

    def _watch_imports(self) -> None:
        if not self._watches_imports:  # hooks cannot be removed, so register them only once
            self._watches_imports = True
            # ``wrapt`` would call the hook for an imported module at once, before the trial has its limits.
            for name in set(MODULES) - sys.modules.keys():
                wrapt.register_post_import_hook(self._follow_import, name)

    def _follow_import(self, module: ModuleType) -> None:
        if module.__name__ == "torch":
            self.threads.bind_torch()
        self.trial.limit_imported(module.__name__)


CURRENT: Final = CurrentProcess()


def gpu_memory_usage() -> GpuMemoryUsage | None:
    """Return the GPU memory usage of this process, or ``None`` if the process has no GPU or no plan.

    Raises:
        ProbeError: The memory of a framework cannot be read.
    """
    return CURRENT.trial.gpu_memory_usage()
