"""Tests that all public signatures have types, and that all returned types can be imported."""

import ast
import functools
import inspect
import re
import typing
from enum import Enum
from functools import cached_property
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

import tune_policies
from tune_policies import (
    AutoscalingPolicy,
    BenchmarkedPolicy,
    ByConfigPolicy,
    CappedPolicy,
    CpuPolicy,
    FirstFeasiblePolicy,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    ResourcePolicy,
    Resources,
    SelectingPolicy,
    kuberay,
    testing,
    trainers,
)
from tune_policies.renamed_names import RENAMED

ROOT = Path(__file__).parents[2]
PUBLIC = {
    name: getattr(package, name) for package in (kuberay, testing, trainers, tune_policies) for name in package.__all__
}
REFERENCE = (ROOT / "docs" / "reference" / "api.md").read_text()
ONLY_RETURNED = dict(map(reversed, re.findall(r"^   ([a-z_.]+)\.(\w+)$", REFERENCE, re.MULTILINE)))
"""The module of each type and function that the reference lists as ``module.name``, keyed by name."""


def functions(owner):
    """Yield the name and function of ``owner``, or of its public methods and properties that Ray does not define."""
    if inspect.isfunction(owner):
        yield owner.__name__, owner
    elif inspect.isclass(owner):
        of_ray = [base for base in owner.__mro__ if base.__module__.startswith("ray.")]
        for name, member in inspect.getmembers_static(owner):
            accessors = {property: "fget", functools.cached_property: "func", classmethod: "__func__"}
            function = getattr(member, accessors.get(type(member), ""), member)
            is_own = inspect.isfunction(function) and function.__module__.startswith("tune_policies")
            if is_own and not name.startswith("_") and not any(hasattr(base, name) for base in of_ray):
                yield f"{owner.__name__}.{name}", function


FUNCTIONS = {name: function for owner in PUBLIC.values() for name, function in functions(owner)}
CLASSES = {
    name: owner
    for name, owner in PUBLIC.items()
    if inspect.isclass(owner) and not issubclass(owner, Exception | Warning | Enum)
}


def parameters_of(public):
    return [each for each in inspect.signature(public).parameters.values() if each.name not in ("self", "cls")]


def test_no_property_is_documented_with_a_colon_in_its_first_line():
    """The reference shows the part before the colon as the type of the property."""
    properties = {
        f"{name}.{attribute}": inspect.getdoc(member) or ""
        for name, owner in CLASSES.items()
        for attribute, member in inspect.getmembers_static(owner)
        if isinstance(member, property | cached_property) and not attribute.startswith("_")
    }

    assert [name for name, text in properties.items() if ": " in text.partition("\n")[0]] == []


def test_each_parameter_has_a_type():
    assert [
        (name, each.name)
        for name, public in {**FUNCTIONS, **CLASSES}.items()
        for each in parameters_of(public)
        if each.annotation is each.empty
    ] == []


