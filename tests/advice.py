"""Finds the messages with an advice in the code, and follows the advice of a message.

A table contains a row for each message: code with the mistake, the advice that its message contains, and code that
follows the advice. The same code finds advices that are in no row. The clusters and names that several tables use are
here too.
"""

import ast
import contextlib
import functools
import io
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ray import tune

import tune_policies
from tests.clusters import GIB
from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, Resources

ROOT = Path(__file__).parents[1]

CPUS = ClusterCapacity.of(Resources(cpus=4, memory_bytes=8 * GIB))
UNREAD = ClusterCapacity.of(Resources(cpus=4, gpus=1))
TYPED = ClusterCapacity(
    nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), accelerator_type="A100"),)
)
ONE_GPU = ClusterCapacity(
    nodes=(
        NodeCapacity(
            node_id="a",
            resources=Resources(cpus=4, gpus=1),
            devices=(GpuDevice(index=0, name="GPU", memory_bytes=16 * GIB),),
        ),
    )
)


def named(*values):
    """Return functions and classes by their names, for the code of a table."""
    return {value.__name__: value for value in values}


SHARED = {
    **{name: getattr(tune_policies, name) for name in tune_policies.__all__},
    "CPUS": CPUS,
    "ONE_GPU": ONE_GPU,
    "SLICE": {"resource": "TPU", "topology": "4x4", "accelerator_type": "TPU-V6E"},
    "TYPED": TYPED,
    "UNREAD": UNREAD,
    "tune": tune,
    "tune_policies": tune_policies,
}
"""Names that the code of several tables uses."""


class Row(NamedTuple):
    """A mistake as code, the advice that its message contains, and the code that follows the advice."""

    mistake: str
    advice: str
    code: str


class AdviceTable(NamedTuple):
    """The rows for the messages in some folders or modules of the code.

    Attributes:
        parts: The folders, modules and patterns of modules, relative to the root of the repository.
        elsewhere: Parts of messages that are in no row, and what following their advice requires.
        names: The names that the code of the rows uses.
    """

    parts: Sequence[str]
    rows: Sequence[Row]
    elsewhere: Mapping[str, str]
    names: Mapping[str, object]


def message_of(code, names):
    """Return what ``code`` says: the error, or the texts in its result, and what it prints, warns and logs."""
    key = (id(names), code)
    if key not in _messages:
        said = io.StringIO()
        try:
            said.write(_run(code, names, said))
        except Exception as error:  # noqa: BLE001  # of several types
            said.write(str(error))
        _messages[key] = said.getvalue()
    return _messages[key]


_messages = {}
"""The messages of mistakes, because each is needed for its own row and for the search for missing rows."""


def follow(row, names):
    """Assert that the message of the mistake contains the advice, and that code that follows it works without it."""
    message = message_of(row.mistake, names)
    said = io.StringIO()
    assert row.advice in message
    said.write(_run(row.code, names, said))  # raises the error of an advice that does not work
    followed = said.getvalue()
    assert row.advice not in followed


def _run(code, names, said):
    log = logging.StreamHandler(said)
    loggers = [logging.getLogger(name) for name in ("tune_policies", "trainers", "benchmarks")]
    for logger in loggers:
        logger.addHandler(log)
    try:
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            result = eval(code, dict(names))  # the code is in the tables of the tests
    finally:
        for logger in loggers:
            logger.removeHandler(log)
        said.writelines(f"{warning.message}\n" for warning in caught)
    texts = result if isinstance(result, tuple) else (result,)
    return "\n".join(text for text in texts if isinstance(text, str))


_VERBS = (
    "add|append|call|change|check|choose|close|connect|continue|cool|create|declare|define|delete|disable|enable|end|"
    "enlarge|free|get|give|import|increase|install|keep|label|limit|list|lock|lower|make|measure|mount|move|omit|open|"
    "pass|pipe|plan|provide|put|raise|reduce|remove|rename|replace|request|reserve|restart|resume|reuse|run|save|"
    "select|set|split|start|state|stop|try|unset|update|upgrade|use|wait|write"
)
_CAPITALIZED = "|".join(verb.capitalize() for verb in _VERBS.split("|"))
_ADVICE = re.compile(
    rf"(?:^|[.:?] )(?:{_CAPITALIZED})\b|^(?:{_VERBS}) |"
    rf"[:;,?] (?:(?:or|and|either|so|then) )?(?:{_VERBS})[ :]|did you mean"
)

_NOT_ADVICE = (
    "Limit | str",
    "Plan: …",
    "Run …",
    "Free \\(according",
    "Plan and slots",
    "Run it again",
    "import ray, sys;",
    "limit set to",
    "lower center",
    "list of GPUs",
    "plan must be the TrialPlan",
    "plan with mps",
    "run set",
    "state of the optimizer",
)
"""Parts of texts in which such a word is not an imperative, such as a title or a pattern."""


@functools.cache
def texts_with_advice(*parts):
    """Return the texts in the code of folders and modules that contain an advice, with ``…`` for inserted values.

    Docstrings and the help of commands are omitted.
    """
    found = []
    for part in parts:
        for path in modules_of(part):
            texts = _texts_in(ast.parse(path.read_text()))
            found += [
                text for text in texts if " " in text and _ADVICE.search(text) and not text.startswith(_NOT_ADVICE)
            ]
    return list(dict.fromkeys(found))


def modules_of(part):
    """Return the paths of the modules in a folder and the folders in it, or of the modules with a name or pattern."""
    pattern = f"{part}/**/*.py" if (ROOT / part).is_dir() else part
    return sorted(ROOT.glob(pattern))


def _texts_in(node):
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    else:
        for part in ast.iter_child_nodes(node):
            is_docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            if not is_docstring and not _is_help(part):
                yield from _texts_in(part)


def _is_help(node):
    """Return whether ``node`` is the help of a command: a keyword, or a call of ``option`` or ``argument``."""
    if isinstance(node, ast.keyword):
        return node.arg == "help"
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("option", "argument")


def without_row(table):
    """Return the texts in the parts of a table that are in no message of its rows and in no key of ``elsewhere``."""
    messages = [message_of(row.mistake, table.names) for row in table.rows]
    missing = []
    for text in texts_with_advice(*table.parts):
        is_elsewhere = any(part in text for part in table.elsewhere)
        if not is_elsewhere and not any(is_of(text, message) for message in messages):
            missing.append(text)
    return missing


def outdated(table):
    """Return the keys of ``elsewhere`` that no text contains, and the files in its reasons that do not exist."""
    texts = texts_with_advice(*table.parts)
    keys = [part for part in table.elsewhere if not any(part in text for text in texts)]
    folder, missing = "", []
    for name in re.findall(r"tests/[\w/]+/|\btest_\w+\.py", " ".join(table.elsewhere.values())):
        if name.endswith("/"):
            folder = name
        elif not (ROOT / folder / name).is_file():
            missing.append(folder + name)
    return keys + sorted(set(missing))


def is_of(template, message):
    """Return whether ``message`` may have been built from ``template``."""
    pattern = ".*?".join(map(re.escape, template.split("…")))
    return re.search(pattern, message, re.DOTALL | re.IGNORECASE) is not None  # a hint may begin a sentence
