"""The callback that checks the workers of a trial is added to the user's callbacks, once."""

import os

from tune_policies.ray_compat.train_callbacks import set_train_callback


def test_the_callback_is_added_once_and_removed_for_the_next_trial_of_the_process(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_CALLBACKS", "mine.Class")
    seen = []
    for is_active in (True, True, False):
        set_train_callback("ours.Class", is_active=is_active)
        seen.append(os.environ["RAY_TRAIN_CALLBACKS"])

    assert seen == ["mine.Class,ours.Class", "mine.Class,ours.Class", "mine.Class"]


def test_without_other_callbacks_the_variable_is_removed(monkeypatch):
    monkeypatch.delenv("RAY_TRAIN_CALLBACKS", raising=False)
    set_train_callback("ours.Class", is_active=True)

    set_train_callback("ours.Class", is_active=False)

    assert "RAY_TRAIN_CALLBACKS" not in os.environ
