"""Functions that load and run the unchanged examples in the Ray instance of the test."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("t*_*.py"))


def load_example(name):
    """Load an example without adding it to ``sys.modules``, because the trials cannot import it from its folder."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def run_example(name, folder):
    """Run an example, and return the last result of each trial or Train run."""
    outcome = load_example(name).main(storage_path=str(folder))
    runs = outcome.values() if isinstance(outcome, dict) else [outcome]
    return [result for run in runs for result in last_results(run)]


def last_results(run):
    if hasattr(run, "trials"):
        return [trial.last_result for trial in run.trials]
    return [run.metrics] if hasattr(run, "metrics") else [result.metrics for result in run]
