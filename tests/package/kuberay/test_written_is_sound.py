"""Tests that lint finds no errors or warnings in the files that this project writes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import cluster_plans, filled_in
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.writing import WriteOptions, write_cluster

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
def test_written_files_have_no_errors_or_warnings_even_with_all_optional_fields(plan, how, change):
    found = lint_text(change(write_cluster(plan, how)), "written.yaml")

    wrong = {each.rule for each in found if each.severity != "note" or each.rule == "no-cluster"}
    # Without an image, this warning is correct, and a comment in the file also recommends setting an image.
    assert wrong <= (set() if how.image else {"image-for-other-devices"})
