"""Each advice in a message works as it is written. The messages are in the tables of ``tests/advice_tables``."""

import pytest

from tests.advice import ROOT, follow, modules_of, outdated, texts_with_advice, without_row
from tests.advice_tables import TABLES

pytestmark = pytest.mark.ci

ROWS = [
    pytest.param(row, table.names, id=f"{name}: {row.mistake}: {row.advice}")
    for name, table in TABLES.items()
    for row in table.rows
]


@pytest.mark.parametrize(("row", "names"), ROWS)
def test_an_advice_is_in_the_message_and_works(row, names):
    follow(row, names)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_message_with_an_advice_is_in_its_table_or_needs_more_than_this_process(table):
    assert without_row(table) == []


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_messages_that_are_followed_elsewhere_exist(table):
    assert outdated(table) == []


def test_every_module_with_an_advice_belongs_to_a_table():
    modules = {path for package in ("tune_policies", "trainers", "benchmarks") for path in modules_of(package)}
    of_tables = {path for table in TABLES.values() for part in table.parts for path in modules_of(part)}

    others = [str(path.relative_to(ROOT)) for path in sorted(modules - of_tables)]
    assert [name for name in others if texts_with_advice(name)] == []
