"""A written manifest is read as designed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.designed_clusters import cluster_plans
from tune_policies.files.yaml_documents import read_documents
from tune_policies.kuberay.reading.documents import clusters_in
from tune_policies.kuberay.reading.load_cluster import to_cluster_spec
from tune_policies.kuberay.writing import WriteOptions, write_cluster

kuberay = st.builds(
    WriteOptions,
    ray_version=st.sampled_from(["2.50.0", "2.60.0"]),
    job=st.none() | st.just("python train.py"),
    image=st.just("me/tune:1"),
    platform=st.sampled_from(["gke", "eks", "aks", "karpenter", "gpu-operator", None]),
    num_gpus=st.booleans(),
)


def groups_of(spec):
    """Return the groups by name, without the price, which no file contains, and the topology, which may be inferred."""
    return {
        group.name: group.model_dump(exclude={"price_per_hour", "topology", "is_type_counted"}) for group in spec.groups
    }


@given(cluster_plans(), kuberay)
@settings(max_examples=25)
def test_a_written_manifest_is_read_as_designed(plan, how):
    (document,) = read_documents(write_cluster(plan, how), "cluster.yaml")

    clusters, problems = clusters_in(document)

    (spec,) = map(to_cluster_spec, clusters)
    assert not problems
    assert groups_of(spec) == groups_of(plan.spec)
    assert (spec.name, spec.head, spec.idle_timeout_s) == (plan.name, plan.spec.head, plan.idle_timeout_s)
