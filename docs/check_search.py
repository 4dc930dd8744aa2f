"""Checks the built site: what search finds, and the parts of a page that Sphinx does not check.

Usage: ``python docs/check_search.py build/site``
"""

import json
import re
import sys
from pathlib import Path

from sphinx.search.en import SearchEnglish

FOUND = {
    "Jupyter": "how-to/notebooks",
    "utilisation": "how-to/usage",
    "utilization": "how-to/usage",
    "stuck": "how-to/symptoms",
    "hangs": "how-to/symptoms",
    "idle": "how-to/usage",
    "OOM": "how-to/out-of-memory",
    "PENDING": "how-to/symptoms",
    "deadlock": "how-to/plain-tune-failures",
    "wandb": "how-to/trackers",
    "MLflow": "how-to/trackers",
}
"""A page that search must find for each word."""
HIDDEN = {"architecture", "evidence/ray-internals", "evidence/ray-guides", "evidence/tested"}
"""Pages for maintainers, which search must not find."""


def pages_with(index, word):
    """Return the pages that search finds for a word, in the text or in the titles."""
    stem = SearchEnglish({}).stem(word.lower())
    found = set()
    for terms in (index["terms"], index["titleterms"]):
        numbers = terms.get(stem, [])
        found |= set(numbers if isinstance(numbers, list) else [numbers])
    return {index["docnames"][number] for number in found}


def problems(site):
    """Yield a sentence for each problem of the built site."""
    script = (site / "searchindex.js").read_text()
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
    for word, page in FOUND.items():
        if page not in pages_with(index, word):
            yield f"search for {word!r} does not find {page}"
    hidden = {page for terms in index["terms"] for page in pages_with(index, terms)} & HIDDEN
    yield from (f"search finds {page}, which is for maintainers" for page in sorted(hidden))
    for page in sorted([*site.glob("*.html"), *site.glob("how-to/*.html")]):
        html = page.read_text()
        if page.stem not in ("genindex", "search", "py-modindex"):
            if not re.search(r'<meta content="[^"]+" name="description"', html):
                yield f"{page.name} has no description"
            if "wordmark-light.svg" not in html or "site-version" not in html:
                yield f"{page.name} shows no logo or version"
    index_page = (site / "index.html").read_text()
    if 'class="gd"' not in index_page or 'class="gi"' not in index_page:
        yield "the diff on the first page has no colors"
    if "copybutton.js" not in index_page:
        yield "blocks of code have no copy button"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1])))
    if found:
        sys.exit("\n".join(found))
