"""Connects the program to a Ray cluster, or fails quickly if no cluster answers."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

import ray

from tune_policies.files.child_python import child_python
from tune_policies.ray_compat.version import Gone, warn_of_untried_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError

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


_CONNECT: Final = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


def find_ray(address: str | None) -> str | None:
    """Return the address of the running cluster that ``ray.init(address)`` would use, or ``None`` if there is none.

    Raises:
        InvalidResourcesError: ``address`` is empty.
    """
    if address == "":
        raise InvalidResourcesError("the Ray address is empty. Pass host:port or ray://host:port, or omit the address")
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
) -> Iterator[None]:
    """Connect the program to Ray during the block, or use its existing connection.

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
    if ray.is_initialized():
        if address is not None:
            raise ProbeError(
                f"this program is already connected to a Ray cluster, so it cannot probe {address!r}. "
                "Omit the address, or call ray.shutdown() first"
            )
        yield
        return
    found = find_ray(address)
    # Through Ray Client, workers never use this machine's working folder.
    is_here = not (found or "").startswith("ray://")
    job = _WithoutWorkingFolder() if is_here and not uses_working_folder else None
    _init(found, timeout_s, local, address=found or address, job_config=job, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def connect(timeout_s: float) -> None:
    """Connect the program to a running Ray cluster or a new one, as Tune and Train do.

    Raises:
        ProbeError: A running cluster does not answer in time, or no cluster can be started.
    """
    warn_of_untried_ray()
    if not ray.is_initialized():
        _init(find_ray(None), timeout_s, "starts a Ray instance on this machine")


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


@contextmanager
def sent_by_value(*modules: ModuleType) -> Iterator[None]:
    """Pickle these modules by value during the block, so that a task that uses them needs only Ray on its node.

    Ray's public option, ``py_modules`` of a runtime environment, takes seconds on each node and may need an agent that
    a default install lacks. The cloudpickle copy in Ray 2.50 and 2.60 supports pickling by value.
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
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
        raise ProbeError(f"Ray at {address!r} refuses the connection: {last_error(error.stderr)}") from error


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
