"""How a cluster is to be written."""

import re
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from tune_policies.kuberay.design.device_plugins import Platform
from tune_policies.kuberay.reading.ray_counts import check_image
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value, shorten

Format = Literal["kuberay", "kuberay-helm", "cluster-yaml"]
"""A manifest for KubeRay, values for its chart ``ray-cluster``, or a cluster YAML for Ray's own launcher."""

_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)\.[0-9]+((a|b|rc|\.post|\.dev)[0-9]+)*")
"""In full: Ray's images have tags of three numbers, and the chart would make a number of ``2.60``."""

_OLDEST: Final = (2, 50)

_PYTHON: Final = "py311"
"""An image of Ray's has this project's oldest Python only if its tag says so: else it has 3.10, or an older one."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)


class WriteOptions(Value):
    """How a cluster is to be written.

    Attributes:
        format: As what.
        ray_version: Which Ray runs on it: that of the program that uses it, 2.50.0 or newer.
        image: The container image of all pods; ``None``: Ray's own with Python 3.11, and with CUDA where there are
            NVIDIA's GPUs. It has neither this project nor a framework.
        job: A command that is to run on the cluster, which then goes: a RayJob is written; ``None``: a RayCluster.
            The head's shell reads it. Its code and packages are in the image, or come by ``runtime_env``.
        runtime_env: Of the job, as Ray has it: ``{"working_dir": "s3://bucket/code.zip", "pip": ["tune-policies"]}``.
        namespace: In which Kubernetes makes it; ``None``: in that of who applies the manifest.
        platform: By whose labels Kubernetes finds nodes with a device type; ``None``: by those of the catalogue alone.
        provider: Where Ray's launcher starts nodes, as in its cluster YAML.

    Raises:
        InvalidResourcesError: An option is wrong, or the options do not go together.
    """

    format: Format = "kuberay"
    ray_version: str = "2.60.0"
    image: str | None = None
    job: str | None = Field(default=None, min_length=1)
    runtime_env: dict[str, Any] | None = None
    namespace: str | None = None
    platform: Platform | None = "gke"
    provider: dict[str, Any] = Field(default_factory=lambda: {"type": "aws", "region": "us-west-2"})

    @field_validator("ray_version")
    @classmethod
    def _must_be_a_version(cls, value: str) -> str:
        if not _VERSION.fullmatch(value):
            raise InvalidResourcesError(f"ray_version must be a version in full, such as 2.60.0, got {shorten(value)}")
        if _minor(value) < _OLDEST:
            raise InvalidResourcesError(f"ray_version must be 2.50.0 or newer, as plans need it, got {value}")
        return value

    @field_validator("image")
    @classmethod
    def _must_be_an_image(cls, value: str | None) -> str | None:
        if value is not None:
            check_image(value)
        return value

    @field_validator("namespace")
    @classmethod
    def _must_be_a_namespace(cls, value: str | None) -> str | None:
        if value is not None and not _NAMESPACE.fullmatch(value):
            raise InvalidResourcesError(
                f"namespace {shorten(value)} must have small letters, digits and '-', and at most 63 of them"
            )
        return value

    @field_validator("runtime_env")
    @classmethod
    def _must_reach_the_cluster(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        # It quotes the whole as Go does, with double quotes: BuildJobSubmitCommand in KubeRay's common/job.go.
        if wrong := next((text for text in _texts(value) if "$" in text or "`" in text), None):
            raise InvalidResourcesError(
                f"the runtime environment has {shorten(wrong)}, of which KubeRay's shell would run or replace a part: "
                "leave '$' and '`' out"
            )
        folders = [value.get("working_dir"), *(value.get("py_modules") or ())]
        if here := next((each for each in folders if each is not None and not _URI.fullmatch(str(each))), None):
            raise InvalidResourcesError(
                f"the runtime environment has {shorten(str(here))}, which is not on the cluster: pack it, and name its "
                "URI, such as 's3://bucket/code.zip', or use an image that has it"
            )
        return value

    @model_validator(mode="after")
    def _options_must_go_together(self) -> Self:
        for name in ("job", "namespace"):
            if getattr(self, name) is not None and self.format != "kuberay":
                hint = " (helm install --namespace)" if (name, self.format) == ("namespace", "kuberay-helm") else ""
                raise InvalidResourcesError(f"a {name} is written as format 'kuberay' only, got {self.format!r}{hint}")
        if self.runtime_env is not None and self.job is None:
            raise InvalidResourcesError("a runtime environment is a job's: name the job's command")
        if self.job is not None and self.image is None and self.runtime_env is None:
            raise InvalidResourcesError(
                f"the job {shorten(self.job)} would run in Ray's own image, which has neither its code nor its "
                "packages: name an image that has both, or a runtime environment with working_dir and pip"
            )
        return self

    @property
    def ray_reads_group_fields(self) -> bool:
        """Whether Ray's autoscaler reads the fields ``resources`` and ``labels`` of a group.

        From Ray 2.51 on: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html.
        """
        return _minor(self.ray_version) >= (2, 51)

    def image_of(self, *, has_cuda: bool) -> str:
        """Return the image of a pod."""
        return self.image or f"rayproject/ray:{self.ray_version}-{_PYTHON}{'-gpu' if has_cuda else ''}"


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _texts(part: object) -> list[str]:
    """Return all texts in plain data, keys as well."""
    if isinstance(part, dict):
        return [text for pair in part.items() for each in pair for text in _texts(each)]
    if isinstance(part, list | tuple):
        return [text for each in part for text in _texts(each)]
    return [part] if isinstance(part, str) else []
