"""Reads prices: a file of this project's own, or SkyPilot's ``vms.csv``."""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from tune_policies.errors import InvalidResourcesError
from tune_policies.names import shorten_names
from tune_policies.policy_file import parse_text, why_unread
from tune_policies.values import suggest

from .prices import Instance, Prices

COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "Price", "SpotPrice", "Region")
"""What is read of the columns of SkyPilot's catalogues, versions 5 to 9; their prices are in US dollars."""

_NO_NUMBER: Final = ("", "nan")


def load_prices(
    path: str | Path, *, region: str | None = None, use_spot: bool = False, date: str | None = None
) -> Prices:
    """Read a price file: ``.csv`` is SkyPilot's ``vms.csv``, all else this project's own, YAML or JSON.

    Args:
        path: The file.
        region: Only prices there; ``None``: the lowest of all regions.
        use_spot: Of a CSV file, the prices of machines that may be taken away at any time.
        date: Of which day the prices of a CSV file are, as ``2026-11-21``; ``None``: of the day of the file.

    Raises:
        InvalidResourcesError: The file cannot be read, or something in it is missing or wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        day = date or f"{datetime.fromtimestamp(path.stat().st_mtime, tz=UTC):%Y-%m-%d}"
    except (OSError, ValueError) as error:
        raise InvalidResourcesError(f"cannot read the price file {path}: {error}") from error
    try:
        if path.suffix.lower() == ".csv":
            return _of_skypilot(text, f"{path.name}{', spot' if use_spot else ''}", day, region, use_spot=use_spot)
        if use_spot:
            raise InvalidResourcesError("it has one price for each instance: --spot is for vms.csv of SkyPilot")
        return _own(text, path.name, region)
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path}: {error}") from error


def _own(text: str, name: str, region: str | None) -> Prices:
    try:
        # As JSON, in which a day is a text: YAML has read it as a date.
        data = json.loads(json.dumps(parse_text(text), default=_as_text))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InvalidResourcesError(f"it is neither YAML nor JSON: {why_unread(error)}") from error
    if isinstance(data, dict):
        data = {"source": name, **data}
    prices = Prices.from_dict(data)
    if region is None or not prices.instances:
        return prices
    there = tuple(each for each in prices.instances if each.region == region)
    if not there:
        raise _no_such_region(region, {each.region for each in prices.instances if each.region})
    return prices.model_copy(update={"instances": there})


def _as_text(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} is no plain data")


class _Row(NamedTuple):
    """One line of a CSV file, of which each cell is read by its column's name."""

    line: int
    cells: Mapping[str, str]

    def number(self, column: str) -> float | None:
        """Return the number of a cell; ``None``: it is empty."""
        text = (self.cells[column] or "").strip()
        if text.lower() in _NO_NUMBER:
            return None
        try:
            number = float(text)
        except ValueError:
            number = -1
        if not 0 <= number < float("inf"):
            raise InvalidResourcesError(f"line {self.line}, column {column}: {text!r} is no number of 0 or above")
        return number


def _of_skypilot(text: str, source: str, day: str, region: str | None, *, use_spot: bool) -> Prices:
    rows = list(_rows(text))
    there = [row for row in rows if region is None or row.cells["Region"] == region]
    if region is not None and not there:
        raise _no_such_region(region, {row.cells["Region"] for row in rows})
    instances: list[Instance] = []
    of_gpus: dict[str, float] = {}
    holes: dict[str, str] = {}
    column = "SpotPrice" if use_spot else "Price"
    for row in there:
        price, cpus, count = row.number(column), row.number("vCPUs"), row.number("AcceleratorCount")
        name, machine = row.cells["AcceleratorName"] or None, row.cells["InstanceType"]
        needed = {
            column: price,
            **({"vCPUs": cpus} if machine else {}),
            **({"AcceleratorCount": count} if name else {}),
        }
        if missing := [each for each, value in needed.items() if not value]:
            what = "empty" if needed[missing[0]] is None else "0"
            holes.setdefault(name or "CPU", f"line {row.line}, column {missing[0]} is {what}")
        elif machine:
            fields = {"gpus": count, "accelerator_type": name} if name else {}
            region_of = row.cells["Region"] or None
            instances.append(Instance(name=machine, price=price, cpus=cpus, region=region_of, **fields))
        elif name and price and count:  # a GPU that is added to a machine, as on Google's cloud
            of_gpus[name] = min(price / count, of_gpus.get(name, float("inf")))
    if not instances and not of_gpus:
        raise InvalidResourcesError(f"no line has a price: {next(iter(holes.values()), 'there is none')}")
    return Prices(date=day, currency="USD", source=source, instances=tuple(instances), gpus=of_gpus, holes=holes)


def _rows(text: str) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        found = reader.fieldnames or []
        if missing := [name for name in COLUMNS if name not in found]:
            raise InvalidResourcesError(
                f"line 1: the column {missing[0]} is missing{suggest(missing[0], found)} (SkyPilot's vms.csv has "
                f"{', '.join(COLUMNS)})"
            )
        for cells in reader:
            if None in cells or None in cells.values():
                raise InvalidResourcesError(
                    f"line {reader.line_num}: it has {'more' if None in cells else 'fewer'} cells than the "
                    f"{len(found)} columns of line 1"
                )
            yield _Row(reader.line_num, cells)
    except csv.Error as error:
        raise InvalidResourcesError(f"line {reader.line_num}: {error}") from error


def _no_such_region(region: str, regions: set[str]) -> InvalidResourcesError:
    known = sorted(regions)
    near = suggest(region, known)
    return InvalidResourcesError(
        f"there are no prices of the region {region!r}{near} (known: {shorten_names(known) or 'none'})"
    )
