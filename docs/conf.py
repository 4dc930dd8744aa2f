"""Configures Sphinx, which builds the site from these pages (``make docs``).

The pages are Markdown that also renders on GitHub. Before a build, this module generates the other pages from the code:
one page for each public name, and the list of commands.
"""

import inspect
import json
import re
import textwrap
import typing
from importlib.metadata import metadata
from importlib.metadata import version as installed_version
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import typer
from docutils import nodes
from pygments.lexers import YamlLexer
from sphinx.util.typing import stringify_annotation

import tune_policies
from tests import version_records
from tune_policies import testing, trainers
from tune_policies.cli.main import app as commands
from tune_policies.values.value import Value

HERE = Path(__file__).parent

project = "tune-policies"
author = "the authors of tune-policies"
project_copyright = author
release = installed_version("tune-policies")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
templates_path = ["templates"]
nitpicky = True
# References to this project's names must resolve. References to other projects resolve if the inventory was downloaded.
nitpick_ignore_regex = [
    ("py:.*", r"(?!tune_policies\.).*"),
    ("py:class", r"tune_policies\..*T"),  # type variables
    # Types that only tests and other modules of this project pass or use
    ("py:class", r"tune_policies\..*\.(Autoscaler|CrdSet|NeededAmount|RunMonitor|_Trainer)"),
]

myst_enable_extensions = ["colon_fence", "html_image"]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes_action = "qe"  # quotes and ellipses; a dash would make an option such as --audit unusable
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "pydata_sphinx_theme"
html_title = f"{project} {release}"
html_favicon = "static/mark.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
repositories = [url for url in metadata(project).get_all("Project-URL", []) if url.startswith("Repository,")]
html_theme_options = {
    "logo": {
        "alt_text": project,
        "image_light": "static/wordmark-light.svg",
        "image_dark": "static/wordmark-dark.svg",
    },
    "navbar_start": ["navbar-logo", "version"],
    "icon_links": [
        {"name": "Repository", "url": url.partition(", ")[2], "icon": "fa-solid fa-code-branch"} for url in repositories
    ],
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    # These pages have no table of contents, because their wide tables need the space.
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "how-to/accelerators": [],
        **{f"evidence/{page}": [] for page in ("plans", "ray-guides", "ray-internals", "reliability", "tested")},
    },
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {
    page: []
    for page in ("index", "install", "tutorial", "concepts", "choose", "migrate", "faq", "support", "architecture")
}
html_show_sourcelink = False

autodoc_mock_imports = ["tensorflow"]  # importing TensorFlow takes seconds and prints warnings
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# ---- Names of other projects -----------------------------------------------------------------------------------------

INVENTORIES = HERE.parent / "build" / "inventories"
OTHERS = {
    "python": "https://docs.python.org/3",
    "ray": "https://docs.ray.io/en/latest",
    "torch": "https://docs.pytorch.org/docs/stable",
}


def _inventories():
    """Yield the name, address and inventory file of each project. Omit projects that cannot be reached."""
    INVENTORIES.mkdir(parents=True, exist_ok=True)
    for name, url in OTHERS.items():
        kept = INVENTORIES / f"{name}.inv"
        if not kept.exists():
            try:
                with urlopen(f"{url}/objects.inv", timeout=5) as answer:  # noqa: S310 - the addresses are constants
                    kept.write_bytes(answer.read())
            except OSError:
                continue
        yield name, (url, str(kept))


intersphinx_mapping = dict(_inventories())

# ---- The public names ------------------------------------------------------------------------------------------------

PUBLIC = {
    name: f"{package.__name__}.{name}" for package in (testing, trainers, tune_policies) for name in package.__all__
}
"""The documented path of each public name. Names that several packages export are documented in ``tune_policies``."""


def _is_value(found):
    return inspect.isclass(found) and issubclass(found, Value)


def _signature_of_value(app, what, name, found, options, signature, returns):
    """Return the signature of a value class: its fields and defaults. Pydantic's also shows validators."""
    if not _is_value(found):
        return None
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(found).parameters.values()
    ]
    shown = str(inspect.Signature(parameters))
    return shown.replace("=<factory>", "={}"), None


