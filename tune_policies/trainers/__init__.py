"""The package ``trainers`` under a name that no project of a user has."""

from typing import TYPE_CHECKING

from tune_policies.siblings import load_sibling

if TYPE_CHECKING:
    from trainers import *  # noqa: F403

load_sibling(__name__, known_by="tune_trials/tune_trainable.py")
