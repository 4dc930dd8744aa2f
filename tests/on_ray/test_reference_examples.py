"""Runs the examples of the reference that need Ray."""

import pytest

from tests.reference_examples import examples, failures_of

RAY = {"num_cpus": 1}


@pytest.mark.rest
@pytest.mark.parametrize("name", examples()["Ray"])
def test_an_example_of_the_reference_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # Tune stores results there
    monkeypatch.chdir(tmp_path)

    assert failures_of(name, examples()["Ray"][name]) == ""
