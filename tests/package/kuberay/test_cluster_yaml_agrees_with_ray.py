"""Tests that cluster YAML files are read with the same defaults as Ray uses."""

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.autoscaler._private.providers import _NODE_PROVIDERS, _get_default_config
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.unit.kuberay.planted.sound import LAUNCHER
from tune_policies.kuberay.reading.cluster_yaml import NODE_TYPES, PROVIDERS, read_cluster_yaml

SOUND: dict[str, Any] = yaml.safe_load(LAUNCHER)
MACHINES = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]}
SMALL = {"resources": {"CPU": 2}, "node_config": {"InstanceType": "m5.large"}}

providers = st.sampled_from(
    [{"type": name, "region": "here"} for name in ("aws", "gcp", "azure", "kubernetes")]
    + [MACHINES, {"type": "local"}, {"type": "local", "coordinator_address": "10.0.0.1:8000"}]
)
resources = st.sampled_from([{}, {"CPU": 4}, {"CPU": 4, "GPU": 1}, {"GPU": -1}])
node_types = st.dictionaries(
    st.sampled_from(["head", "ray.head.default", "ray_head_default", "gpu"]),
    st.fixed_dictionaries(
        {"node_config": st.just({"InstanceType": "g6.xlarge"})},
        optional={"resources": resources, "min_workers": st.integers(0, 3), "max_workers": st.integers(0, 3)},
    ),
    min_size=1,
    max_size=3,
)
files = st.fixed_dictionaries(
    {"cluster_name": st.just("mine"), "provider": providers},
    optional={
        "max_workers": st.integers(0, 4),
        "min_workers": st.integers(0, 2),
        "head_node_type": st.sampled_from(["head", "ray.head.default", "heads"]),
        "available_node_types": node_types,
        "nonsense": st.just(1),
    },
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Suppress Ray's messages about default values."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def prepared(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of a file with the defaults that Ray adds, or ``None`` if Ray rejects the file."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            config: dict[str, Any] = prepare_config(yaml.safe_load(yaml.safe_dump(data)))
            if data["provider"]["type"] == "aws":  # otherwise Ray requests the missing values from AWS
                for each in config[NODE_TYPES].values():
                    each.setdefault("resources", {"CPU": 1})
            validate_config(config)
    except Exception:  # noqa: BLE001 - a built-in exception, or an error of click or jsonschema
        return None
    return config


@settings(max_examples=200, deadline=None)
@given(files)
def test_a_file_is_read_with_rays_defaults(data: dict[str, Any]) -> None:
    config = prepared(data)
    cluster, problems = read_cluster_yaml(data)

    if config is not None:
        assert (problems, cluster is not None) == ([], True)
        assert cluster is not None
        read = (cluster.max_workers, cluster.head_node_type, cluster.available_node_types.keys())
        assert read == (config["max_workers"], config["head_node_type"], config[NODE_TYPES].keys())


def test_the_providers_are_the_same_as_in_ray() -> None:
    assert PROVIDERS.keys() == _NODE_PROVIDERS.keys()


@pytest.mark.parametrize("name", ["aws", "gcp", "azure", "vsphere", "spark", "readonly"])
def test_the_defaults_of_a_provider_are_the_same_as_in_ray(name: str) -> None:
    defaults, here = _get_default_config({"type": name}), PROVIDERS[name]

    assert (here.max_workers, here.head_node_type) == (defaults["max_workers"], defaults["head_node_type"])
    for node_type, of_type in (here.node_types or {}).items():
        of_ray = defaults[NODE_TYPES][node_type]
        machine = {key: of_ray["node_config"][key] for key in of_type["node_config"] if key != "azure_arm_parameters"}
        assert of_type["resources"] == of_ray["resources"]
        assert machine.items() <= of_type["node_config"].items()
    assert here.node_types is None or here.node_types.keys() == defaults[NODE_TYPES].keys()
