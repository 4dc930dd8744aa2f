"""Tests that every command prints hostile names as plain text, and exits with a message instead of a traceback.

:data:`HOSTILE` contains the sequences that a terminal, GitHub's logs and Rich interpret. Every name in the files,
clusters and records of these tests contains it.
"""

import json
import re
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from tests.clusters import gpu_node
from tests.measured_runs import a_run, process
from tests.reports import a_decision, a_packing_record
from tune_policies import ClusterCapacity, GpuDevice
from tune_policies.benchmarks.cli import app as benchmarks
from tune_policies.benchmarks.record.run_set import Configuration, Failure
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.cli.main import app as tune_policies
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.resource_usage import IdleHours, PlanInUse, ResourceHours, ResourceUsage, TrialSpan
from tune_policies.values.resources import Resources

pytestmark = pytest.mark.ci

GIB = 2**30
PRINTABLE = "a[bold]b[/red]:smile: ##[add-mask]c $x_$ <script>alert(1)</script> |`"
HOSTILE = (
    f"{PRINTABLE}\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\u2028\u200b\x00\n::add-mask::d\r\nFORGED.yaml:1: error"
)
LONG = "a" * 100_000
JOB = "python a.py  # {{ .x }}: [&b c] !!python/object:os.system \"x\" 'y'\nspec: {evil: true}\n--- \n%A"
STYLE = re.compile(r"\x1b\[[0-9;]*m")

SECRET = "hunter2hunter2"


