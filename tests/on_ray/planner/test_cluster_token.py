"""A cluster that requires a token: programs with the token run, and others get a clear error."""

import json
import os
import subprocess
import sys

import pytest
import ray
from packaging.version import Version

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        Version(ray.__version__) < Version("2.52"), reason="this Ray version has no authentication by tokens"
    ),
]

# Ray reads the token once per process, so the cluster has a process of its own.
CLUSTER = """
import os, ray, subprocess, sys
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""

PROGRAM = """
import json, sys
from tune_policies import CpuPolicy, ProbeError, plan_on_cluster
from tune_policies.trainers import run

def train(config):
    return {"number": config["number"]}

try:
    plan = plan_on_cluster(CpuPolicy(cpus=1))
    results = run(train, CpuPolicy(cpus=1), config={"number": 7}, storage_path=sys.argv[1], verbose=0)
    answer = [plan.max_concurrent_trials, [trial.last_result["number"] for trial in results.trials]]
except ProbeError as error:
    answer = str(error)
print(json.dumps(answer))
"""

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def cluster(isolated_environment):
    """Start a cluster with a token. Yield the environment of its programs."""
    environment = {**isolated_environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    environment = {**environment, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        address = process.stdout.readline().strip()
        yield {**environment, "RAY_ADDRESS": address}
        process.communicate(timeout=60)


def answer_of(environment, folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
def test_a_program_with_the_token_plans_and_runs_trials(cluster, tmp_path):
    assert answer_of(cluster, tmp_path) == [1, [7]]


WRONG = {
    "another token": {"RAY_AUTH_TOKEN": "f" * 32},
    "no token": {"RAY_AUTH_TOKEN": "", "HOME": os.devnull},
    "no authentication": {"RAY_AUTH_MODE": "disabled"},
}


@pytest.mark.rest
@pytest.mark.timeout(300)
@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_the_error_for_a_wrong_token_says_how_to_set_it(cluster, tmp_path, changes):
    error = answer_of({**cluster, **changes}, tmp_path)

    assert error == (
        f"Ray at {cluster['RAY_ADDRESS']!r} refuses the authentication token, because it is missing or incorrect. Set "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of the cluster, or write the token to ~/.ray/auth_token"
    )