def _types_of_fields(app, what, name, found, options, lines):
    """Document the fields of a value class as arguments with their types, such as ``cpus (float | None): …``."""
    if what == "property":
        lines.insert(0, "")  # otherwise napoleon parses the text before a colon as the type
    if not _is_value(found):
        return
    types = {field: info.annotation for field, info in found.model_fields.items()}
    hints = typing.get_type_hints(SimpleNamespace(__annotations__=types))  # without the validators
    for number, line in enumerate(lines):
        if line == "Attributes:":
            lines[number] = "Args:"
        if (field := re.match(r"    (\w+): ", line)) and field[1] in types:
            shown = stringify_annotation(hints[field[1]], "smart").replace("~", "")
            shown = re.sub(r"\b[\w.]+\.(\w+)\b", r"\1", shown)
            lines[number] = f"    {field[1]} ({shown}): {line[field.end() :]}"


GUIDES = {
    "AutoPolicy": "how-to/policies",
    "CpuPolicy": "how-to/tune",
    "GpuPolicy": "how-to/tune",
    "GpuMemoryPolicy": "how-to/gpu-memory",
    "AcceleratorPolicy": "how-to/accelerators",
    "EvenSplitPolicy": "how-to/right-size",
    "LearningPolicy": "how-to/learning",
    "GrowingPolicy": "how-to/learning",
    "MixedPolicy": "how-to/mixed-clusters",
    "FirstFeasiblePolicy": "how-to/mixed-clusters",
    "FreeCapacityPolicy": "how-to/shared-gpus",
    "BenchmarkedPolicy": "how-to/benchmarks",
    "ByConfigPolicy": "how-to/mixed-clusters",
    "CappedPolicy": "how-to/tune",
    "ReservingPolicy": "how-to/shared-gpus",
    "SelectingPolicy": "how-to/mixed-clusters",
    "AutoscalingPolicy": "how-to/autoscaling",
    "PolicyScheduler": "how-to/tune",
    "OomRetryScheduler": "how-to/out-of-memory",
    "PolicyCallback": "how-to/usage",
}
"""The guide of each policy and scheduler."""

METHODS_OF_POLICIES = (
    "``policy.plan(capacity)`` returns the :class:`~tune_policies.TrialPlan` for a cluster, and ``policy | other`` "
    "falls back to another policy if the first is infeasible."
)


