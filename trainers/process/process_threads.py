"""The number of threads of the numerical libraries in this process."""

import os
import sys
import threading
from typing import Final

import ray
from threadpoolctl import ThreadpoolController

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


def num_threads_of(cpus: float) -> int:
    """Return the number of threads for a number of CPUs: rounded down, and at least 1."""
    return max(1, int(cpus))  # as in Ray's ``set_omp_num_threads_if_unset``


class ProcessThreads:
    """The threads of this process.

    Attributes:
        note: A note for the results of a trial if the user's variables take precedence, or ``""``.
    """

    def __init__(self) -> None:
        self.note = ""
        self._thread = threading.local()
        self._num_modules = 0
        self._libraries: ThreadpoolController | None = None
        self._num_threads = 1

    def bind(self, num_threads: int) -> None:
        """Set the number of threads of this process's numerical libraries, including libraries loaded later.

        Variables that the user set in the ``runtime_env`` take precedence. Libraries without a variable of their own
        use the user's ``OMP_NUM_THREADS``.
        """
        self._thread.is_set = True
        self._num_threads = num_threads
        of_user = _thread_variables_of_user()
        self.note = _note_on_threads(of_user, num_threads)
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
        self.bind_torch()

    def bind_calling_thread(self) -> None:
        """Set the number of threads for the calling thread, because OpenMP stores this setting per thread."""
        if not hasattr(self._thread, "is_set"):
            self.bind(self._num_threads)

    def bind_torch(self) -> None:
        """Set the number of threads of PyTorch if it is imported.

        On import, PyTorch limits the number of its threads to the number of cores.
        """
        num_threads = os.environ.get("OMP_NUM_THREADS")
        torch = sys.modules.get("torch")
        if num_threads is not None and torch is not None:
            torch.set_num_threads(_number_in(num_threads, 1))


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
