"""Loads the nodes to plan for from a file in any supported format.

A file contains a catalog (``NodeCatalog``), the output of ``probe --json`` (``ClusterCapacity``), a KubeRay
manifest or a cluster YAML (``ClusterSpec``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.cluster.ray_totals import accelerator_type_of, to_resources
from tune_policies.files.plain_data import (
    MAX_PARTS,
    MAX_RECORD_PARTS,
    NODE_LIST,
    SAVED_CLUSTER,
    format_of,
    parse_data,
    parse_json,
)
from tune_policies.files.reading import read_value, wrong_file
from tune_policies.files.yaml_documents import Document, read_documents
from tune_policies.kuberay.design.catalog_file import NodeCatalog
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, Nodes, WorkerGroup, capacity_of
from tune_policies.kuberay.reading.cluster_yaml import (
    ClusterYaml,
    InstanceTypes,
    YamlNodeType,
    assumptions,
    is_cluster_yaml,
    provider_of,
    read_cluster_yaml,
)
from tune_policies.kuberay.reading.documents import check_name, clusters_in, manifests_in, name_of, read_text
from tune_policies.kuberay.reading.in_place_resize import Resize, resizes_of
from tune_policies.kuberay.reading.kuberay_models import (
    HEAD_GROUP,
    ClusterInFile,
    FieldProblem,
    HeadGroup,
    Metadata,
    PodTemplate,
    WorkerGroupSpec,
)
from tune_policies.kuberay.reading.ray_counts import device_type, ray_counts, slice_shape, started_counts, states_cpus
from tune_policies.kuberay.reading.shared_gpu_memory import devices_of_pod, gpus_given, has_misplaced_kai_part
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line
from tune_policies.values.wording import kind_of, shorten

HEAD_UNKNOWN: Final = "the head counts as a node without CPUs because its resources are unknown"

RESIZED: Final = (
    "nodes of groups in the annotation ray.io/ippr count with max-cpu and max-memory, because the autoscaler enlarges "
    "their pods to these amounts if trials need them and the machine has room"
)

_FIRST_WITH_GROUP_RESOURCES: Final = (2, 51)
"""The first Ray version whose autoscaler reads the field ``resources`` of a group."""


def to_cluster_spec(cluster: ClusterInFile) -> ClusterSpec:
    """Return a KubeRay cluster with the resources that Ray counts.

    With an autoscaler, these are the amounts that it reads from the manifest. Without an autoscaler, these are the
    amounts that Ray counts when a node starts.

    Raises:
        InvalidResourcesError: Ray cannot count a node's resources, or a group's numbers of nodes are contradictory.
    """
    spec = cluster.spec
    is_autoscaling = spec.enableInTreeAutoscaling is True
    # If the version is unknown, assume that Ray reads all fields.
    version = cluster.ray_version
    reads_resources = version is None or version >= _FIRST_WITH_GROUP_RESOURCES

    # Only the autoscaler resizes pods.
    resizes = resizes_of(cluster) if is_autoscaling else {}

    def counts(group: HeadGroup) -> dict[str, int]:
        if not is_autoscaling:
            return started_counts(group)
        # An older autoscaler ignores the field, although the nodes get its amounts when they start.
        if not reads_resources:
            group = group.model_copy(update={"resources": {}})
        return ray_counts(group)

    # Without an autoscaler, a head that states no CPUs counts those of its machine, which the file does not contain.
    # With an autoscaler, missing CPUs are an error, which ``ray_counts`` raises.
    is_head_known = is_autoscaling or states_cpus(spec.headGroupSpec)
    with _prefix_errors("the head"):
        amounts = counts(spec.headGroupSpec) if is_head_known else {}
        amounts = _resized(amounts, resizes.get(HEAD_GROUP))
        fields = _node_fields(amounts, spec.headGroupSpec.labels, spec.headGroupSpec.template)
        head = NodeCapacity(node_id="head", is_head=True, **fields)
    groups = tuple(_group(group, counts, resizes.get(group.groupName)) for group in spec.workerGroupSpecs)
    # A hint about these groups must not recommend a field that their autoscaler ignores.
    if not reads_resources:
        groups = tuple(group.model_copy(update={"needs_start_params": True}) for group in groups)
    groups = tuple(map(partial(_without_misplaced_part, cluster.metadata), groups, spec.workerGroupSpecs))
    assumptions = list(_missing_gpus(groups, spec.workerGroupSpecs))
    if resizes:
        assumptions.insert(0, RESIZED)
    if not is_head_known:
        assumptions.insert(0, HEAD_UNKNOWN)
    return ClusterSpec(
        name=cluster.metadata.name or "cluster",
        head=head,
        groups=groups,
        is_autoscaling=is_autoscaling,
        autoscaler_version=cluster.autoscaler_version,
        idle_timeout_s=spec.autoscalerOptions.idleTimeoutSeconds,
        assumptions=tuple(assumptions),
    )


def _without_misplaced_part(cluster: Metadata, group: WorkerGroup, spec: WorkerGroupSpec) -> WorkerGroup:
    """Return the group with unknown GPU memory if the annotation for its part of a GPU is where KAI ignores it."""
    is_misplaced = has_misplaced_kai_part(spec.template, cluster) and gpus_given(spec.template) == 0
    if is_misplaced and group.resources.gpus:
        # An empty tuple means that the node has GPUs whose memory is unknown. ``None`` would mean whole GPUs of the
        # type.
        return group.model_copy(update={"devices": ()})
    return group


def _missing_gpus(groups: Iterable[WorkerGroup], specs: Iterable[WorkerGroupSpec]) -> Iterator[str]:
    """Yield a sentence for each group for whose pods Ray counts more GPUs than Kubernetes gives them."""
    for group, spec in zip(groups, specs, strict=True):
        stated, given = int(group.resources.gpus), gpus_given(spec.template)
        if given is not None and 0 < given < stated:
            yield (
                f"Ray counts {stated} GPUs on a node of group {group.name!r}, but its pods have only {given}. Their "
                f"memory counts once. Set the number of GPUs that the group passes to Ray to {given}"
            )


def _resized(amounts: dict[str, int], resize: Resize | None) -> dict[str, int]:
    """Return the amounts that a node has after Ray has enlarged its pod."""
    # The amounts are empty if those of the head are unknown.
    if resize is None or not amounts:
        return amounts
    # The annotation never makes a pod smaller, so amounts below the pod's own have no effect.
    resized = {**amounts, "CPU": max(amounts.get("CPU", 0), resize.max_cpus)}
    if "memory" in amounts:
        resized["memory"] = max(amounts["memory"], resize.max_memory_bytes)
    return resized


def _group(group: WorkerGroupSpec, counts: Callable[[HeadGroup], dict[str, int]], resize: Resize | None) -> WorkerGroup:
    with _prefix_errors(f"the group {group.groupName!r}"):
        amounts = _resized(counts(group), resize)
        shape = slice_shape(group) if "TPU" in amounts else None
        topology = None
        if shape is not None:
            topology = shape.topology
            # The autoscaler counts this resource on every host, but only one host of a running slice has it.
            amounts.pop(shape.head_resource, None)
        # With contradictory limits, ``WorkerGroup`` below raises the error.
        most = max(group.minReplicas, group.maxReplicas)
        # KubeRay limits replicas to the range from minReplicas to maxReplicas.
        start = min(most, max(group.minReplicas, group.replicas))
        if group.suspend:
            start = 0
        return WorkerGroup(
            name=group.groupName,
            min_nodes=group.minReplicas * group.numOfHosts,
            max_nodes=group.maxReplicas * group.numOfHosts,
            start_nodes=start * group.numOfHosts,
            num_hosts=group.numOfHosts,
            topology=topology,
            idle_timeout_s=group.idleTimeoutSeconds,
            needs_start_params=group.has_start_amounts,
            **_worker_fields(amounts, group.labels, group.template),
        )


def _node_fields(amounts: Mapping[str, int], labels: dict[str, str], pod: PodTemplate | None = None) -> dict[str, Any]:
    """Return the fields that ``NodeCapacity`` and ``WorkerGroup`` have in common."""
    selector = {} if pod is None else pod.spec.nodeSelector
    accelerator_type = device_type(amounts, labels, selector) if amounts else None
    gpus = amounts.get("GPU", 0)
    devices = None
    if pod and gpus:
        devices = devices_of_pod(pod, gpus, accelerator_type)
    return {
        "resources": to_resources(amounts),
        "accelerator_type": accelerator_type,
        "labels": labels,
        "devices": devices,
    }


def _worker_fields(
    amounts: Mapping[str, int], labels: dict[str, str], pod: PodTemplate | None = None
) -> dict[str, Any]:
    fields = _node_fields(amounts, labels, pod)
    is_type_counted = fields["accelerator_type"] is None or accelerator_type_of(amounts) is not None
    return {**fields, "is_type_counted": is_type_counted}


def yaml_to_cluster_spec(
    cluster: ClusterYaml, catalog: NodeCatalog | None = None, assumptions: Sequence[str] = ()
) -> ClusterSpec:
    """Return the cluster that a cluster YAML describes, with the resources that Ray's autoscaler counts.

    Args:
        cluster: The content of the file, with Ray's defaults.
        catalog: The resources of instance types, which Ray itself looks up in the cloud.
        assumptions: Sentences about defaults that replace missing fields.

    Raises:
        InvalidResourcesError: The resources of a node type are unknown, or its numbers of nodes are contradictory.
    """
    types = cluster.available_node_types
    head = cluster.head_node_type
    if head not in types:
        raise InvalidResourcesError(f"head_node_type must be one of {', '.join(types)}, got {head!r}")
    if cluster.max_workers is None:
        raise InvalidResourcesError(
            "max_workers is missing: set the maximum number of worker nodes (Ray has no default for this provider)"
        )
    most = cluster.max_workers
    instance_types = InstanceTypes(provider_of(cluster.model_dump()), catalog)
    # Ray starts workers of the head's type only if its ``max_workers`` is set, because the default is 0 for this type
    # (``fill_node_type_min_max_workers`` in ``ray.autoscaler._private.util``).
    workers = {name: node_type for name, node_type in types.items() if name != head or node_type.max_workers}
    head_unknown = instance_types.why_unknown(head, types[head])
    reasons = [instance_types.why_unknown(name, node_type) for name, node_type in workers.items()]
    unknown = [why for why in reasons if why is not None]
    # A head with unknown resources is no problem if there are workers that can run the trials.
    if head_unknown is not None and not (most and workers):
        unknown.append(head_unknown)
    if unknown:
        raise InvalidResourcesError("\n".join(unknown))
    with _prefix_errors(f"the node type {head!r}"):
        amounts = {} if head_unknown else instance_types.amounts(types[head], is_head=True)
        of_head = NodeCapacity(node_id="head", is_head=True, **_node_fields(amounts, types[head].labels))
    groups = [
        _node_type(name, node_type, instance_types.amounts(node_type), most) for name, node_type in workers.items()
    ]
    all_assumptions = [*assumptions, *instance_types.assumptions(workers)]
    if head_unknown:
        all_assumptions.append(HEAD_UNKNOWN)
    idle_timeout_s = None
    if cluster.idle_timeout_minutes is not None:
        # Rounded, because a number of minutes may not be exact in binary: 8.2 minutes would be 491.99999999999994 s.
        idle_timeout_s = round(cluster.idle_timeout_minutes * 60, 3)
    return ClusterSpec(
        name=cluster.cluster_name or "cluster",
        head=of_head,
        groups=tuple(groups),
        max_nodes=most,
        idle_timeout_s=idle_timeout_s,
        assumptions=tuple(all_assumptions),
    )


def _node_type(name: str, node_type: YamlNodeType, amounts: Mapping[str, int], most: int) -> WorkerGroup:
    max_nodes = most
    if node_type.max_workers is not None:
        max_nodes = min(most, node_type.max_workers)
    with _prefix_errors(f"the node type {name!r}"):
        return WorkerGroup(
            name=name,
            min_nodes=node_type.min_workers,
            max_nodes=max_nodes,
            start_nodes=node_type.min_workers,
            idle_timeout_s=node_type.idle_timeout_s,
            **_worker_fields(amounts, node_type.labels),
        )


@contextmanager
def _prefix_errors(part: str) -> Iterator[None]:
    try:
        yield
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{part}: {error}") from error


def load_cluster(path: str | FilePath, *, name: str | None = None, catalog: NodeCatalog | None = None) -> ClusterSpec:
    """Return the cluster that a manifest or a cluster YAML describes, with the resources that Ray counts.

    Args:
        path: The file, plain or gzipped; ``-`` is stdin.
        name: The name of the cluster, job or service, if the file has several.
        catalog: The resources of instance types, for a cluster YAML.

    Raises:
        InvalidResourcesError: The file cannot be read, contains no cluster or several clusters, or a field is wrong.
    """
    return _to_spec(_find_in(read_documents(read_text(path), str(path)), str(path), name), str(path), catalog)


def _to_spec(found: ClusterInFile | Document, path: str, catalog: NodeCatalog | None) -> ClusterSpec:
    try:
        if isinstance(found, ClusterInFile):
            return to_cluster_spec(found)
        cluster, problems = read_cluster_yaml(found.data)
        if cluster is None or problems:
            raise _wrong([(found, problem) for problem in problems])
        return yaml_to_cluster_spec(cluster, catalog, assumptions(found.data))
    except InvalidResourcesError as error:
        message = str(error)
        if not message.startswith(path):  # errors in a document already start with its file and line
            message = f"{path}: {message}"
        raise InvalidResourcesError(message) from error


_SAVED_CLUSTER_TIMES: Final = 7
"""The maximum size of a saved cluster, as a multiple of the maximum size of a manifest.