def _examples():
    """Return the example of each name, as lines."""
    text = (HERE / "reference" / "examples.txt").read_text()
    parts = re.findall(r"^\[(\w+)\]$(.*?)(?=^\[\w+\]$|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: example.strip().splitlines() for name, example in parts}


EXAMPLES = _examples()


def _add_example(app, what, name, found, options, lines):
    """Add the example of a public name, and for policies also their methods and their guide."""
    public = name.rpartition(".")[2]
    if what not in ("class", "function", "exception") or public not in EXAMPLES:
        return
    if public == "PolicyScheduler":
        _move_options_first(lines)
    lines += ["", "Example:", *(f"    {line}" for line in EXAMPLES[public]), ""]
    if inspect.isclass(found) and issubclass(found, tune_policies.ResourcePolicy):
        lines += [METHODS_OF_POLICIES, ""]
    if public in GUIDES:
        lines += [f"Guide: :doc:`/{GUIDES[public]}`", ""]


def _move_options_first(lines):
    """Move the section with the options after the first sentence."""
    begin = lines.index("Args:")
    end = next(number for number in range(begin + 1, len(lines)) if lines[number][:1].strip())
    options = lines[begin:end]
    del lines[begin:end]
    lines[2:2] = options


INTERNAL = {"around", "use_options_of", "set_search_properties", "choose_trial_to_run"}
"""The methods of ``PolicyScheduler`` that only Tune and this package call."""


def _skip(app, what, name, found, skip, options):
    """Skip pydantic's settings and internal methods, and the fields of named tuples, which the docstring describes."""
    of_scheduler = getattr(found, "__qualname__", "").startswith("PolicyScheduler.")
    is_internal = of_scheduler and name in INTERNAL
    is_field = type(found).__name__ == "_tuplegetter"
    return True if name == "model_config" or is_field or is_internal else None


def _link_to_public_name(app, env, node, target):
    """Link a type to the page of its public name, even if it is defined in another module."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in PUBLIC:
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", PUBLIC[name], node, target)


# ---- Search and descriptions -----------------------------------------------------------------------------------------

MAINTAINERS_PAGES = (
    "architecture",
    *(f"evidence/{page}" for page in ("audit", "plain-tune", "ray-guides", "ray-internals", "reliability", "tested")),
)
"""Pages that search does not find. They contain every term, so they would hide the pages for users."""

KEYWORDS = {
    "how-to/benchmarks": "speedup, faster, throughput, price, cost",
    "how-to/gpu-memory": "share, fractional, oversubscribe, co-locate, packing",
    "how-to/learning": "autotune, automatic, unknown, right-sizing, rightsizing",
    "how-to/notebooks": "Jupyter, JupyterLab, ipynb, IPython, Colab, VSCode, kernel",
    "how-to/out-of-memory": "OOM, CUDA, crash, killed, retry",
    "how-to/plain-tune-failures": "OOM, hang, hangs, stuck, crash, killed, deadlock",
    "how-to/right-size": "OOM, CUDA, estimate, how much",
    "how-to/symptoms": "stuck, hang, hangs, frozen, pending, slow, idle, OOM, crash, killed, deadlock, problem",
    "how-to/trackers": "MLflow, wandb, TensorBoard, artifact, artefact, logging, Comet, Neptune",
    "how-to/train-in-tune": "deadlock, hang, stuck, DDP, distributed",
    "how-to/usage": "utilisation, utilization, underutilised, underutilized, idle, monitor, monitoring, nvidia-smi",
}
"""Further words by which search finds a page: other spellings, symptoms and names of products."""

DESCRIPTION_LENGTH = 160
"""The number of characters of a description that search engines show."""


def _hide_maintainers_pages(app, env):
    for page in MAINTAINERS_PAGES:
        env.metadata[page]["no-search"] = ""


def _add_meta(app, doctree):
    """Add the keywords of a page, and its first paragraph as its description."""
    page = app.env.docname
    paragraph = next((node for node in doctree.findall(nodes.paragraph) if node.parent.tagname == "section"), None)
    if paragraph is not None:
        text = " ".join(paragraph.astext().split())
        doctree.insert(0, nodes.meta(name="description", content=textwrap.shorten(text, DESCRIPTION_LENGTH)))
    if page in KEYWORDS:
        doctree.insert(0, nodes.meta(name="keywords", content=KEYWORDS[page]))


# ---- The commands ----------------------------------------------------------------------------------------------------


def _write_generated(app):
    text = "\n".join(_command(typer.main.get_command(commands), "tune-policies", level=2))
    _write_if_changed("commands.inc", text)
    _write_if_changed("versions.inc", version_records.table(json.loads(version_records.RECORDS.read_text())))


def _write_if_changed(name, text):
    """Write a file that a page includes. Sphinx parses the page again only if the file has changed."""
    file = HERE / "reference" / "generated" / name
    file.parent.mkdir(exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def _command(command, name, level):
    """Yield the Markdown lines that document a command and its subcommands."""
    context = typer.Context(command, info_name=name)
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    yield f"{'#' * level} {name}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    arguments = [(each.name.upper(), each.help) for each in command.params if each.param_type_name == "argument"]
    hidden = () if level == 2 else ("install_completion", "show_completion")
    shown = [each for each in command.params if each.param_type_name == "option" and each.name not in hidden]
    options = [each.get_help_record(context) for each in shown]
    rows = [f"| `{_cell(usage)}` | {_cell(text or '')} |" for usage, text in (*arguments, *filter(None, options))]
    yield from ["| Argument or option | Meaning |", "|---|---|", *rows, ""] if rows else []
    for each in names:
        yield from _command(command.get_command(context, each), f"{name} {each}", level=min(level + 1, 4))


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def setup(app):
    """Connect the functions of this module to Sphinx's events."""
    app.add_lexer("json", YamlLexer)  # the JSON lexer rejects the comment with the file name
    app.connect("builder-inited", _write_generated)
    app.connect("env-updated", _hide_maintainers_pages)
    app.connect("doctree-read", _add_meta)
    app.connect("autodoc-process-signature", _signature_of_value)
    app.connect("autodoc-process-docstring", _add_example, priority=300)
    app.connect("autodoc-process-docstring", _types_of_fields, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _link_to_public_name)
