"""The public names, as an editor shows them: each signature says what it takes, and what it returns can be named."""

import ast
import functools
import inspect
import re
import typing
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

import tune_policies
from tune_policies import (
    AutoscalingPolicy,
    BenchmarkedPolicy,
    CappedPolicy,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    ResourcePolicy,
    Resources,
    SelectingPolicy,
    trainers,
)

ROOT = Path(__file__).parents[2]
PUBLIC = {name: getattr(package, name) for package in (trainers, tune_policies) for name in package.__all__}


def functions(owner):
    """Yield the functions, and of a class the public methods and properties that Ray does not prescribe, by name."""
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
    if inspect.isclass(owner) and not issubclass(owner, Exception | Warning)
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_a_signature_names_and_types_what_it_takes(name):
    """Only what is passed on to Ray has no names of its own, and then the docstring says whose it is."""
    public = {**FUNCTIONS, **CLASSES}[name]
    parameters = [each for each in inspect.signature(public).parameters.values() if each.name not in ("self", "cls")]

    untyped = [each.name for each in parameters if each.annotation is each.empty]
    unnamed = [each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    unnamed = [each for each in unnamed if inspect.signature(public).parameters[each].annotation in (typing.Any, "Any")]
    passed_on = re.findall(
        r"^ *(?:``)?\*\*(\w+)(?:``)?: (?:Anything else that|Further fields of) ``", public.__doc__ or "", re.M
    )

    assert not untyped
    assert unnamed == passed_on


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_has_a_type_that_can_be_imported_from_the_package(name):
    function = FUNCTIONS[name]
    said = inspect.signature(function).return_annotation
    names = {Path(part).suffix[1:] or part for part in re.findall(r"[\w.]+", str(said))} - {"Any"}

    assert said not in (inspect.Signature.empty, typing.Any, "Any")
    ours = {each.__name__ for each in parts(hint_of(function)) if each.__module__.startswith("tune_policies")}
    assert ours <= PUBLIC.keys(), names


def hint_of(function):
    """Return the type that a function returns; what is imported for checkers alone is Ray's."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_import_from_the_packages_alone(page):
    """The workloads and the judge of the benchmarks are found where they stand."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    modules = {
        node.module or ""
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tune_policies")
    }

    assert {name for name in modules if not name.startswith("tune_policies.benchmarks.")} <= {
        "tune_policies",
        "tune_policies.trainers",
    }


WRAPPERS = [
    *(AutoscalingPolicy, BenchmarkedPolicy, CappedPolicy, FirstFeasiblePolicy, MixedPolicy),
    *(ReservingPolicy, SelectingPolicy),
]


@pytest.mark.parametrize("policy", WRAPPERS, ids=lambda policy: policy.__name__)
def test_a_policy_that_takes_others_by_position_has_the_fields_and_defaults_of_its_file(policy):
    parameters = {
        name: each for name, each in inspect.signature(policy).parameters.items() if each.kind != each.VAR_POSITIONAL
    }
    fields = {
        name: inspect.Parameter.empty if field.default is PydanticUndefined else field.default
        for name, field in policy.model_fields.items()
    }
    made = {name: each.default for name, each in parameters.items()}

    assert parameters.keys() == fields.keys()
    assert {name: made[name] for name in fields if made[name] is not None} == {
        name: default for name, default in fields.items() if made[name] is not None
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: CpuPolicy(2),
            "CpuPolicy takes its fields by name, got 1 argument without a name: write CpuPolicy(cpus=2)",
        ),
        (
            lambda: GpuPolicy(0.5, 4),
            "GpuPolicy takes its fields by name, got 2 arguments without a name: write GpuPolicy(gpus=0.5, cpus=4)",
        ),
        (
            lambda: Resources(8),
            "Resources takes its fields by name, got 1 argument without a name: write Resources(cpus=8)",
        ),
        (lambda: CappedPolicy(), "CappedPolicy needs 'inner', which is missing"),
        (lambda: CappedPolicy(CpuPolicy(), max_trials=2), "unknown field 'max_trials'"),
        (lambda: FirstFeasiblePolicy(CpuPolicy(), gpu=GpuPolicy()), "unknown field 'gpu'"),
        (lambda: ReservingPolicy.from_dict({"inner": {"kind": "CpuPolicy"}, "cpu": 1}), "did you mean 'cpus'?"),
    ],
)
def test_a_wrong_call_is_an_error_that_says_how_to_write_it(call, message):
    with pytest.raises(InvalidResourcesError) as caught:
        call()

    assert message in str(caught.value)


def test_a_policy_of_ones_own_has_the_same_errors():
    class HalfPolicy(ResourcePolicy):
        share: float = 0.5

        def plan(self, capacity):
            raise NotImplementedError

    with pytest.raises(InvalidResourcesError, match=r"write HalfPolicy\(share=0.25\)"):
        HalfPolicy(0.25)
