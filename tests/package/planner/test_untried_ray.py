"""Tests of the warning about an untested Ray version, and of the error if Ray lacks a required private name.

The tests remove names from the installed Ray and import a second copy of a module of ``ray_compat``.
"""

import ast
import importlib
import importlib.util
import logging
import re
import sys
import tomllib

import pytest
import ray

from tests.package.test_ray_border import BORDER, ROOT, is_private
from tune_policies import RayVersionError
from tune_policies.ray_compat import version
from tune_policies.values import ray_versions


def private_imports():
    """Yield each module of ``ray_compat`` with each private name that it imports at module level."""
    for path in sorted(BORDER.glob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            for node in ast.walk(statement) if isinstance(statement, ast.Try) else [statement]:
                if isinstance(node, ast.ImportFrom) and not node.level and node.module.partition(".")[0] == "ray":
                    for alias in node.names:
                        if is_private(f"{node.module}.{alias.name}"):
                            yield path.stem, node.module, alias.name


IMPORTS = list(private_imports())
for border in {border for border, _, _ in IMPORTS}:  # import them first, so that Ray's own modules are loaded
    importlib.import_module(f"tune_policies.ray_compat.{border}")


@pytest.fixture
def border_without(monkeypatch):
    """Return a function that imports a copy of a ``ray_compat`` module while a name is missing in Ray."""

    def load(border, module, name):
        monkeypatch.delattr(importlib.import_module(module), name)
        if f"{module}.{name}" in sys.modules:
            monkeypatch.setitem(sys.modules, f"{module}.{name}", None)
        spec = importlib.util.spec_from_file_location(f"tune_policies.ray_compat.{border}", BORDER / f"{border}.py")
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        return copy

    return load


@pytest.mark.parametrize(("border", "module", "name"), IMPORTS, ids=[".".join(each) for each in IMPORTS])
def test_ray_compat_can_be_imported_if_any_private_name_is_missing(border_without, border, module, name):
    assert border_without(border, module, name)


class OfVersion2:
    __module__ = "ray.train.v2.api"


@pytest.mark.parametrize(
    ("border", "module", "name", "use"),
    [
        ("autoscaler", "ray.experimental.internal_kv", "_internal_kv_get", lambda of: of.AutoscalerV1().report()),
        ("connection", "ray._private", "services", lambda of: of.find_ray(None)),
        ("connection", "ray", "cloudpickle", lambda of: of.sent_by_value(ast).__enter__()),
        ("connection", "ray.job_config", "JobConfig", lambda of: of._WithoutWorkingFolder()),
        ("gcs", "ray._private.state", "state", lambda of: of.living_actors()),
        ("gcs", "ray._private.state", "available_resources_per_node", lambda of: of.free_by_node()),
        ("train_run", "ray.train.v2.api.config", "RunConfig", lambda of: of.is_version_2(OfVersion2)),
        ("tune_trial", "ray.tune.result", "RESULT_DUPLICATE", lambda of: of.is_duplicate({"loss": 1})),
        ("tune_trial", "ray.tune.search.sample", "Domain", lambda of: of.is_domain(3)),
        ("tune_trial", "ray.tune.trainable", "wrap_function", lambda of: of.class_of_function(print)),
        ("tune_trial", "ray.train._internal.session", "get_session", lambda of: of.storage_of_session()),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_function_raises_an_error_if_its_private_name_is_missing(border_without, border, module, name, use):
    copy = border_without(border, module, name)

    with pytest.raises(
        RayVersionError, match=rf"Ray {re.escape(ray.__version__)} lacks a part that .+ needs: .*{name}"
    ):
        use(copy)


def test_a_train_callback_raises_an_error_if_its_base_class_is_missing(border_without):
    copy = border_without("train_run", "ray.train.v2._internal.execution.callback", "WorkerCallback")

    class OfWorkers(copy.WorkerCallback, copy.ControllerCallback):
        config: copy.RunConfig | None = None

    with pytest.raises(RayVersionError, match="a Train run under a plan needs"):
        OfWorkers()


def test_without_rays_client_module_no_client_is_connected(border_without):
    assert not border_without("connection", "ray.util.client", "ray").is_through_client()


def test_a_missing_attribute_of_the_tune_controller_is_an_error():
    with pytest.raises(
        RayVersionError, match="a part that a scheduler needs: ControllerOfAnotherTune has no _staged_trials"
    ):
        version.check_members(type("ControllerOfAnotherTune", (), {})(), ["_staged_trials"], "a scheduler")


def test_the_error_for_a_missing_private_name_contains_the_name():
    of_module = r"lacks a part that counting needs: module 'ray' has no attribute '_no_such'"

    with pytest.raises(RayVersionError, match=of_module), version.needs_of_ray("counting"):
        ray._no_such  # noqa: B018


def test_special_attributes_of_a_missing_name_raise_an_attribute_error():
    gone = version.Gone(ImportError("no such name"), "counting")

    assert not hasattr(gone, "__deepcopy__")


@pytest.mark.parametrize(
    ("number", "tried"),
    [("2.49.9", False), ("2.50.0", True), ("2.55.1", True), ("2.60.3", True), ("2.61.0rc1", False), ("3.0.0", False)],
)
def test_the_tested_versions_of_ray_are_recognized(number, tried):
    assert ray_versions.is_tried(number) is tried


def test_an_untested_ray_version_causes_only_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    version.warn_of_untried_ray.cache_clear()

    for _ in range(2):
        version.warn_of_untried_ray()

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Ray 2.61.0 was not tested with this package, only Ray 2.50 to 2.60" in record.getMessage()
    version.warn_of_untried_ray.cache_clear()


def test_every_ray_from_the_oldest_tested_version_on_is_accepted():
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (of_ray,) = (each for each in needs if each.startswith("ray["))
    oldest, newest = ray_versions.OLDEST_TRIED, ray_versions.NEWEST_TRIED

    assert of_ray == f"ray[tune,train]>={oldest[0]}.{oldest[1]}"
    assert f"{of_ray.removeprefix('ray')},<{newest[0]}.{newest[1] + 1}" in version._INSTALL
    assert f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}" == ray_versions.TRIED
