"""Damaged files are read, or rejected with a message and without a traceback."""

import copy

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.reading.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.kuberay.reading.documents import clusters_in
from tune_policies.kuberay.reading.load_cluster import to_cluster_spec, yaml_to_cluster_spec
from tune_policies.values.errors import InvalidResourcesError

MANIFEST = yaml.safe_load("""
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: mine, labels: {a: b}}
spec:
  enableInTreeAutoscaling: true
  autoscalerOptions: {idleTimeoutSeconds: 60}
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: head, resources: {limits: {cpu: 2, memory: 8Gi}}}]}}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 1
    minReplicas: 0
    maxReplicas: 4
    numOfHosts: 2
    resources: {CPU: "8", TPU: "4"}
    labels: {ray.io/accelerator-type: L4}
    rayStartParams: {num-gpus: "1", resources: "'{}'"}
    template:
      metadata: {labels: {a: b}}
      spec:
        nodeSelector: {cloud.google.com/gke-tpu-topology: 2x2, cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice}
        containers: [{name: ray, image: a, env: [{name: A, value: b}], resources: {limits: {cpu: 2}}}]
""")
JOB = {**MANIFEST, "kind": "RayJob", "spec": {"rayClusterSpec": MANIFEST["spec"]}}
CLUSTER_YAML = yaml.safe_load("""
cluster_name: mine
max_workers: 6
idle_timeout_minutes: 2
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, node_config: {}}
  gpu: {resources: {CPU: 8, GPU: 1}, labels: {a: b}, min_workers: 1, max_workers: 9, idle_timeout_s: 3, node_config: {}}
""")


def paths(data, path=()):
    yield path
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in parts:
        yield from paths(part, (*path, key))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "-1", "500m", "1e99", "2x", "{}", "'[]'", "Ray" * 50, "\x00", 10**30]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "cpu", "name"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def damaged(draw):
    """Draw a valid file in which some parts are replaced or removed."""
    data = copy.deepcopy(draw(st.sampled_from([MANIFEST, JOB, CLUSTER_YAML])))
    for _ in range(draw(st.integers(1, 3))):
        places = list(paths(data))[1:]
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        inside = data
        for key in way:
            inside = inside[key]
        if draw(st.booleans()):
            inside[last] = draw(anything)
        else:
            del inside[last]
    return data


@given(damaged() | anything)
def test_a_damaged_file_is_read_or_rejected_with_a_message(data):
    clusters, problems = clusters_in(Document(data, {(): 1}, "cluster.yaml"))
    if is_cluster_yaml(data):
        cluster, problems = read_cluster_yaml(data)
        makes = [lambda: yaml_to_cluster_spec(cluster)] if cluster else []
    else:
        makes = [lambda: to_cluster_spec(clusters[0])] if clusters else []

    assert all(problem.message for problem in problems)
    for make in makes:
        try:
            assert make().name
        except InvalidResourcesError as error:
            assert str(error)  # noqa: PT017 - either is right
