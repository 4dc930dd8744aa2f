"""Tests of the page about Ray's GPU guides: each statement refers to an existing page and test."""

import re

from tests.package.test_tested_page import ROOT, missing

PAGE = ROOT / "docs" / "evidence" / "ray-guides.md"
GUIDES = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
TITLES = ("Statement", "Page", "Test", "Status")
ROWS = [
    dict(zip(TITLES, line.split(" | "), strict=True))
    for guide in GUIDES
    for line in re.findall(r"^\| (?!Statement )(.+) \|$", guide, re.MULTILINE)
]
TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE.read_text())))
LINKS = sorted(set(re.findall(r"\]\(([^):]+)\)", PAGE.read_text())))
NONE = "\u2013"


def folders(row):
    return set(re.findall(r"`tests/(\w+)/", row["Test"]))


def is_backed(row):
    """Return whether the page and the tests in the row justify its status."""
    status, _, reason = row["Status"].partition(": ")
    has_page = row["Page"] != NONE
    match status:
        case "tested":
            return has_page and folders(row) == {"on_ray"}
        case "planned":
            return has_page and bool(folders(row)) and "on_gpu" not in folders(row)
        case "documented":
            return has_page and folders(row) <= {"on_gpu"}
        case "not covered":
            return bool(reason) and row["Test"] == NONE
    return False


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_test_on_the_page_of_guides_exists():
    assert missing(TESTS) == []


def leads_somewhere(link):
    path, _, section = link.partition("#")
    page = PAGE.parent / path
    return page.is_file() and (not section or section in anchors(page))


def test_each_link_leads_to_a_page_and_its_section():
    assert [link for link in LINKS if not leads_somewhere(link)] == []


def test_each_status_follows_from_the_page_and_the_test_of_its_row():
    assert [row for row in ROWS if not is_backed(row)] == []


def test_each_guide_has_a_link_and_statements():
    assert [guide for guide in GUIDES if "](https://docs.ray.io/" not in guide or "\n| " not in guide] == []


def test_statements_are_short_and_unique():
    statements = [row["Statement"] for row in ROWS]

    assert [statement for statement in statements if len(statement.split()) > 15] == []
    assert len(set(statements)) == len(statements)
