import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from tune_policies.trainers.gpu_memory.overhead import (
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
def test_what_was_not_measured_has_a_safe_default(framework, capability, expected):
    assert Overheads().bytes_for("NVIDIA H200", framework, "1.0", capability) == (expected, "safe default")


def test_a_measurement_says_where_and_when_it_was_made():
    overheads = Overheads(measured=(measured(),))

    assert overheads.bytes_for("NVIDIA H200", "torch", "2.13.0") == (
        500 * MIB,
        "measured on 2026-07-01 (NVIDIA H200, torch 2.13.0, by process)",
    )


@pytest.mark.parametrize(
    ("gpu_model", "framework", "version"),
    [
        ("NVIDIA A100-SXM4-40GB", "torch", "2.13.0"),
        ("NVIDIA H200", "jax", "2.13.0"),
        ("NVIDIA H200", "torch", "2.14.0"),
        (None, "torch", "2.13.0"),
        ("NVIDIA H200", "torch", None),
    ],
    ids=["another GPU", "another framework", "another version", "a GPU that is not known", "no version"],
)
def test_a_measurement_counts_for_its_own_gpu_framework_and_version_only(gpu_model, framework, version):
    assert Overheads(measured=(measured(),)).bytes_for(gpu_model, framework, version)[1] == "safe default"


def test_nothing_was_measured_where_there_is_no_file(cache):
    assert load_overheads() == Overheads()


def test_what_was_saved_is_loaded(cache):
    save_overheads(Overheads(measured=(measured(),)))

    assert load_overheads() == Overheads(measured=(measured(),))


def test_saving_keeps_what_others_have_measured_and_replaces_what_was_measured_again(cache):
    save_overheads(Overheads(measured=(measured(), measured("jax"))))

    merged = save_overheads(Overheads(measured=(measured(overhead_bytes=1), measured("cupy"))))

    assert load_overheads() == merged
    assert {each.framework: each.overhead_bytes for each in merged.measured} == {
        "cupy": 500 * MIB,
        "jax": 500 * MIB,
        "torch": 1,
    }


def test_saving_leaves_nothing_but_the_file_which_is_the_users_alone(cache):
    save_overheads(Overheads(measured=(measured(),)))

    assert [(each, stat.S_IMODE(each.stat().st_mode)) for each in cache.parent.iterdir()] == [(cache, 0o600)]


def test_where_there_is_no_home_safe_defaults_hold(monkeypatch):
    """A container may run under a number of which no file of users knows a home."""
    for name in ("HOME", "XDG_CACHE_HOME", "TUNE_POLICIES_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])

    with pytest.warns(
        UserWarning, match="safe defaults replace .*needs HOME, which is not set: set it, or TUNE_POLICIES"
    ):
        assert load_overheads() == Overheads()
    with pytest.raises(InvalidResourcesError, match="needs HOME, which is not set"):
        save_overheads(Overheads())


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o664, None), (0o646, None), (0o644, 65534)], ids=["group", "all", "owner"]
)
def test_a_file_that_another_user_may_write_is_not_believed(cache, mode, owner):
    cache.parent.mkdir()
    cache.write_text(Overheads(measured=(measured(),)).to_json())
    cache.chmod(mode)
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(cache, owner, -1)

    with pytest.warns(UserWarning, match="another user may have written it, so it is not trusted"):
        assert load_overheads() == Overheads()
    with pytest.warns(UserWarning, match="another user may have written it"):
        save_overheads(Overheads(measured=(measured("jax"),)))
    assert [each.framework for each in load_overheads().measured] == ["jax"]


def test_a_link_in_the_place_of_the_lock_is_not_followed(cache, tmp_path):
    (tmp_path / "precious").write_text("mine")
    cache.parent.mkdir()
    for name in ("gpu-overheads.json.lock", ".gpu-overheads.json.lock"):
        cache.with_name(name).symlink_to(tmp_path / "precious")

    with pytest.raises(InvalidResourcesError, match="cannot be locked"):
        save_overheads(Overheads(measured=(measured(),)))

    assert (tmp_path / "precious").read_text() == "mine"


def test_measurements_that_are_saved_at_the_same_time_are_all_kept(cache):
    versions = [f"2.{minor}" for minor in range(20)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda version: save_overheads(Overheads(measured=(measured(version=version),))), versions))

    assert {each.version for each in load_overheads().measured} == set(versions)


@pytest.mark.parametrize(
    "text",
    ["", '{"measured": [', '{"measured": [], "format": 2}', '{"measured": [{"gpu_model": "NVIDIA H200"}]}', "\xff\x00"],
    ids=["empty", "half written", "of a newer version", "with fields missing", "not text"],
)
def test_a_file_that_is_not_understood_is_warned_of_and_counts_as_none(cache, text):
    cache.parent.mkdir()
    cache.write_text(text, encoding="latin-1")

    with pytest.warns(UserWarning, match=r"safe defaults replace the measured overheads: .*gpu-overheads\.json"):
        assert load_overheads() == Overheads()


@pytest.mark.filterwarnings("ignore:safe defaults replace:UserWarning")
def test_a_file_that_is_not_understood_is_replaced_by_the_next_measurement(cache):
    cache.parent.mkdir()
    cache.write_text("{")

    saved = save_overheads(Overheads(measured=(measured(),)))

    assert load_overheads() == saved


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"TUNE_POLICIES_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "linux", "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/tune-policies"),
        ({}, "linux", "/home/me/.cache/tune-policies"),
        ({}, "darwin", "/home/me/Library/Caches/tune-policies"),
        ({"LOCALAPPDATA": "/app"}, "win32", "/app/tune-policies"),
    ],
)
def test_the_file_is_in_the_folder_for_the_users_caches(environ, platform, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    assert overheads_file(environ, platform).as_posix() == f"{expected}/gpu-overheads.json"
