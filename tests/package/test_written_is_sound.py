"""Written files have no findings other than notes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.designed_clusters import cluster_plans, filled_in
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
def test_written_files_also_with_all_optional_fields_have_no_findings(plan, how, change):
    found = lint_text(change(write_cluster(plan, how)), "written.yaml")

    wrong = {each.rule for each in found if each.severity != "note" or each.rule == "nothing-known"}
    # A comment in the file asks the user to set an image for these devices.
    assert wrong <= (set() if how.image else {"image-for-other-devices"})
