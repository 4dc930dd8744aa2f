"""Prices per hour of CPUs, GPUs and machines, and of the resources that a trial reserves.

A trial on a rented machine costs a fraction of the machine's price. For example, one GPU and 2 CPUs of a machine with
4 GPUs and 16 CPUs cost a quarter of its price. If CPUs and GPUs have separate prices, a trial costs the sum of the
prices of its CPUs and GPUs.
"""

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, StringConstraints, model_validator

from tune_policies.files.reading import UnreadableFileError, read_data, read_text
from tune_policies.files.yaml_documents import DocumentError
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Amount, amount_of
from tune_policies.values.units import MIB
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten_names, suggest

PricePerHour = Annotated[float, Field(gt=0)]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
"""A date such as ``2026-11-21``."""


class Instance(Value):
    """A type of rented machine with its price per hour. ``gpus`` below 1 is a fraction of one GPU.

    Without ``region``, the price applies in every region.
    """

    name: str
    price: PricePerHour
    cpus: Annotated[Amount, Field(gt=0)]
    gpus: Amount = 0.0
    accelerator_type: str | None = None
    region: str | None = None

    @model_validator(mode="after")
    def _gpus_must_have_a_type(self) -> Self:
        if (self.gpus > 0) != (self.accelerator_type is not None):
            raise InvalidResourcesError(
                f"the instance {self.name!r} has gpus={self.gpus:g} and accelerator_type={self.accelerator_type!r}. "
                "Set both fields or neither"
            )
        return self

    def part(self, cpus: float, gpus: float) -> float:
        """Return the larger of the fractions of the machine's CPUs and GPUs that these resources use."""
        of_cpus = cpus / self.cpus
        if not gpus:  # the machine may have no GPU
            return of_cpus
        # A trial that uses half of the GPUs makes half of the machine unusable for others, even if CPUs remain.
        return max(of_cpus, gpus / self.gpus)


class AttachableGpu(Value):
    """A GPU that can be attached to a machine without GPUs, with the price per hour of one GPU.

    Without ``region``, it can be attached to machines of every region.
    """

    accelerator_type: str
    price: PricePerHour
    region: str | None = None


def _is_in(priced: Instance | AttachableGpu, region: str | None) -> bool:
    """Return whether a price applies in a region. If ``region`` is ``None``, all prices apply."""
    return region is None or priced.region in (None, region)


class Price(NamedTuple):
    """A price per hour, and a description of the machine or resources that it applies to."""

    per_hour: float
    of: str


_Names = tuple[str, ...] | tuple[None]
"""The names of one GPU type in a price file, or ``_NO_GPU``."""

_NO_GPU: Final = (None,)
"""Matches machines without GPUs."""


