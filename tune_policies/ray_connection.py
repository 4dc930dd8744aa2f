"""Connects to the Ray that is to be probed, and leaves it again. Nothing waits for long where no Ray answers."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import ray
from ray._private.utils import read_ray_address
from ray.exceptions import RayError

from tune_policies.errors import ProbeError

_CONNECT: Final = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


@contextmanager
def connection(address: str | None, timeout_s: float) -> Iterator[None]:
    """Stay connected to a Ray for the time of the block: the program's, else the one named, else one that is found.

    Raises:
        ProbeError: The program is connected to another Ray, or none answers in time.
    """
    if ray.is_initialized():
        if address is not None:
            raise ProbeError(
                f"this program is already connected to a Ray, so it cannot probe {address!r}: "
                "leave the address out, or call ray.shutdown() before"
            )
        yield
        return
    named = address or os.environ.get("RAY_ADDRESS") or "auto"
    # A cluster that died leaves its address in a file, and Ray goes by it; there is no public way to ask which.
    target = read_ray_address() if named == "auto" else named
    if target is not None and target != "local":
        _check_reachable(target, timeout_s)
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise ProbeError(f"cannot connect to Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str, timeout_s: float) -> None:
    """Raise ``ProbeError`` unless a Ray answers at ``address`` in time.

    ``ray.init`` retries for minutes where nothing answers, cannot be interrupted, and may end the process. So
    the first try is made by a child process, which can be.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    way_out = (
        "check that Ray runs there (`ray start --head`), or name another address; 'local' starts a Ray for the moment. "
        "Without an address, RAY_ADDRESS counts, and then what the last `ray start` on this machine left in "
        "ray_current_cluster"
    )
    if not host or not port.isdigit():
        raise ProbeError(f"Ray address {address!r} is not host:port, ray://host:port, 'auto' or 'local': {way_out}")
    deadline = time.monotonic() + timeout_s
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
        left = max(0.1, deadline - time.monotonic())
        child = [sys.executable, "-c", _CONNECT, address]
        subprocess.run(child, timeout=left, check=True, capture_output=True)  # noqa: S603
    except (OSError, OverflowError) as error:
        raise ProbeError(f"no Ray answers at {address!r} ({error}): {way_out}") from error
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"no Ray answers at {address!r} within {timeout_s:g} s: {way_out}") from error
    except subprocess.CalledProcessError as error:
        raise ProbeError(f"Ray at {address!r} refuses the connection: {last_error(error.stderr)}") from error


def last_error(stderr: bytes) -> str:
    """Return the message with which a Python program ended, in one line."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    # The message follows the last line of the traceback, which is indented as all of it.
    start = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[start:])
