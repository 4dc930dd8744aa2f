"""How a cluster is to be written."""

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tune_policies.clusters.device_plugins import Platform
from tune_policies.errors import InvalidResourcesError
from tune_policies.values import Value

Format = Literal["kuberay", "kuberay-helm", "cluster-yaml"]
"""A manifest for KubeRay, values for its chart ``ray-cluster``, or a cluster YAML for Ray's own launcher."""


class WriteOptions(Value):
    """How a cluster is to be written.

    Attributes:
        format: As what.
        ray_version: Which Ray runs on it: that of the program that uses it.
        image: The container image of all pods; ``None``: Ray's own, with CUDA where there are NVIDIA's GPUs.
        job: A command that is to run on the cluster, which then goes: a RayJob is written; ``None``: a RayCluster.
        platform: By whose labels Kubernetes finds nodes with a device type; ``None``: by those of the catalogue alone.
        provider: Where Ray's launcher starts nodes, as in its cluster YAML.
    """

    format: Format = "kuberay"
    ray_version: str = "2.60.0"
    image: str | None = Field(default=None, min_length=1)
    job: str | None = Field(default=None, min_length=1)
    platform: Platform | None = "gke"
    provider: dict[str, Any] = Field(default_factory=lambda: {"type": "aws", "region": "us-west-2"})

    @field_validator("ray_version")
    @classmethod
    def _must_be_a_version(cls, value: str) -> str:
        if not re.match(r"\d+\.\d+(\.|$)", value):
            raise InvalidResourcesError(f"ray_version must be a version such as 2.60.0, got {value!r}")
        return value

    @model_validator(mode="after")
    def _only_kuberay_has_jobs(self) -> Self:
        if self.job is not None and self.format != "kuberay":
            raise InvalidResourcesError(f"a job is written as format 'kuberay' only, got {self.format!r}")
        return self

    @property
    def ray_reads_group_fields(self) -> bool:
        """Whether Ray's autoscaler reads the fields ``resources`` and ``labels`` of a group.

        From Ray 2.51 on: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html.
        """
        major, minor = self.ray_version.split(".")[:2]
        return (int(major), int(minor)) >= (2, 51)

    def image_of(self, *, has_cuda: bool) -> str:
        """Return the image of a pod."""
        return self.image or f"rayproject/ray:{self.ray_version}{'-gpu' if has_cuda else ''}"
