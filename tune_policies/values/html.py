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
        members = value if isinstance(value, tuple) else (value,)
        table.add_row(Text(name), Text("\n".join(map(str, members))))
    shown: list[RenderableType] = [Text(title, style="bold"), Text(text)]
    if fields:
        shown.append(table)
    return to_html(Group(*shown))


def _parts(view: RenderableType) -> Iterator[str]:
    if isinstance(view, Group):
        for part in view.renderables:
            yield from _parts(part)
    elif isinstance(view, Table):
        yield from _table(view)
    elif str(view).strip():
        style = "margin: 0.3em 0"
        if isinstance(view, Text) and view.style == "bold":
            style += "; font-weight: bold"
        yield f'<p style="{style}">{_text(view)}</p>'


def _table(table: Table) -> Iterator[str]:
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    styles = [f'style="text-align: {side}"' for side in sides]
    if table.title:  # a caption would be as narrow as the table
        yield f'<p style="margin: 0.3em 0; font-weight: bold">{_text(table.title)}</p>'
    yield '<div style="overflow-x: auto"><table>'
    heads = (f"<th {style}>{_text(column.header)}</th>" for column, style in zip(table.columns, styles, strict=True))
    yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in zip(*(column.cells for column in table.columns), strict=True):
        cells = (f"<td {style}>{_text(cell)}</td>" for cell, style in zip(row, styles, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _text(cell: RenderableType) -> str:
    plain = cell.plain if isinstance(cell, Text) else str(cell)
    return escape(printable(plain)).replace("\n", "<br>")