class Prices(Value):
    """Prices of one day in one currency.

    Attributes:
        cpu: The price of one CPU per hour, or ``None`` if unknown.
        gpus: The price of one GPU per hour without CPUs, by GPU type. It applies in every region.
        attachable_gpus: The prices of GPUs without CPUs that are available only in some regions.
    """

    date: Day
    currency: str = Field(min_length=1)
    source: str = ""
    instances: tuple[Instance, ...] = ()
    cpu: PricePerHour | None = None
    gpus: dict[str, PricePerHour] = Field(default_factory=dict)
    attachable_gpus: tuple[AttachableGpu, ...] = ()

    @model_validator(mode="after")
    def _something_must_have_a_price(self) -> Self:
        has_gpus = self.gpus or self.attachable_gpus
        if not self.instances and self.cpu is None and not has_gpus:
            raise InvalidResourcesError("the file contains no price. Set instances, or cpu and gpus")
        return self

    @model_validator(mode="after")
    def _a_gpu_type_must_have_one_price(self) -> Self:
        first_names: dict[str, str] = {}
        for name, price in self.gpus.items():
            other = first_names.setdefault(_plain(name), name)
            if price != self.gpus[other]:
                raise InvalidResourcesError(
                    f"gpus contains the prices {self.gpus[other]:g} for {other!r} and {price:g} for {name!r}, which "
                    "are names of the same GPU type. Keep one of them"
                )
        return self

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """The types of GPUs that have a price."""
        types = set(self.gpus)
        types.update(gpu.accelerator_type for gpu in self.attachable_gpus)
        for instance in self.instances:
            if instance.accelerator_type:
                types.add(instance.accelerator_type)
        return tuple(sorted(types))

    def per_hour(self, *, cpus: float, gpus: float = 0, accelerator_type: str | None = None) -> Price:
        """Return the lowest price per hour of a trial's resources.

        ``accelerator_type`` is the name of the GPU type in these prices, or the name that Ray uses.

        Raises:
            InvalidResourcesError: The GPU or the resources have no price.
        """
        names = self._names_of(accelerator_type) if gpus else _NO_GPU
        # Sorted by price, and equal prices by description, so that the result does not depend on the order of the file.
        found = sorted((*self._of_instances(cpus, gpus, names), *self._of_parts(cpus, gpus, names)))
        if not found:
            raise InvalidResourcesError(self._none(cpus, gpus, names[0]))
        return found[0]

    def _names_of(self, accelerator_type: str | None) -> tuple[str, ...]:
        """Return the names of a GPU type in these prices, such as A100-80GB for Ray's A100-80G.

        Lines from different sources can contain different names of the same type.
        """
        types = self.accelerator_types
        if accelerator_type is None:
            raise InvalidResourcesError(
                "the type of the GPUs is unknown, so their price is unknown too. Use --gpu-type to pass a name from "
                f"the price file (known: {shorten_names(types) or 'none'})"
            )
        names = tuple(name for name in types if _plain(name) == _plain(accelerator_type))
        if not names:
            raise InvalidResourcesError(
                f"there is no price for {accelerator_type!r}{suggest(accelerator_type, types)} "
                f"(known: {shorten_names(types) or 'no GPU'}). Add its price, or choose another name with --gpu-type"
            )
        return names

    def _of_instances(self, cpus: float, gpus: float, names: _Names, region: str | None = None) -> Iterator[Price]:
        """Yield the prices of the parts of machines in a region, or without ``region``, in all regions."""
        for instance in self.instances:
            if instance.accelerator_type not in names or not _is_in(instance, region):
                continue
            part = instance.part(cpus, gpus)
            if part <= 1:
                text = f"{part:.3g} of {instance.name}"
                if instance.region:
                    text += f" in {instance.region}"
                yield Price(instance.price * part, text)

    def _of_parts(self, cpus: float, gpus: float, names: _Names) -> Iterator[Price]:
        """Yield the sums of the separate prices of the GPUs and the CPUs."""
        if not gpus:
            if self.cpu is not None:
                yield Price(cpus * self.cpu, amount_of(cpus, "CPU"))
            return
        separate = [gpu for gpu in self.attachable_gpus if gpu.accelerator_type in names]
        for name, price in self.gpus.items():
            if name in names:
                separate.append(AttachableGpu(accelerator_type=name, price=price))
        for gpu in separate:
            for of_cpus in self._of_cpus(cpus, gpu.region):
                text = f"{gpus:g} {gpu.accelerator_type} and {of_cpus.of}"
                yield Price(gpus * gpu.price + of_cpus.per_hour, text)

    def _of_cpus(self, cpus: float, region: str | None) -> Iterator[Price]:
        """Yield the prices of CPUs in a region: of CPUs alone, or else of the parts of machines without GPUs."""
        if self.cpu is None:
            yield from self._of_instances(cpus, 0, _NO_GPU, region)
        else:
            yield Price(cpus * self.cpu, amount_of(cpus, "CPU"))

    def _none(self, cpus: float, gpus: float, name: str | None) -> str:
        gpus_text = "without a GPU" if name is None else f"with {gpus:g} {name}"
        what = f"{amount_of(cpus, 'CPU')} {gpus_text}"
        return f"there is no price for {what}. Add an instance that is large enough, or the price of one CPU as `cpu`"


def _plain(name: str) -> str:
    # Ray writes A100-80G, and SkyPilot A100-80GB.
    return name.lower().replace("-", "").replace("_", "").removesuffix("b")


COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "Price", "SpotPrice", "Region")
"""The required columns of SkyPilot's catalogs, versions 5 to 9. Their prices are in US dollars per hour."""

_MAX_CSV_BYTES: Final = 64 * MIB
"""The maximum size of a CSV file: six times SkyPilot's largest catalog."""


