"""Manifests are checked against definitions as the API server does it."""

import gzip
import json

import pytest
import yaml

from tune_policies.kuberay.lint.crd import load_crds
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.values.errors import InvalidResourcesError

PROPERTIES = {
    "count": {"type": "integer", "format": "int32", "minimum": 0},
    "mode": {"type": "string", "enum": ["Default", "Aggressive"]},
    "amount": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
    "text": {"type": "string", "pattern": "^[a-z]+$"},
    "maybe": {"type": "string", "nullable": True},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "free": {"type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": True},
    "ports": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}},
            "required": ["port", "protocol"],
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["port", "protocol"],
    },
    "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
}


def definition(properties=PROPERTIES, required=()):
    spec = {"type": "object", "properties": properties, "required": list(required)}
    whole = {
        "type": "object",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
        | {"spec": spec},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {
            "group": "ray.io",
            "names": {"kind": "RayCluster"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": whole}}],
        },
    }


@pytest.fixture
def crds(tmp_path):
    path = tmp_path / "crd.yaml"
    path.write_text(yaml.safe_dump(definition()))
    return load_crds(path)


def manifest(**spec):
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "demo"}, "spec": spec}


PROBLEMS = {
    "an unknown field": ({"cuont": 1}, "cuont", "unknown field 'cuont'; did you mean 'count'?"),
    "a text for a number": ({"count": "1"}, "count", "count must be a whole number, got '1'"),
    "a truth value for a number": ({"count": True}, "count", "count must be a whole number, got True"),
    "a number below the least": ({"count": -1}, "count", "count must be at least 0, got -1"),
    "a number beyond 32 bits": ({"count": 2**31}, "count", "count must be at most 2147483647, got 2147483648"),
    "none of the choices": (
        {"mode": "agressive"},
        "mode",
        "mode must be one of Default, Aggressive, got 'agressive'; did you mean 'Aggressive'?",
    ),
    "a part as an amount": ({"amount": 0.5}, "amount", "amount must be a whole number or a text, got 0.5"),
    "a number as a label": ({"labels": {"a": 1}}, "labels.a", "a must be a text, got 1"),
    "another form": ({"text": "A1"}, "text", "text is not written as it must be, got 'A1'"),
    "the same port twice": (
        {"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]},
        "ports.1",
        "comes twice: port 1, protocol 'TCP'",
    ),
    "a port without a number": ({"ports": [{}]}, "ports.0", "ports[0] lacks the field 'port'"),
    "the same name twice": ({"names": ["a", "a"]}, "names", "names has an entry twice: ['a', 'a']"),
}


@pytest.mark.parametrize(("spec", "place", "message"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_the_api_server_refuses_or_drops_is_a_problem(crds, spec, place, message):
    found = [(".".join(map(str, path)), said) for path, said in crds.problems(manifest(**spec))]

    assert found == [(f"spec.{place}", message)]


SOUND = {
    "a whole amount": {"amount": 1},
    "an amount as a text": {"amount": "500m"},
    "nothing where nothing may be": {"maybe": None},
    "nothing elsewhere, which is dropped": {"count": None, "labels": {"a": None}},
    "what is not described": {"free": {"x": [1]}},
    "a port twice by two protocols": {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]},
}


@pytest.mark.parametrize("spec", SOUND.values(), ids=SOUND.keys())
def test_what_the_api_server_takes_is_none(crds, spec):
    assert crds.problems(manifest(**spec)) == []


@pytest.mark.parametrize("other", [None, [], {"kind": "ConfigMap"}, {"kind": ["RayCluster"]}])
def test_what_is_not_defined_has_no_problem(crds, other):
    assert crds.problems(other) == []


def test_another_version_of_the_api_is_a_problem(crds):
    found = crds.problems({**manifest(), "apiVersion": "ray.io/v2"})

    assert found == [(("apiVersion",), "apiVersion must be ray.io/v1, got 'ray.io/v2'")]


WAYS = {
    "plain": ("crd.yaml", lambda text: text.encode()),
    "gzipped": ("crd.yaml.gz", lambda text: gzip.compress(text.encode())),
    "of any name": ("crd", lambda text: text.encode()),
    "JSON": ("crd.json", lambda text: json.dumps(yaml.safe_load(text)).encode()),
    "what kubectl lists": (
        "crd.yaml",
        lambda text: yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(text)]}).encode(),
    ),
    "several documents": ("crd.yaml", lambda text: f"---\nkind: ConfigMap\n---\n{text}".encode()),
}


