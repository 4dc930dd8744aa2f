"""Settings for all tests: Hypothesis profiles, Ray's environment variables, and the rule that skips GPU tests."""

import os
import signal
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.version_records import pytest_addoption, pytest_terminal_summary  # noqa: F401 - hooks of pytest

# Disable the deadline, because the tests do not check how long an example takes.
# Disable the check of filters, because its result is unreliable if a test has only a few examples.
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.filter_too_much]
# A change must not fail because of an example that it did not cause, so each run of "few" tries the same examples. The
# other profiles draw new examples, which find new defects.
settings.register_profile("few", deadline=None, max_examples=5, derandomize=True, suppress_health_check=_UNCHECKED)
settings.register_profile("default", deadline=None, max_examples=15, suppress_health_check=_UNCHECKED)
# The first failure on a mutant is enough, so do not shrink examples.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=15,
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
    suppress_health_check=_UNCHECKED,
)
settings.register_profile("thorough", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell makes background jobs ignore Ctrl-C, and the processes that tests interrupt would inherit this setting.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Set these variables before Ray is imported. They disable usage reports and authentication, and enable Train V2.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# Do not connect to another Ray cluster on this machine.
os.environ.pop("RAY_ADDRESS", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    # In a shared folder, a pytest worker could connect to the Ray cluster of another worker. The path must be short,
    # because Ray creates sockets in this folder.
    _RAY_FOLDER = tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True)
    os.environ["RAY_TMPDIR"] = _RAY_FOLDER.name


@pytest.fixture(scope="session")
def isolated_environment():
    """Environment variables for programs that start Ray, with a separate folder for Ray."""
    # The path must be short, because Ray creates sockets in this folder.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "RAY_TMPDIR": folder, "HOME": folder}


@pytest.fixture(scope="module", autouse=True)
def ends_its_ray():
    """Fail if a module leaves Ray running, because the next module would use it."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("the module left Ray running")


def pytest_collection_modifyitems(items):
    # Start the slowest files first, because each file runs in a single process.
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
