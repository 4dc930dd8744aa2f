"""Advice in messages about files that cannot be read or written, or whose content is wrong."""

import contextlib
from pathlib import Path

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.commands_in_folder import command, folder, in_folder
from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.reading import read_bytes
from tune_policies.files.svg import Picture
from tune_policies.files.writing import locked
from tune_policies.files.yaml_documents import read_documents


def lock(*names):
    """Lock files one within the other."""
    with folder(), contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(locked(Path(name)))


OF_PACKAGES = (
    "a package that is missing or new: tests/package/benchmarks/test_run_command.py and tests/package/test_wheel.py"
)

ROWS = [
    Row("in_folder(lambda: read_bytes('.'))", "Choose a file in it", "in_folder(lambda: read_bytes('./gpu.yaml'))"),
    Row("read_bytes('/dev/null')", "Save its content in a regular file", "in_folder(lambda: read_bytes('gpu.yaml'))"),
    Row(
        "in_folder(lambda: (Path('gpu.yaml').chmod(0o666), read_bytes('gpu.yaml', by_others=False)))",
        "Delete the file, or run `chmod go-w` on it",
        "in_folder(lambda: (Path('gpu.yaml').chmod(0o644), read_bytes('gpu.yaml', by_others=False)))",
    ),
    Row(
        "in_folder(lambda: read_bytes('old.txt', max_bytes=2))",
        "it has more than 2 bytes. Remove unneeded parts",
        "in_folder(lambda: read_bytes('old.txt', max_bytes=2), old_txt='m')",
    ),
    Row("parse_data('a: 1\\n---\\nb: 2', '')", "Split the file", "parse_data('a: 1', ''), parse_data('b: 2', '')"),
    Row("parse_data('a: 1\\na: 1', '')", "Keep only one of the keys", "parse_data('a: 1', '')"),
    Row('parse_json(\'{"a": 1, "a": 2}\')', "Keep only one of the keys", "parse_json('{\"a\": 1}')"),
    Row("read_documents('a: 1\\na: 2', '')", "Keep only one of the keys", "read_documents('a: 1', '')"),
    Row("parse_json('[1, 2, 3]', max_parts=2)", "Remove unneeded parts", "parse_json('[1, 2]', max_parts=2)"),
    Row(
        "parse_json('{' + ', '.join(f'\"{key}\": 1' for key in range(100_001)) + '}')",
        "Remove unneeded keys",
        "parse_json('{' + ', '.join(f'\"{key}\": 1' for key in range(100_000)) + '}')",
    ),
    Row(
        "read_documents('a: 1 # ' + 'x' * 10_000_000, '')",
        "characters. Remove unneeded parts",
        "read_documents('a: 1', '')",
    ),
    Row("read_documents('--- 1\\n' * 20_000, '')", "Remove unneeded documents", "read_documents('--- 1\\n' * 9, '')"),
    Row("read_documents('a: !x 1', '')", "is not supported. Remove it", "read_documents('a: 1', '')"),
    Row("read_documents('a: !x [1]', '')", "is not supported. Remove it", "read_documents('a: [1]', '')"),
    Row("read_documents('a:\\n\\tb: 1', '')", "Use spaces", "read_documents('a:\\n  b: 1', '')"),
    Row(
        "read_documents('{{ .Values }}: 1', '')",
        "for a Helm chart, use the output of `helm template`",
        "read_documents('values: 1', '')",
    ),
    Row(
        "read_documents('a: b: {{ .c }}', '')",
        "Use the output of `helm template`",
        "read_documents('a: 1', '')",
    ),
    Row(
        "in_folder(lambda: Picture('<svg/>').save('plan.png'))",
        "Choose a name that ends in .svg",
        "in_folder(lambda: Picture('<svg/>').save('plan.svg'))",
    ),
    Row("lock('old.txt', 'old.txt')", "or choose another file", "lock('old.txt', 'new.txt')"),
    Row(
        "command('plan listed.yaml --cluster cluster.json')",
        "is a price file, not a policy. Pass it as --prices to `bench decide`",
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json --prices listed.yaml')",
    ),
    Row(
        "command('plan cluster.json --cluster cluster.json')",
        "Pass it as --cluster to `plan` or `bench decide`",
        "command('plan gpu.yaml --cluster cluster.json'),"
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json')",
    ),
    Row(
        "command('plan catalog.yaml --cluster cluster.json')",
        "--nodes to `plan`, `bench decide` or `kuberay design`",
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml')",
    ),
    Row(
        "command('plan raycluster.yaml --cluster cluster.json')",
        "or as the argument of `kuberay lint`",
        "command('kuberay lint raycluster.yaml')",
    ),
    Row(
        "command('plan gpu.yaml --cluster gpu.yaml')",
        "Pass it as the argument of `plan` or `kuberay design`",
        "command('plan gpu.yaml --cluster cluster.json'),"
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot cluster.json')",
        "Choose another output file",
        "command('plan gpu.yaml --cluster cluster.json --plot plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg', old_svg='<svg/>')",
        "Choose another file, or pass --force to replace it",
        "command('plan gpu.yaml --cluster cluster.json --plot new.svg', old_svg='<svg/>'),"
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force', old_svg='<svg/>')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot no/plan.svg')",
        "Choose a file in an existing folder that is writable",
        "command('plan gpu.yaml --cluster cluster.json --plot ./plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force', old_svg='mine')",
        "Choose another file, or delete old.svg",
        "command('plan gpu.yaml --cluster cluster.json --plot new.svg --force', old_svg='mine'),"
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force')",
    ),
]

NAMES = {
    **named(Path, Picture, command, in_folder, lock, parse_data, parse_json, read_bytes, read_documents),
}

ELSEWHERE = {
    "pages require Jinja": OF_PACKAGES,
}

TABLE = AdviceTable(
    parts=("tune_policies/files",),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
