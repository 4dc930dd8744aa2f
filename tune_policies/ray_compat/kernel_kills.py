"""Whether the kernel killed a process for want of host memory.

Such a process leaves no error: Ray says that this may have been the reason, or a crash. But the kernel counts what it
kills. So each process of a trial notes the count of its node as it begins, and where one has died, the count is read
again. If the kernel has killed any process there in the meantime, it counts as this one.

The note is a value for each node in the GCS, under a key of ours: what a process knows is lost with it, and Ray has no
public place for a value of a node.
"""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.values.errors import RayVersionError

from .gcs import dead_actors, node_of_actor
from .version import Gone

try:
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
except ImportError as error:
    _internal_kv_get = _internal_kv_put = Gone(error, "telling whether the kernel killed a process")

_logger = logging.getLogger(__name__)

_KEY: Final = "tune-policies:kernel-kills:"
_TIMEOUT_S: Final = 10.0


def read_kernel_kills() -> int | None:
    """Return how many processes the kernel of this machine has killed for want of memory; ``None``: it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def note_kernel_kills() -> None:
    """Note the count of this process's node; nothing where no Ray is, or the kernel does not say."""
    if ray.is_initialized() and (count := read_kernel_kills()) is not None:
        with suppress(RayError, RayVersionError):  # no trial fails for want of a note
            _internal_kv_put(_KEY + ray.get_runtime_context().get_node_id(), str(count))


def was_killed_by_kernel(error: object) -> bool:
    """Return whether ``error`` is that of an actor, or of one of Ray Train's workers, that the kernel has killed.

    Its node is asked, which may take seconds. Of processes that noted nothing, nothing is known.
    """
    try:
        return any(map(_is_killed, dead_actors(error)))
    except RayVersionError as problem:
        _logger.warning("a process that ended counts as not killed by the kernel: %s", problem)
        return False


def _is_killed(actor_id: str) -> bool:
    node_id = node_of_actor(actor_id)
    noted = None if node_id is None else _internal_kv_get(_KEY + node_id)
    if not noted:
        return False
    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0)(read_kernel_kills).options(scheduling_strategy=on_node, max_retries=0)
    try:
        count = ray.get(task.remote(), timeout=_TIMEOUT_S)
    except RayError as problem:  # such as that of a node that is lost
        _logger.warning("whether the kernel killed a process for want of memory could not be told: %s", problem)
        return False
    return count is not None and count > int(noted)
