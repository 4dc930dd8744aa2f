"""Tests that lint finds nothing in the files that this project writes, except what their design warned of."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import cluster_plans, filled_in
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.writing import WriteOptions, about_unselected, write_cluster

options = st.builds(
    WriteOptions,
    ray_version=st.sampled_from(["2.50.0", "2.60.0"]),
    platform=st.sampled_from(["gke", "eks", "aks", "karpenter", "gpu-operator", None]),
    num_gpus=st.booleans(),
)
jobs = st.builds(
    WriteOptions,
    job=st.sampled_from(["python train.py", "ls # 'all'"]),
    image=st.just("me/tune:1"),
    namespace=st.just("ml"),
)


@given(cluster_plans(), options | jobs, st.sampled_from([str, filled_in]))
@settings(max_examples=60)
def test_written_files_have_only_the_warnings_that_the_design_gave(plan, how, change):
    found = lint_text(change(write_cluster(plan, how)), "written.yaml")

    expected = set()
    if how.image is None:
        # A comment in the file also recommends setting an image.
        expected.add("image-for-other-devices")
    if any(about_unselected(plan, how)):
        expected.add("node-selector-missing")
    assert {each.rule for each in found if each.severity != "note" or each.rule == "no-cluster"} <= expected