def load_prices(path: str | Path, *, region: str | None = None, use_spot: bool = False) -> Prices:
    """Read prices from SkyPilot's ``vms.csv`` or from this project's YAML or JSON format.

    Files with the suffix ``.csv`` have SkyPilot's format. The date of their prices is the file's modification date.

    Args:
        path: The file.
        region: The region of the prices. By default, the lowest prices of all regions apply. In a YAML or JSON file,
            prices without a region apply in every region.
        use_spot: Whether to use the spot prices of a CSV file.

    Raises:
        InvalidResourcesError: The file cannot be read, a value in it is missing or invalid, or it does not contain
            the region.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".csv":
            text = read_text(path, what="price file", max_bytes=_MAX_CSV_BYTES)
            # SkyPilot's catalogs contain no date.
            day = f"{datetime.fromtimestamp(path.stat().st_mtime, tz=UTC):%Y-%m-%d}"
            source = path.name
            if use_spot:
                source += ", spot"
            return _of_skypilot(text, source, day, region, use_spot=use_spot)
        if use_spot:
            raise InvalidResourcesError("this file contains no spot prices. Use SkyPilot's vms.csv, or omit --spot")
        return _own(read_data(path, what="price file"), path.name, region)
    except (UnreadableFileError, DocumentError):  # their messages contain the path
        raise
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path}: {error}") from error


def _own(data: object, name: str, region: str | None) -> Prices:
    if isinstance(data, dict):
        # A source in the file takes precedence over the file's name.
        data = {"source": name, **data}
    prices = Prices.from_dict(data)
    if region is None:
        return prices
    with_regions: tuple[Instance | AttachableGpu, ...] = (*prices.instances, *prices.attachable_gpus)
    if not with_regions:
        raise InvalidResourcesError(
            "the prices in this file have no region, because the file contains no instances. Omit --region"
        )
    regions = {priced.region for priced in with_regions if priced.region}
    if region not in regions:
        raise _no_such_region(region, regions)
    instances = tuple(instance for instance in prices.instances if _is_in(instance, region))
    gpus = tuple(gpu for gpu in prices.attachable_gpus if _is_in(gpu, region))
    return prices.model_copy(update={"instances": instances, "attachable_gpus": gpus})


class _Row(NamedTuple):
    """One line of a CSV file: its line number, and its cells by column name."""

    line: int
    cells: Mapping[str, str]

    def number(self, column: str) -> float | None:
        """Return the number in a cell, or ``None`` if the cell is empty."""
        text = (self.cells[column] or "").strip()
        if text.lower() in ("", "nan"):
            return None
        try:
            number = float(text)
        except ValueError:
            number = -1
        if not 0 <= number < float("inf"):
            raise InvalidResourcesError(f"line {self.line}: {column} must be a number, 0 or above, got {text!r}")
        return number


def _of_skypilot(text: str, source: str, day: str, region: str | None, *, use_spot: bool) -> Prices:
    rows = list(_rows(text))
    there = [row for row in rows if region is None or row.cells["Region"] == region]
    if region is not None and not there:
        raise _no_such_region(region, {row.cells["Region"] for row in rows})
    price_column = "SpotPrice" if use_spot else "Price"
    instances: list[Instance] = []
    of_gpus: dict[tuple[str, str | None], float] = {}
    for row in there:
        price, cpus, count = row.number(price_column), row.number("vCPUs"), row.number("AcceleratorCount")
        name, machine = row.cells["AcceleratorName"] or None, row.cells["InstanceType"]
        if not price or (name and not count):  # the catalog has no price in this region
            continue
        region_of = row.cells["Region"] or None
        if machine and cpus:
            fields = {}
            if name:
                fields = {"gpus": count, "accelerator_type": name}
            instances.append(Instance(name=machine, price=price, cpus=cpus, region=region_of, **fields))
        elif not machine and name and count:  # a GPU that can be attached to a machine, as on Google Cloud
            key = name, region_of
            # A catalog may have lines for 1, 2, 4 and 8 of these GPUs, and zones of one region may have different
            # prices.
            of_gpus[key] = min(price / count, of_gpus.get(key, float("inf")))
    if not instances and not of_gpus:
        raise InvalidResourcesError("no line has a price")
    attachable = tuple(
        AttachableGpu(accelerator_type=name, price=price, region=region_of)
        for (name, region_of), price in of_gpus.items()
    )
    return Prices(date=day, currency="USD", source=source, instances=tuple(instances), attachable_gpus=attachable)


def _rows(text: str) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        found = reader.fieldnames or []
        for name in COLUMNS:
            if name not in found:
                raise InvalidResourcesError(
                    f"line 1: the column {name} is missing{suggest(name, found)} (SkyPilot's vms.csv has "
                    f"{', '.join(COLUMNS)})"
                )
        for cells in reader:
            # DictReader collects surplus cells under the key None, and fills missing cells with None.
            if None in cells or None in cells.values():
                difference = "more" if None in cells else "fewer"
                raise InvalidResourcesError(
                    f"line {reader.line_num} has {difference} cells than the {len(found)} columns of line 1"
                )
            yield _Row(reader.line_num, cells)
    except csv.Error as error:
        raise InvalidResourcesError(f"line {reader.line_num}: {error}") from error


def _no_such_region(region: str, regions: set[str]) -> InvalidResourcesError:
    known = shorten_names(sorted(regions)) or "none"
    near = suggest(region, sorted(regions))
    return InvalidResourcesError(f"there are no prices for the region {region!r}{near} (known: {known})")
