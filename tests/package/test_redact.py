"""Tests that ``--redact`` omits host names, commands and error texts from files and pages."""

import json
import stat

import pytest
from typer.testing import CliRunner

from tests.measured_runs import a_run, process
from tests.reports import a_packing_record
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set import Configuration, DeviceFound, Failure
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set
from tune_policies.cli.main import app as tune_policies
from tune_policies.probe.doctor.node_checks import Diagnosis, Finding, Gpu, NodeFacts, RayCounts, diagnose
from tune_policies.trainers.usage.resource_usage import (
    IdleHours,
    PlanInUse,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialSpan,
)

PRIVATE = ("build-host-7", "/home/alice/train.py", "alice@mail", "31337")

GPU = Gpu(index=0, name="A100", uuid="GPU-1")


@pytest.fixture
def run():
    """A run whose host, command, error and warning are private."""
    host, command, message, number = PRIVATE
    runs = [
        process("mlp", 16, device, round_, node=host, pid=int(number), warnings=(message,))
        for device in ("cpu", "gpu")
        for round_ in range(3)
    ]
    devices = (
        DeviceFound(device="cpu", slot=f"1 CPU on nodes with host={host}"),
        DeviceFound(device="gpu", slot="1 GPU"),
        DeviceFound(device="TPU", why_missing=f"no node but {host} has TPU"),
    )
    failure = Failure(
        configuration=Configuration(workload="mlp", size=16, device="gpu"), round=0, kind="raised", message=message
    )
    return a_run(runs=runs, rounds=3, failures=(failure,), command=command, devices=devices)


@pytest.fixture
def folder(run, tmp_path, monkeypatch):
    """A folder with the file of the run and a packing record."""
    monkeypatch.chdir(tmp_path)
    write_run_set(run, tmp_path / "run.json")
    (tmp_path / "packing.json").write_text(a_packing_record().model_copy(update={"command": PRIVATE[1]}).to_json())
    return tmp_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


VIEWS = {
    "export run.json --format json --output view.json": "view.json",
    "export run.json --format csv --output view.csv": "view.csv",
    "report run.json --packing packing.json --output view.html": "view.html",
}


@pytest.mark.parametrize(("option", "has_private"), [((), True), (("--redact",), False)], ids=["all", "redacted"])
@pytest.mark.parametrize("line", VIEWS)
def test_published_files_have_default_permissions_and_redaction_removes_host_and_command(
    folder, line, option, has_private
):
    (folder / "other").touch()

    assert CliRunner().invoke(app, [*line.split(), *option]).exit_code == 0

    text = (folder / VIEWS[line]).read_text()
    assert any(each in text for each in PRIVATE) is has_private
    assert mode(folder / VIEWS[line]) == mode(folder / "other")


def test_a_redacted_run_contains_the_same_measurements(run, folder):
    assert run.redacted().configurations == run.configurations
    assert [each.blocks for each in run.redacted().runs] == [each.blocks for each in run.runs]
    write_run_set(run.redacted(), folder / "redacted.json")
    assert read_run_set(folder / "redacted.json").is_redacted


def test_the_redacted_page_of_a_tune_run_contains_no_errors(folder):
    span = TrialSpan(trial="t", slot="1 GPU", place=0, began_s=0, ended_s=5, end="failed", error=PRIVATE[1])
    (folder / "run" / "t").mkdir(parents=True)
    result = {
        "gpu_memory": {"gpus": 0.5, "share_bytes": 2**30, "peak_reserved_bytes": 2**29, "warnings": f"on {PRIVATE[0]}"}
    }
    (folder / "run" / "t" / "result.json").write_text(json.dumps(result))
    (folder / "run" / "resource_usage.json").write_text(ResourceUsage(elapsed_s=9, spans=(span,)).to_json())

    for name, option in (("all", ()), ("some", ("--redact",))):
        line = ["usage", "run", "--html", f"{name}.html", *option]
        assert CliRunner().invoke(tune_policies, line).exit_code == 0

    texts = {name: (folder / f"{name}.html").read_text() for name in ("all", "some")}
    assert [[each in texts[name] for each in PRIVATE[:2]] for name in texts] == [[True, True], [False, False]]
    (folder / "other").touch()
    assert mode(folder / "all.html") == mode(folder / "other")


def test_a_redacted_record_contains_no_cluster_names_and_keeps_slot_types_distinct():
    host = PRIVATE[0]
    slots = [f"2 CPUs, 1 GPU on A100 on nodes with host={each}" for each in (host, "other-host")] + ["1 CPU"]
    idle = (
        IdleHours(reason=f"no trial asks for {host}", hours=1),
        IdleHours(reason="reserved for others by the policy", hours=1),
    )
    usage = ResourceUsage(
        elapsed_s=9,
        resources=(ResourceHours(resource="CPU", total_hours=4, used_hours=2, idle=idle),),
        slots=tuple(SlotHours(slot=each, accelerator_type="A100", hours={"CPU": 2, host: 1}) for each in slots),
        ran_out_with={"t": {host: 1}},
        raised_trials={"t": (host, "GPU")},
        plans=(
            PlanInUse(at_s=0, why=f"{host} went", text=f"2 trials at once, limited by {host}\n  each trial: 1 CPU"),
        ),
        spans=tuple(TrialSpan(trial="t", slot=each, place=0, began_s=0) for each in slots),
    )

    public = usage.redacted()

    assert [each for each in (host, "other-host") if each in public.to_json()] == []
    assert [each.slot for each in public.slots] == [
        "2 CPUs, 1 GPU on A100 on nodes with (left out) #1",
        "2 CPUs, 1 GPU on A100 on nodes with (left out) #2",
        "1 CPU",
    ]
    assert [each.slot for each in public.spans] == [each.slot for each in public.slots]
    assert [each.reason for each in public.resources[0].idle] == [
        "no trial asks for (left out)",
        "reserved for others by the policy",
    ]
    assert public.raised_trials == {"1": ("(left out)", "GPU")}
    assert public.plans[0].text == "2 trials at once, limited by (left out)\n  each trial: 1 CPU"


def test_redacted_doctor_findings_contain_no_addresses_or_errors():
    """Each node has its own number, even if the name of a node starts with the name of another node."""
    host, _, message, _ = PRIVATE
    hidden = NodeFacts(name=f"{host}2", visible_devices=PRIVATE[1], ray=RayCounts(cpus=1, gpus=2), gpus=(GPU, GPU))
    nodes = (NodeFacts(name=host, failure=f"no route to {host}: {message}"), hidden)
    differs = Finding(severity="note", what=f"{host}2 differs", hint=f"Look at {host}.", nodes=(f"{host}2",))
    diagnosis = Diagnosis(address="other-host:6379", nodes=nodes, findings=(*diagnose(nodes), differs))
    assert all(each in str(diagnosis.findings) for each in (host, PRIVATE[1]))

    public = diagnosis.redacted()

    assert [each for each in (*PRIVATE, "other-host") if each in public.to_json()] == []
    assert len(public.findings) == len(diagnosis.findings) > 1
    last = public.findings[-1]
    assert (last.what, last.hint, last.nodes) == ("node-2 differs", "Look at node-1.", ("node-2",))