def unnamed(public):
    """Return the variadic parameters of type ``Any``, and those documented as arguments or fields of another object."""
    variadic = [each for each in parameters_of(public) if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    documented = r"^ *(?:``)?\*\*(\w+)(?:``)?: (?:Other arguments of|Further fields of|Options of) ``"
    taken = [each.name for each in variadic if each.annotation in (typing.Any, "Any")]
    return taken, re.findall(documented, public.__doc__ or "", re.M)


def test_only_arguments_for_ray_are_untyped_and_their_docstring_names_the_receiver():
    found = {name: unnamed(public) for name, public in {**FUNCTIONS, **CLASSES}.items()}

    assert {name: each for name, each in found.items() if each[0] != each[1]} == {}


def test_return_types_can_be_imported_from_the_package():
    returned = {name: inspect.signature(function).return_annotation for name, function in FUNCTIONS.items()}
    ours = {
        (name, each.__name__)
        for name, function in FUNCTIONS.items()
        for each in parts(hint_of(function))
        if each.__module__.startswith("tune_policies")
    }

    assert [name for name, hint in returned.items() if hint in (inspect.Signature.empty, typing.Any, "Any")] == []
    assert {each for each in ours if each[1] not in PUBLIC.keys() | ONLY_RETURNED.keys()} == set()


def hint_of(function):
    """Return the return type of a function, or ``None`` if it has a type that is imported only for type checkers."""
    try:
        return typing.get_type_hints(function).get("return")
    except NameError:
        return None


def parts(hint):
    if isinstance(hint, type):
        yield hint
    for inner in typing.get_args(hint):
        yield from parts(inner)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_pages_import_only_from_public_packages():
    """Pages may also import from the modules of ``tune_policies.benchmarks``."""
    modules = {
        node.module or ""
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tune_policies")
    }

    assert {name for name in modules if not name.startswith("tune_policies.benchmarks.")} <= {
        "tune_policies",
        "tune_policies.kuberay",
        "tune_policies.testing",
        "tune_policies.trainers",
        *(f"tune_policies.{module}" for module in ONLY_RETURNED.values()),
    }


WRAPPERS = [
    *(AutoscalingPolicy, BenchmarkedPolicy, ByConfigPolicy, CappedPolicy, FirstFeasiblePolicy, MixedPolicy),
    *(ReservingPolicy, SelectingPolicy),
]


@pytest.mark.parametrize("policy", WRAPPERS, ids=lambda policy: policy.__name__)
def test_positional_arguments_of_policies_have_the_defaults_of_the_fields(policy):
    parameters = {
        name: each for name, each in inspect.signature(policy).parameters.items() if each.kind != each.VAR_POSITIONAL
    }
    fields = {
        name: inspect.Parameter.empty if field.default is PydanticUndefined else field.default
        for name, field in policy.model_fields.items()
    }
    assert parameters.keys() == fields.keys()
    # A default of ``None`` means that the default depends on other arguments.
    changed = {name for name, each in parameters.items() if each.default not in (None, fields[name])}
    assert not changed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: CpuPolicy(2),
            "CpuPolicy accepts its fields only by name, got 1 argument without a name. Write CpuPolicy(cpus=2)",
        ),
        (
            lambda: Resources(8),
            "Resources accepts its fields only by name, got 1 argument without a name. Write Resources(cpus=8)",
        ),
        (lambda: CappedPolicy(), "the required field 'inner' of CappedPolicy is missing"),
        (lambda: CappedPolicy(CpuPolicy(), max_trials=2), "unknown field 'max_trials'"),
        (lambda: ReservingPolicy.from_dict({"inner": {"kind": "CpuPolicy"}, "cpu": 1}), "did you mean 'cpus'?"),
    ],
)
def test_the_error_of_a_wrong_call_contains_the_correct_call(call, message):
    with pytest.raises(InvalidResourcesError) as caught:
        call()

    assert message in str(caught.value)


def test_user_defined_policies_also_reject_positional_arguments():
    class SharePolicy(ResourcePolicy):
        share: float = 0.5

        def plan(self, capacity):
            raise NotImplementedError

    with pytest.raises(InvalidResourcesError, match=r"Write SharePolicy\(share=0.25\)"):
        SharePolicy(0.25)


SUPPORT = (ROOT / "docs" / "support.md").read_text()
MATURITY = [
    (package, maturity, name)
    for package, maturity, names in re.findall(
        r"^\| `(tune_policies[\w.]*)` \| \d+\.\d+\.0 \| (\w+) \| (.+) \|$", SUPPORT, re.MULTILINE
    )
    for name in re.findall(r"`(\w+)`", names)
]


@pytest.mark.parametrize("package", [kuberay, testing, trainers, tune_policies], ids=lambda package: package.__name__)
def test_every_public_name_has_one_maturity_and_the_version_since_which_it_exists(package):
    named = [name for owner, _, name in MATURITY if owner == package.__name__]

    assert sorted(named) == sorted(package.__all__)
    assert {maturity for _, maturity, _ in MATURITY} == {"stable", "provisional"}


@pytest.mark.parametrize(
    ("package", "name"), [(tune_policies, "GpuPolicy"), (trainers, "run"), (kuberay, "Finding")], ids=str
)
def test_a_renamed_public_name_works_with_a_warning_at_the_line_that_uses_it(package, name, monkeypatch):
    monkeypatch.setitem(RENAMED[package.__name__], "old_name", name)

    with pytest.warns(DeprecationWarning, match=f"{package.__name__}.old_name is now .*{name}") as caught:
        found = package.old_name
    assert found is getattr(package, name)
    assert caught[0].filename == __file__
