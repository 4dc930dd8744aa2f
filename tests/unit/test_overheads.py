from concurrent.futures import ThreadPoolExecutor

import pytest

from tune_policies.trainers.gpu_memory.limits.overhead import (
    MeasuredOverhead,
    Overheads,
    load_overheads,
    overheads_file,
    save_overheads,
)

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


def test_saving_leaves_nothing_but_the_file_and_its_lock(cache):
    save_overheads(Overheads(measured=(measured(),)))

    assert sorted(cache.parent.iterdir()) == [cache, cache.with_name("gpu-overheads.json.lock")]


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

    with pytest.warns(UserWarning, match=r"gpu-overheads\.json is not used, safe defaults are"):
        assert load_overheads() == Overheads()


@pytest.mark.filterwarnings("ignore:.*is not used:UserWarning")
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
