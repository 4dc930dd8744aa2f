"""Keeps an actor of Ray Train's away from nodes that are to go.

A Train run starts Ray's ``AutoscalingCoordinator`` on the node of its driver, and leaves it there for runs that come
after. Where the driver is a trial on a worker node, that node is never idle again, and never goes. There is one such
actor in a cluster, so it stays where it is started first. Ray has no public way to say where.
"""


def start_coordinator_here() -> None:
    """Start the actor on this program's node, if this Ray has one and it does not run yet."""
    try:
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )
    except ImportError:  # an older Ray, whose Train asks the autoscaler for nothing
        return
    get_or_create_autoscaling_coordinator()
