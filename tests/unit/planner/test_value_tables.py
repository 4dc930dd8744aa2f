"""Values are shown as tables in notebooks and terminals, and names in these tables are escaped."""

import json
import pickle
from html.parser import HTMLParser

import pytest
from rich.console import Console

from tests.clusters import GIB, gpu_node
from tests.decisions import a_decision
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    MixedPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, RunUsage, TrialGpuMemory
from tune_policies.trainers.usage.resource_usage import IdleHours, ResourceHours, ResourceUsage, SlotHours

HOSTILE = '<script>alert(1)</script>&"\N{RIGHT-TO-LEFT OVERRIDE}\x1b[31m[red]'
NODE = gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=80, accelerator_type="A100", memory_gib=64)


class Page(HTMLParser):
    """A parser that collects the tags and texts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.texts.append(data)


def in_notebook(value):
    return [text for text in Page(value._repr_html_()).texts if text.strip()]


def in_terminal(value):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(value)
    return capture.get()


def a_capacity(name="a"):
    node = NODE.model_copy(update={"node_id": name, "accelerator_type": name, "labels": {name: name}})
    kind = NodeTypeCapacity(name=name, resources=Resources(cpus=4, custom={name: 1}), max_nodes_to_add=2)
    return ClusterCapacity(nodes=(node,), node_types=(kind,))


def a_plan(name="zone"):
    selecting = SelectingPolicy(CpuPolicy(custom={name: 1}), label_selector={"zone": "eu"})
    capacity = ClusterCapacity(nodes=(gpu_node(name, gpus=0, cpus=4, custom={name: 2}, labels={"zone": "eu"}),))
    return selecting.plan(capacity).with_reasons(name)


def a_run_usage(name="t"):
    usage = GpuMemoryUsage(gpus=0.5, share_bytes=8 * GIB, peak_reserved_bytes=3 * GIB, limit_bytes={name: 1, "b": 2})
    return RunUsage(trials=(TrialGpuMemory(name=name, usage=usage),))


def a_usage(name="1 CPU"):
    hours = ResourceHours(resource=name, total_hours=2, used_hours=1, idle=(IdleHours(reason=name, hours=1),))
    return ResourceUsage(resources=(hours,), slots=(SlotHours(slot=name),), warnings=(name,))


@pytest.mark.parametrize("cpus", [2, 4], ids=["nothing is idle", "idle CPUs"])
def test_a_notebook_shows_the_explained_plan_as_its_table_with_the_sentences_about_idle_resources(cpus):
    capacity = ClusterCapacity.of(Resources(cpus=cpus, gpus=1), Resources(cpus=2, gpus=1))
    plan = GpuPolicy(cpus=2).plan(capacity)

    text = plan.explain(capacity)
    idle = text[len(plan.explain()) + 1 :]
    assert idle.startswith("nothing stays idle" if cpus == 2 else "stays idle:")

    assert in_notebook(text) == [*in_notebook(plan), *(line.strip() for line in idle.splitlines())]


def test_the_text_of_a_plan_is_a_string_that_other_processes_can_read():
    capacity = ClusterCapacity.of(Resources(cpus=4))
    text = CpuPolicy(cpus=3).plan(capacity).explain(capacity)

    again = pickle.loads(pickle.dumps(text))

    assert (again, json.loads(json.dumps(text))) == (text, text)
    assert again._repr_html_() == text._repr_html_()


SHOWN = [a_capacity, a_plan, a_run_usage, a_usage, lambda name="mlp": a_decision(workload=name)]
NAMES = ["capacity", "plan", "GPU memory", "usage", "decision"]


@pytest.mark.parametrize("value", SHOWN, ids=NAMES)
def test_a_value_has_the_same_texts_in_a_notebook_and_in_a_terminal(value):
    words = " ".join(in_notebook(value())).split()

    assert {*words} == {*in_terminal(value()).replace("─", " ").split()}
    assert {"table", "td"} <= Page(value()._repr_html_()).tags


@pytest.mark.parametrize("value", SHOWN, ids=NAMES)
def test_a_name_is_escaped_in_a_notebook_and_in_a_terminal(value):
    page = value(HOSTILE)._repr_html_()

    assert "script" not in Page(page).tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert {"\x1b", "\N{RIGHT-TO-LEFT OVERRIDE}"}.isdisjoint(page + in_terminal(value(HOSTILE)))


def test_a_plan_shows_a_row_per_slot_type_its_limit_and_its_reasons():
    plan = MixedPolicy(GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=10)).plan(ClusterCapacity(nodes=(NODE,)))

    title, *texts = in_notebook(plan)

    assert title == "6 trials at once, limited by CPU"
    assert texts[:4] == ["At once", "CPU", "GPU", "GPU memory"]
    assert texts[4:12] == ["4", "1", "0.5", "40 GiB", "2", "10", "0", "-"]
    assert "- CpuPolicy: each trial reserves 10 CPUs and no GPU" in texts


def test_a_decision_shows_the_size_from_which_a_gpu_is_worth_its_price():
    texts = in_notebook(a_decision("A100"))

    assert "Cheaper" not in texts
    assert "- mlp: in trials of 100 steps, the GPU is faster from size 64 on, but not clearly at 32" in texts
    assert "- measured on 2026-06-01 on a CPU and A100" in texts


def test_a_usage_is_printed_as_its_tables():
    usage = RunUsage(trials=(TrialGpuMemory(name="train_0", usage=GpuMemoryUsage(gpus=0.5, peak_reserved_bytes=GIB)),))

    text = str(usage)

    assert "train_0" in text
    assert "\x1b" not in text
    assert "TrialGpuMemory" not in text
