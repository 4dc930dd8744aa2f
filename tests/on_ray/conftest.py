"""Every test here starts a real Ray; the folder is marked as a whole."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="package", autouse=True)
def no_gpu_was_chosen():
    """Ray refuses more logical GPUs than CUDA_VISIBLE_DEVICES names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
