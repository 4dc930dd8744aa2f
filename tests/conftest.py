"""What all tests share: what is set before Ray is imported, and that the GPU tests skip where there is no GPU."""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings

# How long an example takes is no claim of these tests.
settings.register_profile("few", deadline=None, max_examples=5)
settings.register_profile("default", deadline=None, max_examples=15)
# A test that fails on a mutant has done its work, and many are tried at a time.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=15,
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Before Ray is imported anywhere: no usage report, no token between the test's own nodes.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# A Ray that runs on this machine is somebody else's.
os.environ.pop("RAY_ADDRESS", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    # A cluster leaves its address in Ray's folder, where the Ray of another worker would find it. Short, as Ray puts
    # sockets there.
    _RAY_FOLDER = tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True)
    os.environ["RAY_TMPDIR"] = _RAY_FOLDER.name


@pytest.fixture(scope="session")
def environment_of_its_own():
    """An environment for programs that start a Ray: no other Ray has left its address in this one's folder."""
    # Short, as Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "RAY_TMPDIR": folder, "HOME": folder}


def pytest_collection_modifyitems(items):
    # The longest files first: a process runs a file alone, and all others would be done before it.
    items.sort(key=lambda item: not item.path.name.startswith("test_page"))
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch can use"))


def _has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