@pytest.mark.parametrize(("name", "written"), WAYS.values(), ids=WAYS.keys())
def test_definitions_are_read_however_they_are_kept(tmp_path, name, written):
    path = tmp_path / name
    path.write_bytes(written(yaml.safe_dump(definition())))

    assert set(load_crds(path).kinds) == {"RayCluster"}


def test_of_several_definitions_a_problem_tells_whose_it_is(tmp_path):
    for version, properties in (("v1", {"old": {"type": "string"}}), ("v2", {"new": {"type": "string"}})):
        folder = tmp_path / version
        folder.mkdir()
        (folder / "crd.yaml").write_text(yaml.safe_dump(definition(properties)))

    found = [said for _, said in load_crds(tmp_path).problems(manifest(new="x", none="x"))]

    assert found == [
        "unknown field 'new' (by v1)",
        "unknown field 'none'",
    ]


def test_a_template_of_the_chart_beside_them_is_passed_over(tmp_path):
    (tmp_path / "deployment.yaml").write_text("{{- if .Values.x }}\n")
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(definition()))

    assert set(load_crds(tmp_path).kinds) == {"RayCluster"}


@pytest.mark.parametrize(
    "content", [None, b"kind: ConfigMap\n", b"kind: CustomResourceDefinition\nspec: 1\n", b"\x1f\x8bno", b"\xff"]
)
def test_a_file_without_definitions_is_refused(tmp_path, content):
    path = tmp_path / "crd.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=r"crd\.yaml"):
        load_crds(path)


NO_DEFINITIONS = {
    "a list": "[CustomResourceDefinition]",
    "a kind that is a number": "kind: 3\nx: CustomResourceDefinition\n",
    "a list of numbers": "kind: List\nitems: [1]\nx: CustomResourceDefinition\n",
    "a list that is none": "kind: List\nitems: 5\nx: CustomResourceDefinition\n",
    "without end": "x: CustomResourceDefinition\ny: " + "[" * 10_000,
    "cut off": gzip.compress(b"kind: CustomResourceDefinition\n" * 99)[:-9],
}


@pytest.mark.parametrize("name", ["crd.yaml", "crd.json"])
@pytest.mark.parametrize("content", NO_DEFINITIONS.values(), ids=NO_DEFINITIONS.keys())
def test_whatever_is_given_for_definitions_there_is_no_other_error(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(InvalidResourcesError, match=name):
        load_crds(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 999 + "!"),
        ("^(a|aa)+$", "a" * 999 + "!"),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 999),
        ("^[a-z]+$", "a\n"),
    ],
)
def test_a_pattern_is_matched_in_linear_time_as_kubernetes_does(tmp_path, pattern, text):
    path = tmp_path / "crd.yaml"
    path.write_text(yaml.safe_dump(definition({"x": {"type": "string", "pattern": pattern}})))

    ((where, message),) = load_crds(path).problems(manifest(x=text))
    assert (where, message[:32]) == (("spec", "x"), "x is not written as it must be, ")


def test_a_text_that_is_too_long_for_a_pattern_is_refused_with_the_limit(crds):
    assert crds.problems(manifest(text="a" * 1001)) == [
        (("spec", "text"), "text has 1,001 characters; at most 1,000 can have a pattern")
    ]


@pytest.mark.timeout(60)
def test_a_list_without_repetition_may_have_thousands_of_mappings(tmp_path):
    path = tmp_path / "crd.yaml"
    items = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    entries = {"type": "array", "items": items, "x-kubernetes-list-type": "set"}
    path.write_text(yaml.safe_dump(definition({"x": entries})))

    assert load_crds(path).problems(manifest(x=[{"a": number} for number in range(20_000)])) == []


@pytest.mark.parametrize(
    "schema", [{"type": "strin"}, {"pattern": "("}, {"pattern": "(a{999}){999}"}, {"minimum": "1"}], ids=str
)
def test_a_schema_that_is_none_is_told_with_its_file(tmp_path, schema):
    path = tmp_path / "crd.yaml"
    path.write_text(yaml.safe_dump(definition({"x": schema, "y": schema})))
    crds = load_crds(path)

    with pytest.raises(InvalidResourcesError, match=r"crd\.yaml: the definition of RayCluster is not a valid schema"):
        crds.problems(manifest(x="text", y=1))


def test_a_problem_is_a_finding_with_its_line(crds):
    text = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: demo}\nspec:\n  count: 1\n  cuont: 1\n"

    found = [(each.rule, each.line) for each in lint_text(text, "demo.yaml", crds) if each.rule == "against-definition"]

    assert found == [("against-definition", 6)]
