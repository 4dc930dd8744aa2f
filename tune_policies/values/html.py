"""Converts tables and lines to HTML for notebooks. The notebook sets the font and the colors."""

from collections.abc import Iterator, Mapping
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_policies.values.sanitize import printable


def to_html(view: RenderableType) -> str:
    """Return a table, a string, or a group of them as escaped HTML."""
    return "\n".join(_parts(view))


def fields_to_html(title: str, text: str, fields: Mapping[str, object]) -> str:
    """Return a value as escaped HTML: its class, its text, and the fields that differ from their defaults."""
    table = Table("field", "value")
    for name, value in fields.items():
        table.add_row(Text(name), Text(str(value)))
    shown: list[RenderableType] = [Text(title, style="bold"), Text(text), *([table] if fields else [])]
    return to_html(Group(*shown))


def _parts(view: RenderableType) -> Iterator[str]:
    if isinstance(view, Group):
        for each in view.renderables:
            yield from _parts(each)
    elif isinstance(view, Table):
        yield from _table(view)
    elif str(view).strip():
        weight = "; font-weight: bold" if isinstance(view, Text) and view.style == "bold" else ""
        yield f'<p style="margin: 0.3em 0{weight}">{_text(view)}</p>'


def _table(table: Table) -> Iterator[str]:
    styles = [f'style="text-align: {"right" if each.justify == "right" else "left"}"' for each in table.columns]
    if table.title:  # a caption would be as narrow as the table
        yield f'<p style="margin: 0.3em 0; font-weight: bold">{_text(table.title)}</p>'
    yield '<div style="overflow-x: auto"><table>'
    heads = (f"<th {style}>{_text(each.header)}</th>" for each, style in zip(table.columns, styles, strict=True))
    yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in zip(*(each.cells for each in table.columns), strict=True):
        cells = (f"<td {style}>{_text(cell)}</td>" for cell, style in zip(row, styles, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _text(cell: RenderableType) -> str:
    plain = cell.plain if isinstance(cell, Text) else str(cell)
    return escape(printable(plain)).replace("\n", "<br>")
