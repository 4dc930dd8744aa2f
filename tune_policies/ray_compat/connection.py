"""Connects the program to a Ray cluster, or fails quickly if no cluster answers."""

import os
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

import ray

from tune_policies.files.child_python import child_python, reason_of_exit
from tune_policies.ray_compat.version import Gone, warn_of_untried_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.wording import shorten

try:  # Ray has no public API to find a running cluster
    from ray._private import services
except ImportError as error:
    services = Gone(error, "finding a running Ray cluster (not needed if you call ray.init() yourself)")
try:
    from ray.job_config import JobConfig
except ImportError as error:
    JobConfig = Gone(error, "a job without a working folder")
try:
    from ray import cloudpickle
except ImportError as error:
    cloudpickle = Gone(error, "reading the nodes of a cluster")
try:
    from ray.util.client import ray as ray_client
except ImportError:  # a Ray installation without Ray Client
    ray_client = None


class _WithoutWorkingFolder(JobConfig):  # type: ignore[misc]  # Ray has no types
    """A job whose workers do not import modules from the driver's working folder.

    Ray 2.50 and 2.60 send the folder's path to all workers unless the method below returns ``True``. Ray has no
    public option for this.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


class _Temporary:
    """The connection that blocks of ``connection`` share. The last block closes it.

    Threads may read the cluster at the same time, but a program has only one connection.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.num_users = 0
        self.address: str | None = None
        self.uses_working_folder = False

    @property
    def is_brief(self) -> bool:
        """Whether a probe opened the connection. Its workers do not import a user's modules."""
        return self.num_users > 0 and not self.uses_working_folder

    def close(self) -> None:
        """Close the connection, unless another thread uses it."""
        with self.changed:
            self.num_users -= 1
            if self.num_users == 0:
                ray.shutdown()
            self.changed.notify_all()


_temporary: Final = _Temporary()

_CONNECT: Final = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


def find_ray(address: str | None) -> str | None:
    """Return the address of the running cluster that ``ray.init(address)`` would use, or ``None`` if there is none.

    Raises:
        InvalidResourcesError: ``address`` is no string, is empty, or is the address of a dashboard.
    """
    if not isinstance(address, str | None):
        raise InvalidResourcesError(f"the Ray address must be a string such as 'auto', got {shorten(address)}")
    if address == "":
        raise InvalidResourcesError("the Ray address is empty. Pass host:port or ray://host:port, or omit the address")
    given = os.environ.get("RAY_ADDRESS", "") if address is None else address
    if given.startswith(("http://", "https://")):
        raise InvalidResourcesError(
            f"{given!r} is the address of the dashboard, to which `ray job submit` sends jobs. To connect a program, "
            "omit RAY_ADDRESS on a node of the cluster, or use host:port or ray://host:10001. To run a program as a "
            f"job, use `ray job submit --address {given} -- python program.py`"
        )
    found = address
    if address in (None, "auto"):
        # Clear the cache as `ray.init` does, because the instance may have stopped. Ray 2.50 has no cache.
        getattr(services.find_gcs_addresses, "cache_clear", lambda: None)()
        with suppress(ConnectionError):  # the address is "auto", but no Ray cluster is running
            found = services.get_ray_address_from_environment(address, None)
    return None if found in ("auto", "local") else found


@contextmanager
def connection(
    address: str | None, timeout_s: float, *, local: str, uses_working_folder: bool = True
) -> Iterator[bool]:
    """Connect the program to Ray during the block, or use its existing connection.

    The block receives whether workers have the same import path and runtime environment as in a run of the program.

    Args:
        address: The address, as for ``ray.init``.
        timeout_s: The timeout for a running cluster to answer, in seconds.
        local: A description of the address ``"local"`` for error messages, such as ``"starts a Ray instance"``.
        uses_working_folder: Whether workers import modules from the working folder, such as a user's trainables.

    Raises:
        InvalidResourcesError: ``address`` is empty or invalid.
        ProbeError: ``address`` is given although the program is already connected, no cluster answers in time, or no
            cluster can be started.
    """
    warn_of_untried_ray()
    with _temporary.changed:
        while _temporary.is_brief and (uses_working_folder or address != _temporary.address):
            _temporary.changed.wait()  # a probe in another thread uses another connection
        is_program_connected = ray.is_initialized()
        if is_program_connected and address is not None and not _temporary.is_brief:
            raise ProbeError(
                f"this program is already connected to a Ray cluster, so it cannot probe {address!r}. "
                "Omit the address, or call ray.shutdown() first"
            )
        if not is_program_connected:
            found = find_ray(address)
            # Through Ray Client, workers never use this machine's working folder.
            is_here = not (found or "").startswith("ray://")
            options: dict[str, Any] = {"job_config": None, "logging_level": "ERROR", "log_to_driver": False}
            if is_here and not uses_working_folder:
                options["job_config"] = _WithoutWorkingFolder()
            _init(found, timeout_s, local, address=found or address, **options)
            _temporary.address, _temporary.uses_working_folder = address, uses_working_folder
        # The connection of the program itself is never closed here.
        is_temporary = not is_program_connected or _temporary.num_users > 0
        _temporary.num_users += is_temporary
        is_as_in_run = not _temporary.is_brief
    try:
        yield is_as_in_run
    finally:
        if is_temporary:
            _temporary.close()


