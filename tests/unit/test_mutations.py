"""Damaged files: a sample of what ``python -m tests.evidence mutations`` tries, and what it has found."""

import pytest

from tests.evidence.faults.mutations import try_damaged
from tests.evidence.faults.sound_files import sound_files

FILES = sound_files()


@pytest.mark.parametrize("name", FILES)
def test_the_file_that_is_damaged_is_sound(name, tmp_path):
    (tmp_path / "sound.yaml").write_text(FILES[name].text)

    assert FILES[name].load(tmp_path / "sound.yaml")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_refused_by_its_name(name):
    found = try_damaged(name, FILES[name], range(150), seed=1)

    assert found.failures == ()