A saved cluster of 10,000 nodes with 8 GPUs each takes 32 MiB.
"""


def read_nodes(path: str | FilePath, *, name: str | None = None, catalog: NodeCatalog | None = None) -> Nodes:
    """Return the nodes of a file in any format that ``--cluster`` accepts.

    The arguments and errors are the same as for :func:`load_cluster`. For a catalog or a saved cluster, ``name``
    must be ``None``.
    """
    source, text = str(path), read_text(path, times=_SAVED_CLUSTER_TIMES)
    documents: tuple[Document, ...] = ()
    try:
        data: object = parse_json(text)  # a saved cluster may exceed the size limit of YAML
    except ValueError:
        # This is YAML, or JSON with a mistake, whose line the reader of YAML reports.
        documents = read_documents(text, source)
        data = None
        if len(documents) == 1:
            data = documents[0].data
    found = format_of(data)
    # Everything else is read as a cluster's file, whose reader explains what a file lacks.
    if found not in (NODE_LIST, SAVED_CLUSTER):
        return _to_spec(_find_in(documents or read_documents(text, source), source, name), source, catalog)
    if name is not None:
        raise InvalidResourcesError(
            f"--name selects one of several clusters, but {source} is a {found.name}. Omit --name"
        )
    max_parts = MAX_PARTS if found is NODE_LIST else MAX_RECORD_PARTS
    data = parse_data(text, source, max_parts=max_parts)
    try:
        if found is NODE_LIST:
            return NodeCatalog.from_dict(data)
        return ClusterCapacity.from_dict(data)
    except InvalidResourcesError as error:
        raise wrong_file(source, found.name, data, error) from error


def load_capacity(path: str | FilePath, *, name: str | None = None) -> ClusterCapacity:
    """Return the capacity in a file: a catalog, the output of ``probe --json``, or a cluster's file.

    If the cluster has an autoscaler, the capacity contains the nodes that always exist and the nodes that it can add.

    Args:
        path: The file, plain or gzipped; ``-`` is stdin.
        name: The name of the cluster, job or service, if the file contains several.

    Raises:
        InvalidResourcesError: The file cannot be read, has another format, or a field is wrong.
    """
    return capacity_of(read_nodes(path, name=name))


def find_cluster(path: str | FilePath) -> ClusterInFile | Document:
    """Return the only cluster of a file: the parsed KubeRay cluster, or the document of a cluster YAML.

    Raises:
        InvalidResourcesError: The file cannot be read, contains no cluster or several clusters, or a field is wrong.
    """
    return _find_in(read_documents(read_text(path), str(path)), str(path), None)


def _find_in(documents: Sequence[Document], path: str, name: str | None) -> ClusterInFile | Document:
    manifests: list[Document] = []
    for document in documents:
        manifests += [manifest for _, manifest in manifests_in(document)]
    if name is not None:
        check_name(name, manifests, path)
        manifests = [manifest for manifest in manifests if name_of(manifest) == name]
    found: list[ClusterInFile | Document] = []
    problems = []
    for manifest in manifests:
        if is_cluster_yaml(manifest.data):
            found.append(manifest)
        elif isinstance(manifest.data, dict):
            clusters, wrong = clusters_in(manifest)
            found += clusters
            problems += [(manifest, problem) for problem in wrong]
    # Which cluster is meant comes before the problems, because they may be those of another cluster.
    if len(found) > 1:
        raise InvalidResourcesError(
            f"{path} contains {len(found)} clusters ({_listed(manifests)}): select one by name (plan --name), or write "
            "each cluster to its own file"
        )
    if problems:
        raise _wrong(problems)
    if not found:
        data = documents[0].data if documents else None
        raise wrong_file(
            path,
            "cluster's file",
            data,
            "it must define a cluster in a KubeRay RayCluster, RayJob, RayCronJob or RayService, or in a cluster YAML "
            f"(available_node_types), but defines none (found: {_listed(manifests) or 'nothing'})",
        )
    return found[0]


_MAX_PROBLEMS: Final = 10


def _listed(manifests: list[Document]) -> str:
    return ", ".join(dict.fromkeys(map(_described, manifests)))


def _described(manifest: Document) -> str:
    if not isinstance(manifest.data, dict):
        return kind_of(manifest.data)
    kind = str(manifest.data.get("kind", "no kind"))
    found = name_of(manifest)
    if found:
        return f"{kind} {shorten(found)}"
    return kind


def _wrong(problems: list[tuple[Document, FieldProblem]]) -> InvalidResourcesError:
    lines = []
    for document, problem in problems[:_MAX_PROBLEMS]:
        lines.append(one_line(f"{document.source}, line {document.line(problem.path)}: {problem.message}"))
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return InvalidResourcesError("\n".join(lines))


def load_catalog(path: str | FilePath) -> NodeCatalog:
    """Read a catalog, as YAML or JSON. Prices may be missing.

    Raises:
        InvalidResourcesError: The file cannot be read, or is not a catalog.
    """
    return read_value(path, NodeCatalog, NODE_LIST.name)