def _manifest(name):
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": {name: name}},
        "spec": {
            name: 1,
            "rayVersion": name,
            "headGroupSpec": {
                "rayStartParams": {name: name, "num-gpus": name},
                "template": {"spec": {"containers": [{"name": "a", "image": name, name: 1}]}},
            },
            "workerGroupSpecs": [
                {
                    "groupName": name,
                    "replicas": 3,
                    "minReplicas": 5,
                    "maxReplicas": 4,
                    "rayStartParams": {"resources": name},
                    "template": {
                        "spec": {
                            "nodeSelector": {name: name},
                            "containers": [
                                {"name": "a", "image": name, "resources": {"limits": {"cpu": 2, name: name}}}
                            ],
                        }
                    },
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a valid file of each kind that contains hostile names, and files with hostile file names."""
    folder = tmp_path_factory.mktemp("hostile")
    _write_files(folder, HOSTILE, PRINTABLE)
    return folder


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory):
    """Return a folder with the same files, but with names of 100,000 characters."""
    folder = tmp_path_factory.mktemp("long")
    _write_files(folder, LONG, LONG)
    return folder


def _write_files(folder, name, printable):
    def write(file, text):
        (folder / file).write_text(text, encoding="utf-8")

    named = {"custom": {name: 2}, "labels": {name: name}}
    node = gpu_node("n", gpus=2, cpus=4, accelerator_type=name, **named).model_copy(
        update={"devices": (GpuDevice(index=0, name=name, memory_bytes=GIB),) * 2, "address": name}
    )
    more = NodeTypeCapacity(
        name=name, resources=Resources(cpus=8, custom={name: 1}), labels={name: name}, max_nodes_to_add=3
    )
    write("capacity.json", ClusterCapacity(nodes=(node,), node_types=(more,)).to_json())
    write("policy.yaml", "kind: AutoscalingPolicy\ninner: {kind: GpuPolicy, gpus: 0.3}\n")
    write("greedy.yaml", yaml.safe_dump({"kind": "GpuPolicy", "custom": {name: 7}}))
    write("typed.yaml", yaml.safe_dump({"kind": "GpuPolicy", "accelerator_type": name}))
    write("kind.yaml", yaml.safe_dump({"kind": name, name: 1}))
    write("fields.yaml", yaml.safe_dump({"kind": "GpuPolicy", name: name}))
    write("nodes.yaml", yaml.safe_dump({"nodes": [{"name": name, "cpus": 4, name: 1}]}))
    write("manifest.yaml", yaml.safe_dump(_manifest(name)))
    write("cluster.yaml", yaml.safe_dump({"available_node_types": {name: {"resources": {name: name}}}}))
    write("values.yaml", yaml.safe_dump({"image": {"tag": name}, "worker": {name: 1}, name: {}}))
    write("prices.yaml", yaml.safe_dump({"date": "2026-01-01", "cpu": 1, "gpus": {name: 1}, "currency": name}))
    write("::add-mask::e.yaml", "a: [")
    write("\nFORGED.yaml:1: error\x1b[2J.yaml", "a: [")
    _write_run(folder, name, printable)
    trial = folder / "run" / name.replace("/", "").replace("\0", "")[:200]
    trial.mkdir(parents=True)
    usage = GpuMemoryUsage(
        gpus=0.5, share_bytes=8 * GIB, peak_reserved_bytes=GIB, share_kept=False, warnings=(name,),
        not_enforceable=(name,), limit_bytes={name: GIB, "torch": GIB},
    )  # fmt: skip
    (trial / "result.json").write_text(json.dumps({"gpu_memory": usage.model_dump(mode="json")}) + "\n")
    span = TrialSpan(trial=name, slot=name, place=0, began_s=0, ended_s=5, end="failed", error=name)
    plans = (PlanInUse(at_s=0, why="", text=name), PlanInUse(at_s=1, why=name, text=name))
    idle = (IdleHours(reason=name, hours=2),)
    resources = (ResourceHours(resource=name, total_hours=4, used_hours=2, idle=idle),)
    record = ResourceUsage(elapsed_s=9, spans=(span,), plans=plans, resources=resources, warnings=(name,))
    (folder / "run" / "resource_usage.json").write_text(record.to_json())


def _write_run(folder, name, printable):
    gpu = Configuration(workload=printable, size=16, device="gpu")
    failure = Failure(configuration=gpu, round=0, kind="raised", message=name)
    runs = [process(printable, 16, device, number, warnings=(name,)) for device in ("cpu", "gpu") for number in (0, 1)]
    run = a_run(runs=runs, failures=(failure,), command=name)
    environment = run.environment.model_copy(update={"cpu_model": name, "versions": {name: name}})
    write_run_set(run.model_copy(update={"environment": environment}), folder / "run.json")
    decision = a_decision(printable).model_copy(update={"cpu_model": name, "price_source": name})
    (folder / "decision.json").write_text(decision.to_json())
    packing = a_packing_record(printable).model_copy(update={"machine": name, "failures": (name,), "gpu": name})
    (folder / "packing.json").write_text(packing.to_json())


def invoke(folder, monkeypatch, line, *, environment=None, name=HOSTILE):
    app, line = (benchmarks, line.removeprefix("bench ")) if line.startswith("bench ") else (tune_policies, line)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "3000")
    named = {"HOSTILE": name, "JOB": JOB, "PATH": name.replace("\0", "")}
    arguments = [named.get(each, each) for each in line.split(" ")]
    arguments = [
        next(map(str, folder.glob(each))).removeprefix(f"{folder}/") if "*" in each else each for each in arguments
    ]
    return CliRunner().invoke(app, arguments, env=environment)


COMMANDS = {
    "plan policy.yaml --cluster capacity.json": (0, True),
    "plan policy.yaml --cluster capacity.json --json": (0, True),
    "plan greedy.yaml --cluster capacity.json": (1, True),
    "plan typed.yaml --cluster capacity.json": (2, True),
    "plan kind.yaml --cluster capacity.json": (2, True),
    "plan fields.yaml --cluster capacity.json": (2, True),
    "plan PATH --cluster capacity.json": (2, True),
    "plan policy.yaml --cluster manifest.yaml": (2, True),
    "plan policy.yaml --cluster cluster.yaml": (2, True),
    "plan policy.yaml --cluster values.yaml": (2, False),
    "kuberay design policy.yaml --num-trials 2 --nodes nodes.yaml": (2, True),
    "kuberay design policy.yaml --num-trials 2 --name HOSTILE": (2, True),
    "kuberay design policy.yaml --num-trials 2 --platform HOSTILE": (2, False),
    "kuberay design policy.yaml --num-trials 2 --workload HOSTILE --decision decision.json": (2, True),
    "kuberay lint manifest.yaml cluster.yaml values.yaml": (1, True),
    "kuberay lint manifest.yaml cluster.yaml values.yaml --json": (1, True),
    "kuberay lint ::add-mask::e.yaml *FORGED*": (1, False),
    "kuberay lint PATH": (1, True),
    "usage run": (0, True),
    "usage run --json": (0, True),
    "usage run --html run.html --force": (0, False),
    "kuberay design policy.yaml --num-trials 2 --min-nodes HOSTILE": (2, True),
    "kuberay design policy.yaml --num-trials 2 --image HOSTILE": (2, True),
    "kuberay design policy.yaml --num-trials 2 --namespace HOSTILE": (2, True),
    "usage PATH": (2, True),
    "probe --address HOSTILE": (2, True),
    "doctor --address HOSTILE": (2, True),
    "HOSTILE": (2, True),
    "bench show run.json": (0, True),
    "bench show run.json --json": (0, True),
    "bench show PATH": (2, True),
    "bench export run.json --format csv": (0, True),
    "bench export run.json --format json": (0, True),
    "bench compare run.json": (0, True),
    "bench decide run.json --steps-per-trial 9 --cluster capacity.json": (None, True),
    "bench decide run.json --steps-per-trial 9 --cluster capacity.json --prices prices.yaml": (2, True),
    "bench report run.json --decision decision.json --packing packing.json --output report.html --force": (0, False),
    "bench plot run.json --output figure.svg --force": (0, False),
    "bench run HOSTILE": (2, True),
    "bench packing HOSTILE": (2, True),
}  # fmt: skip
"""The exit status of each command (``None`` allows 0 and 1), and whether the command prints a hostile name."""


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("colored", [False, True], ids=["plain", "colored"])
def test_a_hostile_name_is_printed_as_plain_text(folder, monkeypatch, line, colored):
    status, shows_a_name = COMMANDS[line]

    done = invoke(folder, monkeypatch, line, environment={"FORCE_COLOR": "1"} if colored else None)

    assert isinstance(done.exception, SystemExit | None), done.exc_info
    assert done.exit_code == status or (status is None and done.exit_code in (0, 1)), done.output
    for text in (done.stdout, done.stderr):
        _check_is_text(STYLE.sub("", text) if colored else text)
    if shows_a_name and not colored:
        assert "[bold]b[/red]:smile:" in done.output.replace("\\\\", "\\"), done.output


def _check_is_text(text):
    assert [each for each in text if each not in "\n\t" and not each.isprintable()] == []
    for each in text.split("\n"):
        assert not each.strip().startswith("::"), each
        assert "##[" not in each, each
        assert not each.startswith("FORGED"), text


WRITING = (
    "plan INPUT --cluster INPUT --nodes INPUT --plot OUTPUT",
    "plan INPUT --cluster-config INPUT --plot OUTPUT",
    "kuberay design INPUT --num-trials 2 --nodes INPUT --decision INPUT --runtime-env INPUT --output OUTPUT",
    "usage run --html OUTPUT",
    "usage run --plot OUTPUT",
    "bench plot INPUT --output OUTPUT",
    "bench export INPUT --format csv --output OUTPUT",
    "bench export INPUT --format json --output OUTPUT",
    "bench decide INPUT --steps-per-trial 9 --cluster INPUT --prices INPUT --packing INPUT --output OUTPUT",
    "bench report INPUT --decision INPUT --packing INPUT --output OUTPUT",
)
"""Every command that writes a file. The test uses each INPUT of a command as its OUTPUT."""


@pytest.mark.parametrize(
    ("line", "number"), [(line, number) for line in WRITING for number in range(max(1, line.count("INPUT")))]
)
def test_no_command_replaces_its_input_even_with_force(folder, tmp_path, monkeypatch, line, number):
    shutil.copytree(folder / "run", tmp_path / "run")
    names = [f"input{index}.svg" for index in range(line.count("INPUT"))] or ["run/resource_usage.json"]
    for name in names if "INPUT" in line else ():
        (tmp_path / name).write_text("<svg></svg>")
    before = (tmp_path / names[number]).read_bytes()
    for name in names:
        line = line.replace("INPUT", name, 1)

    done = invoke(tmp_path, monkeypatch, f"{line.replace('OUTPUT', names[number])} --force")

    assert (done.exit_code, (tmp_path / names[number]).read_bytes()) == (2, before)
    assert f"{names[number]} is an input of this command. Choose another output file" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "plan policy.yaml --cluster capacity.json --plot kept.svg",
        "kuberay design policy.yaml --num-trials 2 --output kept.yaml",
        "usage run --html kept.html",
        "bench plot run.json --output kept.svg",
        "bench export run.json --format csv --output kept.csv",
        "bench report run.json --output kept.html",
    ],
)
def test_a_command_replaces_a_file_only_with_force(folder, monkeypatch, line):
    output = folder / line.rpartition(" ")[2]
    output.unlink(missing_ok=True)
    first = invoke(folder, monkeypatch, line)
    output.write_text(mine := output.read_text() + "\n")

    second = invoke(folder, monkeypatch, line)
    kept = output.read_text()
    third = invoke(folder, monkeypatch, f"{line} --force")

    assert (first.exit_code, second.exit_code, third.exit_code) == (0, 2, 0), third.output
    assert f"{output.name} already exists" in second.stderr
    assert kept == mine != output.read_text()


RESULTS = ("--json", "--format", "kuberay design policy.yaml")
"""A command that contains one of these texts prints data, such as JSON, on stdout instead of messages."""


@pytest.mark.parametrize("line", COMMANDS)
def test_a_long_name_is_shortened_in_every_message(long_folder, monkeypatch, line):

    done = invoke(long_folder, monkeypatch, line, name=LONG)

    assert isinstance(done.exception, SystemExit | None), done.exc_info
    for text in (done.stderr, *([] if any(each in line for each in RESULTS) else [done.stdout])):
        assert len(max(re.findall("a+", text), key=len, default="")) < 1000
        assert len(text) < 30_000


@pytest.mark.parametrize("page", ["report.html", "figure.svg", "run.html"])
def test_a_hostile_name_is_escaped_on_a_page_and_in_a_figure(folder, monkeypatch, page):
    inputs = "run.json --decision decision.json --packing packing.json"
    line = {
        "report.html": f"bench report {inputs} --output report.html --force",
        "figure.svg": "bench plot run.json --output figure.svg --force",
        "run.html": "usage run --html run.html --force",
    }[page]

    assert invoke(folder, monkeypatch, line).exit_code == 0

    text = (folder / page).read_text(encoding="utf-8")
    assert [each for each in text if each not in "\n\t" and not each.isprintable()] == []
    assert "<script>alert" not in text
    assert not page.endswith(".html") or "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    if page != "run.html":  # the plan on this page has several lines
        assert "FORGED.yaml" not in [line.strip()[:11] for line in text.split("\n")]


def test_a_hostile_job_command_is_quoted_in_a_manifest(folder, monkeypatch):
    done = invoke(folder, monkeypatch, "kuberay design policy.yaml --num-trials 2 --image me/a:1 --job JOB")

    (manifest,) = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert manifest["spec"]["entrypoint"] == JOB


def test_json_on_stdout_contains_the_unchanged_data(folder, monkeypatch):
    done = invoke(folder, monkeypatch, "kuberay lint manifest.yaml --json")

    messages = [found["message"] for found in json.loads(done.stdout)["findings"]]
    assert any("\u202e" in each or r"\u202e" in each for each in messages)


BAD = {
    "settings": f"PASSWORD={SECRET}\nurl: [http://user:{SECRET}@host\n".encode(),
    "a list": f"[{SECRET!r}]".encode(),
    "lone surrogates": b'{"kind": "\\ud800", "a\\udfff": 1}',
    "a run of absurd numbers": b"RUN",
    "a capacity of absurd numbers": b'{"nodes": [{"node_id": "a", "resources": {"cpus": 1e308, "gpus": 1e300}}]}',
    "an invalid date": b'{"read_at": "99999-99-99", "measured_at": 1e300, "created_at": -1e300}',
}
"""Invalid files. ``tests/unit/test_hostile_files.py`` tests more invalid files."""
READ_BY = [
    "plan BAD --cluster capacity.json",
    "plan policy.yaml --cluster BAD",
    "plan profile.yaml --cluster capacity.json",
    "plan decision.yaml --cluster capacity.json",
    "kuberay design BAD --num-trials 1",
    "kuberay design policy.yaml --num-trials 1 --nodes BAD",
    "kuberay design policy.yaml --num-trials 1 --decision BAD",
    "kuberay lint BAD",
    "usage badrun",
    "bench show BAD",
    "bench export BAD --format csv",
    "bench plot BAD --output out.svg",
    "bench compare BAD",
    "bench report BAD --output out.html",
    "bench report run.json --decision BAD --output out.html",
    "bench report run.json --packing BAD --output out.html",
    "bench decide BAD --steps-per-trial 1 --cluster capacity.json",
    "bench decide run.json --steps-per-trial 1 --cluster BAD",
    "bench decide run.json --steps-per-trial 1 --cluster capacity.json --prices BAD",
    "bench decide run.json --steps-per-trial 1 --cluster capacity.json --packing BAD",
    "bench run --resume BAD",
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("line", READ_BY)
def test_the_output_for_an_invalid_file_does_not_quote_its_content(folder, monkeypatch, line, bad):
    content = BAD[bad]
    if content == b"RUN":
        content = re.sub(
            rb'"(seconds|first_epoch_s|size|num_steps)": ?[\d.e-]+',
            rb'"\1":1e308',
            (folder / "run.json").read_bytes(),
        )
    (folder / "BAD").write_bytes(content)
    (folder / "profile.yaml").write_text("{kind: GpuMemoryPolicy, profile: BAD}")
    (folder / "decision.yaml").write_text(
        "{kind: BenchmarkedPolicy, decision: BAD, gpu: {kind: GpuPolicy}, cpu: {kind: CpuPolicy}}"
    )
    (folder / "badrun" / "t").mkdir(parents=True, exist_ok=True)
    (folder / "badrun" / "t" / "result.json").write_bytes(content)

    done = invoke(folder, monkeypatch, line)

    assert isinstance(done.exception, SystemExit | None), done.exc_info
    assert SECRET not in done.output
    _check_is_text(done.output)
    if line.split()[0] not in ("usage", "kuberay"):
        assert done.exit_code in (1, 2), done.output
        assert done.stderr.count("error: ") == 1
