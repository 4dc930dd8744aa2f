"""The options of a cluster file."""

import re
from itertools import chain
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from tune_policies.kuberay.design.device_plugins import Platform
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.ray_versions import NEWEST_TRIED, OLDEST_TRIED
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten

Format = Literal["kuberay", "cluster-yaml"]
"""A manifest for KubeRay, or a cluster YAML for Ray's cluster launcher."""

_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)\.[0-9]+((a|b|rc|\.post|\.dev)[0-9]+)*")
"""Matches a full version, because the tags of Ray's images have three numbers."""

# Contains no character that a shell interprets, because Ray's launcher passes the image unquoted to ``docker pull``.
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._:/@-]*", re.ASCII | re.IGNORECASE)

# A label as defined in RFC 1123: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/.
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)


class WriteOptions(Value):
    """The options of a cluster file.

    Attributes:
        format: The format of the file.
        ray_version: The Ray version of the cluster, 2.50.0 or newer. The default is the newest tested version. Programs
            that use the cluster require the same version.
        image: The container image of all pods. The default is Ray's image with Python 3.11, and with CUDA for NVIDIA
            GPUs. Ray's image contains neither tune-policies nor a framework.
        job: A command for the head's shell. If it is set, the file is a RayJob, whose cluster is deleted after the
            command. The image or ``runtime_env`` must contain the code and the packages of the command.
        runtime_env: Ray's runtime environment of the job, such as
            ``{"working_dir": "s3://bucket/code.zip", "pip": ["tune-policies"]}``.
        namespace: The namespace in Kubernetes; by default the namespace of the user who applies the manifest.
        platform: The platform whose labels select nodes by device type; ``None`` to use only the labels of the catalog.
        num_gpus: Whether to also write the GPUs of a node as ``num-gpus`` of ``ray start``, for clusters on which Ray
            or KubeRay miscounts them.
        provider: The field ``provider`` of the cluster YAML.

    Raises:
        InvalidResourcesError: An option is wrong, or the options are contradictory.
    """

    format: Format = "kuberay"
    ray_version: str = f"{NEWEST_TRIED[0]}.{NEWEST_TRIED[1]}.0"
    image: str | None = None
    job: str | None = Field(default=None, min_length=1)
    runtime_env: dict[str, Any] | None = None
    namespace: str | None = None
    platform: Platform | None = "gke"
    num_gpus: bool = False
    provider: dict[str, Any] = Field(default_factory=lambda: {"type": "aws", "region": "us-west-2"})

    @field_validator("ray_version")
    @classmethod
    def _must_be_a_version(cls, value: str) -> str:
        if not _VERSION.fullmatch(value):
            raise InvalidResourcesError(f"ray_version must be a full version such as 2.60.0, got {shorten(value)}")
        if _minor(value) < OLDEST_TRIED:
            oldest = f"{OLDEST_TRIED[0]}.{OLDEST_TRIED[1]}.0"
            raise InvalidResourcesError(f"ray_version must be {oldest} or newer, got {value}")
        return value

    @field_validator("image")
    @classmethod
    def _must_be_an_image(cls, value: str | None) -> str | None:
        if value is not None and not _IMAGE.fullmatch(value):
            raise InvalidResourcesError(
                f"image {shorten(value)} is not a container image: use a name such as 'registry.example/me/ray:1'"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _must_be_a_namespace(cls, value: str | None) -> str | None:
        if value is not None and not _NAMESPACE.fullmatch(value):
            raise InvalidResourcesError(
                f"namespace {shorten(value)} is not valid: use at most 63 lowercase letters, digits and '-'"
            )
        return value

    @field_validator("runtime_env")
    @classmethod
    def _must_reach_the_cluster(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        # KubeRay encloses the runtime environment in double quotes: BuildJobSubmitCommand in common/job.go.
        wrong = next((text for text in _texts(value) if "$" in text or "`" in text), None)
        if wrong:
            raise InvalidResourcesError(
                f"runtime_env contains {shorten(wrong)}, but KubeRay's shell interprets '$' and '`': remove these "
                "characters"
            )
        variables = value.get("env_vars")
        if isinstance(variables, dict):
            for name, setting in variables.items():
                if not isinstance(setting, str):
                    raise InvalidResourcesError(
                        f"the environment variable {name} in runtime_env is {shorten(setting)}, but Ray requires a "
                        "string: write its value in quotes"
                    )
        folders = [value.get("working_dir"), *(value.get("py_modules") or ())]
        for folder in filter(None, folders):
            if not _URI.fullmatch(str(folder)):
                raise InvalidResourcesError(
                    f"runtime_env contains the local path {shorten(str(folder))}, which the cluster cannot read: "
                    "upload it and use its URI, such as 's3://bucket/code.zip', or use an image that contains it"
                )
        return value

    @model_validator(mode="after")
    def _options_must_go_together(self) -> Self:
        for name in ("job", "namespace"):
            if getattr(self, name) is not None and self.format != "kuberay":
                raise InvalidResourcesError(f"{name} requires format 'kuberay', got {self.format!r}")
        if self.num_gpus and self.format == "cluster-yaml":
            raise InvalidResourcesError("num_gpus requires format 'kuberay': a cluster YAML always contains the GPUs")
        # Only a RayJob has a field for a runtime environment. A RayCluster has none, so programs pass their own to
        # ``ray.init``.
        if self.runtime_env is not None and self.job is None:
            raise InvalidResourcesError("runtime_env requires a job: set job to a command")
        if self.job is not None and self.image is None and self.runtime_env is None:
            raise InvalidResourcesError(
                f"the job {shorten(self.job)} would run in Ray's image, which contains neither its code nor its "
                "packages: set image, or runtime_env with working_dir and pip"
            )
        return self

    @property
    def ray_reads_group_fields(self) -> bool:
        """Whether Ray's autoscaler reads the fields ``resources`` and ``labels`` of a group.

        Ray 2.51 is the first version whose autoscaler reads them:
        https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html.
        """
        return _minor(self.ray_version) >= (2, 51)

    @property
    def ray_has_tokens(self) -> bool:
        """Whether KubeRay can turn on Ray's token authentication.

        KubeRay requires Ray 2.52: ``ValidateRayClusterSpec`` in ray-operator/controllers/ray/utils/validation.go.
        """
        return _minor(self.ray_version) >= (2, 52)


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _texts(part: object) -> list[str]:
    """Return all strings in plain data, including keys."""
    if isinstance(part, dict):
        return _texts([*chain.from_iterable(part.items())])
    if isinstance(part, list | tuple):
        return [text for item in part for text in _texts(item)]
    if isinstance(part, str):
        return [part]
    return []
