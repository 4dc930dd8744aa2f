"""Connects to the Ray that is to be probed, and leaves it again. Nothing waits for long where no Ray answers."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Final

import ray

from tune_policies.files.child_python import child_python
from tune_policies.ray_compat.version import Gone, warn_of_untried_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError

try:  # where a Ray runs on this machine there is no public way to ask
    from ray._private import services
except ImportError as error:
    services = Gone(error, "finding a Ray that runs (call ray.init() yourself, and nothing needs it)")
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
except ImportError:  # a Ray without a Ray Client
    ray_client = None


class _WithoutWorkingFolder(JobConfig):  # type: ignore[misc]  # Ray has no types
    """A job whose workers look for modules where they are installed, and not in the driver's working folder.

    Ray sends the folder's name to all workers unless they have a working folder of their own. Of that it asks this one
    method, in 2.50 and 2.60, and there is no public way to say so.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


_CONNECT: Final = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


def find_ray(address: str | None) -> str | None:
    """Return where the Ray is that ``ray.init(address)`` would connect to; ``None`` where it would find none.

    Raises:
        InvalidResourcesError: ``address`` is empty.
    """
    if address == "":
        raise InvalidResourcesError("the address of Ray is empty: name host:port or ray://host:port, or leave it out")
    found = address
    if address in (None, "auto"):
        # As ray.init does: a Ray may have gone since. Ray 2.50 remembers none.
        getattr(services.find_gcs_addresses, "cache_clear", lambda: None)()
        with suppress(ConnectionError):  # "auto", and no Ray runs
            found = services.get_ray_address_from_environment(address, None)
    return None if found in ("auto", "local") else found


@contextmanager
def connection(
    address: str | None, timeout_s: float, *, local: str, uses_working_folder: bool = True
) -> Iterator[None]:
    """Stay connected to a Ray for the time of the block: the program's, else the one named, else one that is found.

    Args:
        address: As for ``ray.init``.
        timeout_s: Deadline for a Ray that is named or found to answer, in seconds.
        local: What the caller does where the address is ``"local"``, for messages.
        uses_working_folder: Whether workers import modules of the working folder, as those of a user's trainables; what
            only reads a cluster runs nothing that lies there.

    Raises:
        InvalidResourcesError: ``address`` is empty, or none that Ray could have.
        ProbeError: The program is connected to another Ray, none answers in time, or none can be started.
    """
    warn_of_untried_ray()
    if ray.is_initialized():
        if address is not None:
            raise ProbeError(
                f"this program is already connected to a Ray, so it cannot probe {address!r}: "
                "leave the address out, or call ray.shutdown() before"
            )
        yield
        return
    found = find_ray(address)
    if found is not None:
        _check_reachable(found, timeout_s, local)
    try:
        # Through Ray Client, workers have no working folder of this machine.
        is_here = not (found or "").startswith("ray://")
        job = _WithoutWorkingFolder() if is_here and not uses_working_folder else None
        ray.init(address=found or address, job_config=job, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # a Ray that does not start says so by a plain `Exception`
        raise ProbeError(f"cannot connect to Ray, or start one: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def connect(timeout_s: float) -> None:
    """Connect the program to the Ray that Tune and Train would use, and stay connected: one that runs, else a new one.

    Raises:
        ProbeError: None answers in time, or none can be started.
    """
    warn_of_untried_ray()
    if ray.is_initialized():
        return
    found = find_ray(None)
    if found is not None:
        _check_reachable(found, timeout_s, "starts a Ray on this machine")
    try:
        ray.init()
    except Exception as error:  # a Ray that does not start says so by a plain `Exception`
        raise ProbeError(f"cannot connect to Ray, or start one: {error}") from error


def is_through_client() -> bool:
    """Return whether the program reaches its cluster through a Ray Client (``ray://``), of which Ray asks itself so.

    Then the GCS and its tables cannot be read from here, and there is no public question. So since Ray 2.50.
    """
    return ray_client is not None and bool(ray_client.is_connected())


@contextmanager
def sent_by_value(*modules: ModuleType) -> Iterator[None]:
    """For the time of the block let tasks carry these modules, so that a node needs nothing but Ray to run them.

    Ray's public way, ``py_modules`` of a runtime environment, sets up each node anew, in seconds, and where none was
    asked for before, through an agent that a plain install may lack. The method is cloudpickle's own, of which Ray
    ships a copy (2.50 and 2.60).
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _check_reachable(address: str, timeout_s: float, local: str) -> None:
    """Raise ``ProbeError`` unless a Ray answers at ``address`` in time.

    ``ray.init`` retries for minutes where nothing answers, cannot be interrupted, and may end the process. So
    the first try is made by a child process, which can be.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    hint = (
        f"check that Ray runs there (`ray start --head`), or name another address; 'local' {local}. "
        "Without an address, RAY_ADDRESS counts, and then what the last `ray start` on this machine left in "
        "ray_current_cluster"
    )
    if not (_is_host(host) and port.isascii() and port.isdigit() and len(port) <= len("65535")):
        raise InvalidResourcesError(
            f"Ray address {address!r} is not host:port, ray://host:port, 'auto' or 'local': {hint}"
        )
    deadline = time.monotonic() + timeout_s
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
        left = max(0.1, deadline - time.monotonic())
        child = child_python("-c", _CONNECT, address)
        subprocess.run(child, timeout=left, check=True, capture_output=True)  # noqa: S603
    except (OSError, OverflowError) as error:
        raise ProbeError(f"no Ray answers at {address!r} ({error}): {hint}") from error
    except subprocess.TimeoutExpired as error:
        raise ProbeError(
            f"no answer from Ray at {address!r} within {timeout_s:g} s: give it longer (--timeout-s, or timeout_s in a "
            f"program), or {hint}"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ProbeError(f"Ray at {address!r} refuses the connection: {last_error(error.stderr)}") from error


def _is_host(name: str) -> bool:
    """Return whether a name can be looked up: ``a..b`` cannot, and ``socket`` says so by a ``UnicodeError``."""
    try:
        return name.isprintable() and bool(name.encode("idna"))
    except UnicodeError:
        return False


def last_error(stderr: bytes) -> str:
    """Return the message with which a Python program ended, in one line."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    # The message follows the last line of the traceback, which is indented as all of it.
    start = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[start:])
