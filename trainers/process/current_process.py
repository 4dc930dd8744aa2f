"""The state of this process: its devices, threads and limits, and the resource usage of its current trial.

A process may run several trials, tasks or method calls, one after the other. ``CURRENT`` is the only state of this
package that is kept between them. Import hooks, the code that extends results, and the public ``gpu_memory_usage``
access ``CURRENT`` from any thread.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

import ray
import wrapt
from threadpoolctl import ThreadpoolController

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import MemoryLimitError, ProbeError

from ..gpu_memory.enforcement import MODULES, enforce, limit_imported, require_limit
from ..gpu_memory.fraction_limits import FractionLimits, GpuShare, LimitOptions
from ..gpu_memory.framework_settings import OwnEnvironment
from ..gpu_memory.free_memory import end_gpu_processes, mark_processes, wait_for_free_memory
from ..gpu_memory.mps import cuda_has_started
from ..gpu_memory.trial_usage import RunFolder, TrialUsage
from ..usage.gpu_memory_usage import GPU_MEMORY_KEY, GpuMemoryUsage
from ..usage.process_usage import USAGE_KEY
from ..usage.usage_meter import UsageMeter

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",  # Ray sets this variable too, for example to 1 if a trial requests GPUs but no CPUs
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",  # TensorFlow reads this and the next variable when its runtime starts
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA (and therefore JAX) reads this variable when its CPU back end starts
)
_VARIABLES_OF_LIBRARIES: Final = {
    "openmp": "OMP_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
}
"""The variables of loaded libraries by the names that ``threadpoolctl`` uses."""
_DEVICE_VARIABLES: Final = (
    "CUDA_DEVICE_ORDER",
    *dict.fromkeys(family.visibility_variable for family in FAMILIES if family.visibility_variable),
)


class CurrentProcess:
    """The state of this process. Unpickling an instance returns ``CURRENT`` of the process that unpickles it.

    Attributes:
        slot: The slot of the current or last trial of Tune, or ``None``.
        end_train_run: A function that ends the Train run of the current or last trial, or ``None``.
    """

    def __init__(self) -> None:
        self.slot: TrialSlot | None = None
        self.end_train_run: Callable[[], None] | None = None
        self._environment = OwnEnvironment()
        self._meter: UsageMeter | None = None
        self._usage: TrialUsage | None = None
        self._assigned_to = ""
        self._devices_of_ray: dict[str, str | None] = {}
        self._gpus_of_cuda: str | None = None
        self._thread = threading.local()
        self._num_modules = 0
        self._libraries: ThreadpoolController | None = None
        self._num_threads = 1
        self._note_on_threads = ""
        self._watches_imports = False
        self._warned: set[str] = set()

    def __reduce__(self) -> str:
        return "CURRENT"

    def restore_devices(self, assigned_to: str) -> None:
        """Restore Ray's device variables, which an earlier trial may have changed.

        ``assigned_to`` is the ID of the actor or the task to which Ray assigned the devices.

        Raises:
            MemoryLimitError: An earlier task started CUDA in this process on a different GPU.
        """
        if assigned_to != self._assigned_to:
            self._assigned_to = assigned_to
            self._devices_of_ray = {name: os.environ.get(name) for name in _DEVICE_VARIABLES}
        for name, value in self._devices_of_ray.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._check_gpus_of_cuda(os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def _check_gpus_of_cuda(self, gpus: str) -> None:
        """Raise a ``MemoryLimitError`` if CUDA has started in this process with visible GPUs other than ``gpus``."""
        if self._gpus_of_cuda is None or not cuda_has_started():
            self._gpus_of_cuda = gpus
        elif gpus != self._gpus_of_cuda:
            raise MemoryLimitError(
                f"Ray assigned GPU {gpus} to this task, but an earlier task started CUDA in this process on GPU "
                f"{self._gpus_of_cuda}, and CUDA cannot switch to another GPU afterwards. Use "
                "remote_options(reuse='release'), or an actor"
            )

    def set_num_threads(self, num_threads: int) -> None:
        """Set the number of threads of this process's numerical libraries, including libraries loaded later.

        Variables that the user set in the ``runtime_env`` take precedence. Libraries without a variable of their own
        use the user's ``OMP_NUM_THREADS``.
        """
        self._thread.is_set = True
        self._num_threads = num_threads
        of_user = _thread_variables_of_user()
        self._note_on_threads = _note_on_threads(of_user, num_threads)
        default = _number_in(of_user.get("OMP_NUM_THREADS"), num_threads)
        for variable in _THREAD_VARIABLES:
            os.environ[variable] = of_user.get(variable, str(default))
        # Finding the libraries takes longer than the rest of the set-up, so find them again only after new imports.
        if self._libraries is None or self._num_modules != len(sys.modules):
            self._num_modules = len(sys.modules)
            self._libraries = ThreadpoolController()
        for library in self._libraries.lib_controllers:
            variable = _VARIABLES_OF_LIBRARIES.get(library.internal_api, "")
            library.set_num_threads(_number_in(of_user.get(variable), default))
        self._set_threads_of_torch()

    def set_num_threads_of_thread(self) -> None:
        """Set the number of threads for the calling thread, because OpenMP stores this setting per thread."""
        if not hasattr(self._thread, "is_set"):
            self.set_num_threads(self._num_threads)

    def _set_threads_of_torch(self) -> None:
        # On import, PyTorch limits the number of its threads to the number of cores.
        num_threads = os.environ.get("OMP_NUM_THREADS")
        if num_threads is not None and (torch := sys.modules.get("torch")):
            torch.set_num_threads(_number_in(num_threads, 1))

    def _watch_imports(self) -> None:
        if not self._watches_imports:  # hooks cannot be removed, so register them only once
            self._watches_imports = True
            for name in set(MODULES) - sys.modules.keys():
                wrapt.register_post_import_hook(self._follow_import, name)

    def _follow_import(self, module: ModuleType) -> None:
        if module.__name__ == "torch":
            self._set_threads_of_torch()
        if self._usage is not None:
            limit_imported(self._usage.limits, [module.__name__])

    def begin_trial(self, cpus: float, share: GpuShare | None, options: LimitOptions) -> None:
        """Start measuring the usage of a trial, and limit the trial's memory if it has only a fraction of a device.

        Raises:
            MemoryLimitError: The trial's GPU memory cannot be limited, or other processes use this memory.
        """
        if self._meter is not None:
            self._meter.end()
        self._meter = UsageMeter(cpus, has_gpu=share is not None and share.device == "GPU")
        earlier, self._usage = self.limits, None
        self._watch_imports()
        if share is None:
            return
        if share.device == "GPU":
            # Ray numbers GPUs in the order of the PCI bus, but CUDA's default order starts with the fastest GPU.
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        # The order matters: processes must be marked before they start, and the memory of an earlier trial must be
        # released before waiting for free memory.
        mark_processes()
        usage = TrialUsage(FractionLimits(share, options, self._environment))
        with self._warned_if_unknown():
            usage.begin()
        if share.device == "GPU":  # NVML does not support NPUs
            wait_for_free_memory(share, earlier)
        self._usage = usage
        enforce(usage.limits)

    @property
    def limits(self) -> FractionLimits | None:
        """The limits of the current trial, or ``None`` if this process has no plan or no device."""
        if self._usage is None:
            return None
        return self._usage.limits

    def require_limit(self) -> None:
        """Raise a ``MemoryLimitError`` if this process could not be limited to its GPU fraction."""
        if self._usage is not None:
            require_limit(self._usage.limits)

    def rebase_usage(self) -> None:
        """Reset the peaks after a trainable was reset. Memory that the trainable keeps counts toward the new trial."""
        if self._usage is not None:
            with self._warned_if_unknown():
                self._usage.rebase()

    def end_gpu_processes(self) -> None:
        """Terminate the trial's processes that use GPU memory, and add warnings about them to the trial's results."""
        messages = end_gpu_processes()
        if self._usage is not None:
            self._usage.warn(messages)

    def gpu_memory_usage(self) -> GpuMemoryUsage | None:
        """Return the GPU memory usage of this process, or ``None`` if the process has no GPU or no plan.

        Raises:
            ProbeError: The memory of a framework cannot be read.
        """
        if self._usage is None:
            return None
        return self._usage.read()

    def keep_usage(self, folder: RunFolder) -> None:
        """Write the GPU memory usage to the folder of a run."""
        folder.keep(self._usage_if_known())

    def keep_warnings(self, storage: Any) -> None:
        """Write the warnings since the last result to the trial's folder, because no later result can include them."""
        if self._usage is not None and self._usage.warnings and storage:
            self.keep_usage(RunFolder(storage.storage_filesystem, storage.trial_fs_path, rank=0))

    def keep_news(self, storage: Any) -> None:
        """Write the GPU memory usage to the trial's folder if the last result does not contain its peaks."""
        if storage and self._has_news():
            self.keep_usage(RunFolder(storage.storage_filesystem, storage.trial_fs_path, rank=0))

    def is_usage_due(self) -> bool:
        """Return whether the next result should contain the usage.

        The first result of a trial contains it, and later results every two seconds, after a new peak, or after a
        failed allocation.
        """
        return (self._meter is not None and self._meter.is_due()) or self._has_news()

    def _has_news(self) -> bool:
        if self._usage is None:
            return False
        try:
            return self._usage.has_news()
        except ProbeError:
            return True  # the next reading adds a warning

    def with_usage(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return ``metrics`` with the resource usage as ``"usage"`` and the GPU memory usage as ``"gpu_memory"``.

        Existing values are not replaced. If the memory of a framework cannot be read, the method warns instead of
        raising an error. Metrics that are not a dict are returned unchanged, so that Ray reports the error.

        Raises:
            MemoryLimitError: The process could not be limited to its GPU fraction.
        """
        self.require_limit()
        if not isinstance(metrics, dict):
            return metrics
        if USAGE_KEY not in metrics and self._meter is not None:
            read = self._meter.read().model_copy(update={"note": self._note_on_threads})
            metrics = {**metrics, USAGE_KEY: read.model_dump()}
        usage = self._usage_if_known()
        if usage is None:
            return metrics
        if GPU_MEMORY_KEY in metrics:
            self._warn_once(
                f"the metrics already have the key {GPU_MEMORY_KEY!r}, so the trial's GPU memory usage is not added. "
                "Rename the key in your metrics, or report gpu_memory_usage() under another key"
            )
            return metrics
        return {**metrics, GPU_MEMORY_KEY: usage.to_result()}

    @contextmanager
    def noted_on_oom(self) -> Iterator[None]:
        """Classify an out-of-memory error where it is raised, and add a report to it.

        A failed trial returns no result, so the report also contains the memory that it used.
        """
        try:
            yield
        except Exception as error:
            with suppress(MemoryError):  # too little memory is left for the report
                self._add_report(error)
            raise

    def _add_report(self, error: Exception) -> None:
        # Few trials need these modules.
        from tune_policies.oom import classify_oom

        from ..usage.oom_report import OomReport
        from .oom_note import add_report, has_report

        out_of_memory = classify_oom(error)
        # A nested context manager may have added the report, and a process without a policy has no meter.
        if out_of_memory.kind == "none" or self._meter is None or has_report(error):
            return
        gpu_memory = None
        if out_of_memory.kind == "accelerator":
            gpu_memory = self._usage_after_oom()
        elif out_of_memory.used_bytes is None:
            used_bytes = self._meter.read().host_memory_bytes
            out_of_memory = out_of_memory.model_copy(update={"used_bytes": used_bytes or None})
        add_report(error, OomReport(out_of_memory=out_of_memory, gpu_memory=gpu_memory))

    def _usage_after_oom(self) -> GpuMemoryUsage | None:
        """Return the GPU memory usage, in which the latest failed allocation counts."""
        if self._usage is None:
            return None
        before = self._usage.num_ooms
        usage = self._usage_if_known()
        # Most frameworks do not count failed allocations, and torch does not count failures in cuBLAS, cuDNN or MPS.
        self._usage.num_ooms = max(self._usage.num_ooms, before + 1)
        if usage is None:
            return None
        return usage.model_copy(update={"num_ooms": self._usage.num_ooms})

    def _usage_if_known(self) -> GpuMemoryUsage | None:
        with self._warned_if_unknown():
            return self.gpu_memory_usage()
        return None

    @contextmanager
    def _warned_if_unknown(self) -> Iterator[None]:
        try:
            yield
        except ProbeError as error:
            self._warn_once(f"the memory usage of the trial is unknown: {error}")

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=3)


def _thread_variables_of_user() -> dict[str, str]:
    """Return the thread variables in the ``runtime_env`` of the program, the trial, the task or the actor.

    Ray sets ``OMP_NUM_THREADS`` only in the environment of the process, and not in the ``runtime_env``.
    """
    if not ray.is_initialized():  # the call below would start Ray
        return {}
    variables = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    return {name: variables[name] for name in _THREAD_VARIABLES if variables.get(name)}


def _note_on_threads(of_user: dict[str, str], num_threads: int) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in of_user.items() if value != str(num_threads))
    if not settings:
        return ""
    return f"the runtime_env sets {settings}, which takes precedence over the planned number of threads, {num_threads}"


def _number_in(value: str | None, default: int) -> int:
    """Return the first number of a thread variable, because OpenMP accepts a list such as ``4,2``, or ``default``."""
    first = (value or "").partition(",")[0].strip()
    if first.isdecimal():
        return max(1, int(first))
    return default


CURRENT: Final = CurrentProcess()


def gpu_memory_usage() -> GpuMemoryUsage | None:
    """Return the GPU memory usage of this process, or ``None`` if the process has no GPU or no plan.

    Raises:
        ProbeError: The memory of a framework cannot be read.
    """
    return CURRENT.gpu_memory_usage()