def connect(timeout_s: float) -> None:
    """Connect the program to a running Ray cluster or a new one, as Tune and Train do.

    Raises:
        ProbeError: A running cluster does not answer in time, or no cluster can be started.
    """
    warn_of_untried_ray()
    with _temporary.changed:
        _wait_for_probes()
        if not ray.is_initialized():
            _init(find_ray(None), timeout_s, "starts a Ray instance on this machine")


def connect_if_running(timeout_s: float = 30.0) -> None:
    """Connect the program to the running cluster that a Tune run would use, or do nothing if there is none.

    Tune itself waits for minutes if no cluster answers at ``RAY_ADDRESS``, and starts a local instance without an
    address.

    Raises:
        ProbeError: The cluster does not answer in time, or refuses the connection.
    """
    warn_of_untried_ray()
    with _temporary.changed:
        _wait_for_probes()
        found = None if ray.is_initialized() else find_ray(None)
        if found is not None:
            _init(found, timeout_s, "starts a Ray instance on this machine")


def _wait_for_probes() -> None:
    """Wait until no probe of another thread uses a connection that it will close."""
    while _temporary.is_brief:
        _temporary.changed.wait()


def _init(found: str | None, timeout_s: float, local: str, **options: Any) -> None:
    if found is not None:
        _check_reachable(found, timeout_s, local)
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises a plain `Exception` if it cannot start
        raise ProbeError(f"could not connect to Ray or start Ray: {error}") from error


def is_through_client() -> bool:
    """Return whether the program is connected through Ray Client (``ray://``) and therefore cannot read the GCS.

    Ray has no public function for this. The private function has been the same since Ray 2.50.
    """
    return ray_client is not None and bool(ray_client.is_connected())


_num_blocks_by_value: Final = Counter[str]()
"""The number of ``sent_by_value`` blocks for each module, because threads may read the cluster at the same time."""

_by_value_lock: Final = threading.Lock()


@contextmanager
def sent_by_value(*modules: ModuleType) -> Iterator[None]:
    """Pickle these modules by value during the block, so that a task that uses them needs only Ray on its node.

    Ray's public option, ``py_modules`` of a runtime environment, takes seconds on each node and may need an agent that
    a default install lacks. The cloudpickle copy in Ray 2.50 and 2.60 supports pickling by value.
    """
    with _by_value_lock:
        for module in modules:
            if not _num_blocks_by_value[module.__name__]:
                cloudpickle.register_pickle_by_value(module)
            _num_blocks_by_value[module.__name__] += 1
    try:
        yield
    finally:
        with _by_value_lock:
            for module in modules:
                _num_blocks_by_value[module.__name__] -= 1
                if not _num_blocks_by_value[module.__name__]:
                    cloudpickle.unregister_pickle_by_value(module)


def _check_reachable(address: str, timeout_s: float, local: str) -> None:
    """Raise a ``ProbeError`` unless Ray answers at ``address`` within ``timeout_s`` seconds.

    A child process connects first, because ``ray.init`` retries for minutes, cannot be interrupted, and may end the
    process that calls it.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    other = (
        f"pass another address. The address 'local' {local}. "
        "Without an address, RAY_ADDRESS is used, or else the address that the last `ray start` on this machine wrote "
        "to ray_current_cluster"
    )
    if not (_is_host(host) and port.isascii() and port.isdigit() and len(port) <= len("65535")):
        raise InvalidResourcesError(
            f"Ray address {address!r} is not host:port, ray://host:port, 'auto' or 'local', so {other}"
        )
    deadline = time.monotonic() + timeout_s
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
        # A port that accepts connections may belong to a Ray that does not answer, so a child process connects next, in
        # the time that is left.
        left = max(0.1, deadline - time.monotonic())
        child = child_python("-c", _CONNECT, address)
        subprocess.run(child, timeout=left, check=True, capture_output=True)  # noqa: S603
    except (OSError, OverflowError) as error:
        raise ProbeError(
            f"no Ray cluster responds at {address!r} ({error}). Start Ray there (`ray start --head`), or {other}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProbeError(
            f"Ray at {address!r} did not answer within {timeout_s:g} s. Wait longer (--timeout-s, or timeout_s in a "
            f"program), start Ray there (`ray start --head`), or {other}"
        ) from error
    except subprocess.CalledProcessError as error:
        if b"AuthenticationError" in error.stderr:
            raise ProbeError(
                f"Ray at {address!r} refuses the authentication token, because it is missing or incorrect. Set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of the cluster, or write the token to "
                "~/.ray/auth_token"
            ) from error
        why = last_error(error.stderr)
        if error.returncode < 0 or not error.stderr.strip():
            why = reason_of_exit(error.returncode, "")
        raise ProbeError(f"Ray at {address!r} refuses the connection: {why}") from error


def _is_host(name: str) -> bool:
    """Return whether ``socket`` can look up a host name. For ``a..b``, ``socket`` would raise a ``UnicodeError``."""
    try:
        return name.isprintable() and bool(name.encode("idna"))
    except UnicodeError:
        return False


def last_error(stderr: bytes) -> str:
    """Return the last error message that a Python program printed, joined to one line."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    # The message starts at the last line that begins with the name of an exception.
    start = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[start:])
