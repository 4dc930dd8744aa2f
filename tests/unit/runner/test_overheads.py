"""Tests of the overhead of a framework, and of the file with measured overheads."""

import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tune_policies.trainers.gpu_memory.framework_overhead import (
    Assumption,
    MeasuredOverhead,
    Overheads,
    load_overheads,
    overheads_file,
    save_overheads,
)
from tune_policies.values.errors import InvalidResourcesError

GIB, MIB = 2**30, 2**20


def measured(framework="torch", version="2.13.0", gpu_model="NVIDIA H200", overhead_bytes=500 * MIB):
    return MeasuredOverhead(
        gpu_model=gpu_model,
        framework=framework,
        version=version,
        overhead_bytes=overhead_bytes,
        measured_on="2026-07-01",
        how="process",
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path / "cache"))
    return overheads_file()


@pytest.mark.parametrize(
    ("framework", "capability", "expected"),
    [
        ("torch", (8, 0), int(0.85 * GIB)),
        ("jax", None, int(0.85 * GIB)),
        ("cupy", None, int(0.85 * GIB)),
        ("tensorflow", (8, 0), 1536 * MIB),
        ("tensorflow", (9, 0), 1800 * MIB),
        ("tensorflow", None, 1800 * MIB),
    ],
)
def test_without_a_measurement_the_overhead_is_a_safe_default(framework, capability, expected):
    assert Overheads().bytes_for("NVIDIA H200", framework, "1.0", capability) == (expected, Assumption.SAFE_DEFAULT)


def test_the_source_of_a_measured_overhead_contains_the_gpu_and_the_date():
    overhead, source = Overheads(measured=(measured(),)).bytes_for("NVIDIA H200", "torch", "2.13.0")

    assert (overhead, str(source)) == (500 * MIB, "measured on 2026-07-01 (NVIDIA H200, torch 2.13.0, by process)")


@pytest.mark.parametrize(
    "key", [("A100", "torch", "2.13.0"), ("NVIDIA H200", "jax", "2.13.0"), ("NVIDIA H200", "torch", None), (None,) * 3]
)
def test_a_measurement_applies_only_to_its_own_gpu_framework_and_version(key):
    assert Overheads(measured=(measured(),)).bytes_for(*key)[1] is Assumption.SAFE_DEFAULT


def test_saving_keeps_other_measurements_in_a_private_file(cache):
    assert load_overheads() == Overheads()
    save_overheads(Overheads(measured=(measured(), measured("jax"))))

    merged = save_overheads(Overheads(measured=(measured(overhead_bytes=1), measured("cupy"))))

    assert load_overheads() == merged
    assert {each.framework: each.overhead_bytes for each in merged.measured} == {
        "cupy": 500 * MIB,
        "jax": 500 * MIB,
        "torch": 1,
    }
    assert [(each, stat.S_IMODE(each.stat().st_mode)) for each in cache.parent.iterdir()] == [(cache, 0o600)]


def test_without_a_home_directory_safe_defaults_are_used(monkeypatch):
    """A container may run under a user ID without an entry in the password file."""
    for name in ("HOME", "XDG_CACHE_HOME", "TUNE_POLICIES_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])

    with pytest.warns(
        UserWarning,
        match="measured overheads are ignored.*requires the variable HOME, which is not set. Set HOME or TUNE_POLICIES",
    ):
        assert load_overheads() == Overheads()
    with pytest.raises(InvalidResourcesError, match="requires the variable HOME, which is not set"):
        save_overheads(Overheads())


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o664, None), (0o646, None), (0o644, 65534)], ids=["group", "all", "owner"]
)
def test_a_file_that_another_user_may_write_is_not_trusted(cache, mode, owner):
    cache.parent.mkdir()
    cache.write_text(Overheads(measured=(measured(),)).to_json())
    cache.chmod(mode)
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(cache, owner, -1)

    with pytest.warns(UserWarning, match="another user could have written it"):
        assert load_overheads() == Overheads()
    with pytest.warns(UserWarning, match="another user could have written it"):
        save_overheads(Overheads(measured=(measured("jax"),)))
    assert [each.framework for each in load_overheads().measured] == ["jax"]


def test_concurrent_saves_keep_all_measurements(cache):
    versions = [f"2.{minor}" for minor in range(20)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda version: save_overheads(Overheads(measured=(measured(version=version),))), versions))

    assert {each.version for each in load_overheads().measured} == set(versions)


@pytest.mark.parametrize(
    "text",
    ["", '{"measured": [', '{"measured": [], "format": 2}', '{"measured": [{"gpu_model": "NVIDIA H200"}]}', "\xff\x00"],
    ids=["empty", "truncated", "newer version", "missing fields", "not text"],
)
def test_an_invalid_file_causes_a_warning_and_is_replaced_by_the_next_measurement(cache, text):
    cache.parent.mkdir()
    cache.write_text(text, encoding="latin-1")

    with pytest.warns(UserWarning, match=r"the measured overheads are ignored, .*gpu-overheads\.json"):
        assert load_overheads() == Overheads()
    with pytest.warns(UserWarning, match="the measured overheads are ignored"):
        saved = save_overheads(Overheads(measured=(measured(),)))
    assert load_overheads() == saved


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TUNE_POLICIES_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/tune-policies"),
        ({}, "/home/me/.cache/tune-policies"),
    ],
)
def test_the_file_is_in_the_users_cache_folder(environ, folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    assert overheads_file(environ) == Path(folder, "gpu-overheads.json")
