"""What a shell on the cluster reads of a file that is written: one function quotes it, and names hold nothing for it.

Quoting alone is not enough, as others put names into commands, too:

* KubeRay joins ``rayStartParams`` to a command for ``bash -c`` as they are, and puts the amounts of a group's
  ``resources`` between single quotes without a look at them (``convertParamMap``, ``updateRayStartParamsResources`` in
  https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/common/pod.go).
* Kubernetes replaces ``$(NAME)`` in that command by a variable, quoted or not.
* Ray's autoscaler drops the first and the last character of the parameter ``resources``, and each backslash in it.
* Ray's launcher passes amounts to ``docker exec`` in a variable without quotes, and an image to ``docker pull`` as it
  is.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Final

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

_RESOURCE_NAME: Final = re.compile(r"[\w.:/@+-]+")
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._:/@-]*", re.ASCII | re.IGNORECASE)


def quoted(text: str) -> str:
    """Return ``text`` as one word of a shell's command."""
    return shlex.quote(text)


def quoted_amounts(amounts: Mapping[str, int]) -> str:
    """Return amounts by Ray's names as ``ray start --resources`` takes them."""
    # Letters as they are: of "\u00e9" the autoscaler would read "u00e9".
    return quoted(json.dumps(amounts, ensure_ascii=False))


def is_resource_name(name: str) -> bool:
    """Return whether no shell on the way to Ray takes a part of a resource's name for something else."""
    return _RESOURCE_NAME.fullmatch(name) is not None


def check_resource_name(name: str) -> None:
    """Check that a resource's name can be written for a cluster.

    Raises:
        InvalidResourcesError: Some shell might take a part of it for something else.
    """
    if not is_resource_name(name):
        raise InvalidResourcesError(
            f"the resource name {shorten(name)} cannot be written for a cluster, as shells on the way to Ray would not "
            "take it as it is: use letters, digits, '_', '-', '.', ':', '/', '@' and '+'"
        )


def check_image(image: str) -> None:
    """Check that an image is named as registries do.

    Raises:
        InvalidResourcesError: It is not.
    """
    if not _IMAGE.fullmatch(image):
        raise InvalidResourcesError(
            f"image {shorten(image)} is no name of a container image: write one such as 'registry.example/me/ray:1'"
        )
