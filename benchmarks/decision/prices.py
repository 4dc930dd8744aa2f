"""What an hour of CPUs and GPUs costs: values, and the price of what a trial holds.

A trial on a rented machine pays for the part that it takes: of 16 CPUs and 4 GPUs, one GPU with 2 CPUs is a quarter.
Where CPUs and GPUs have prices by themselves, it pays for each.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple, Self

from pydantic import Field, StringConstraints, model_validator

from tune_policies.errors import InvalidResourcesError
from tune_policies.names import shorten_names
from tune_policies.resources import Amount
from tune_policies.values import Value, suggest

PricePerHour = Annotated[float, Field(gt=0)]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
"""A day, as ``2026-11-21``."""


class Instance(Value):
    """A machine that can be rented.

    Attributes:
        name: Its name.
        price: For an hour.
        cpus: Its CPUs.
        gpus: Its GPUs, below 1 a part of one.
        accelerator_type: Their type; ``None``: it has none.
        region: Where; ``None``: not told.
    """

    name: str
    price: PricePerHour
    cpus: Annotated[Amount, Field(gt=0)]
    gpus: Amount = 0
    accelerator_type: str | None = None
    region: str | None = None

    @model_validator(mode="after")
    def _gpus_must_have_a_type(self) -> Self:
        if (self.gpus > 0) != (self.accelerator_type is not None):
            raise InvalidResourcesError(
                f"the instance {self.name!r} has gpus={self.gpus:g} and accelerator_type={self.accelerator_type!r}: "
                "give both, or neither"
            )
        return self

    def part(self, cpus: float, gpus: float) -> float:
        """Return which part of it so much takes: the larger of the parts of its CPUs and its GPUs."""
        return max(cpus / self.cpus, gpus / self.gpus if gpus else 0.0)


class Price(NamedTuple):
    """What something costs for an hour, and of what that is the price."""

    per_hour: float
    of: str


class Prices(Value):
    """What can be rented, of one day and in one currency.

    Attributes:
        date: The day on which they were so.
        currency: Such as ``"USD"``.
        source: Where they are from.
        instances: Machines.
        cpu: One CPU for an hour; ``None``: not told.
        gpus: One GPU for an hour by its type, without CPUs.
        holes: Types of GPUs that are named without a price, and ``"CPU"``: what is missing, and where.
    """

    date: Day
    currency: str = Field(min_length=1)
    source: str = ""
    instances: tuple[Instance, ...] = ()
    cpu: PricePerHour | None = None
    gpus: dict[str, PricePerHour] = Field(default_factory=dict)
    holes: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _something_must_have_a_price(self) -> Self:
        if not self.instances and self.cpu is None and not self.gpus:
            raise InvalidResourcesError("there is no price: give instances, or cpu and gpus")
        return self

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """The types of GPUs that have a price."""
        return tuple(sorted({*self.gpus, *(each.accelerator_type for each in self.instances if each.accelerator_type)}))

    def per_hour(self, *, cpus: float, gpus: float = 0, accelerator_type: str | None = None) -> Price:
        """Return the lowest price for so much.

        Args:
            cpus: CPUs of a trial.
            gpus: Its GPUs.
            accelerator_type: Their type, by the name that the prices or Ray have for it.

        Raises:
            InvalidResourcesError: There is no price for it.
        """
        name = self._named(accelerator_type) if gpus else None
        found = sorted((*self._of_instances(cpus, gpus, name), *self._of_parts(cpus, gpus, name)))
        if not found:
            raise InvalidResourcesError(self._none(cpus, gpus, name))
        return found[0]

    def _named(self, accelerator_type: str | None) -> str:
        """Return what these prices call a type of GPU: Ray's A100-80G is A100-80GB to others."""
        types = self.accelerator_types
        known = {_plain(each): each for each in types}
        if accelerator_type is None:
            raise InvalidResourcesError(
                "which type the GPUs are is not known, so neither is their price: name the one that they have in the "
                f"price file by --gpu-type (known: {shorten_names(types) or 'none'})"
            )
        if _plain(accelerator_type) not in known:
            holes = {_plain(each): where for each, where in self.holes.items()}
            where = holes.get(_plain(accelerator_type))
            why = f", as {where}" if where else suggest(accelerator_type, types)
            raise InvalidResourcesError(
                f"there is no price for {accelerator_type!r}{why} "
                f"(known: {shorten_names(types) or 'no GPU'}): add it, or name the GPU by --gpu-type"
            )
        return known[_plain(accelerator_type)]

    def _of_instances(self, cpus: float, gpus: float, name: str | None) -> Iterator[Price]:
        for each in self.instances:
            # Nobody rents a machine with GPUs for a trial on CPUs.
            if each.accelerator_type == name and (part := each.part(cpus, gpus)) <= 1:
                where = f" in {each.region}" if each.region else ""
                yield Price(each.price * part, f"{part:.3g} of {each.name}{where}")

    def _of_parts(self, cpus: float, gpus: float, name: str | None) -> Iterator[Price]:
        """Yield the sum for a GPU and its CPUs, each by itself."""
        if self.cpu is not None and (name is None or name in self.gpus):
            of_gpus = gpus * self.gpus[name] if name is not None else 0.0
            what = f"{gpus:g} {name} and {cpus:g} CPU" if name is not None else f"{cpus:g} CPU"
            yield Price(of_gpus + cpus * self.cpu, what)
        elif name is not None and name in self.gpus:
            for with_cpus in self._of_instances(cpus, 0, None):
                yield Price(gpus * self.gpus[name] + with_cpus.per_hour, f"{gpus:g} {name} and {with_cpus.of}")

    def _none(self, cpus: float, gpus: float, name: str | None) -> str:
        what = f"{cpus:g} CPU" + (f" with {gpus:g} {name}" if name is not None else " without a GPU")
        why = f", as {self.holes['CPU']}" if name is None and "CPU" in self.holes else ""
        return f"there is no price for {what}{why}: add an instance that has as much, or the price of one CPU as `cpu`"


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").removesuffix("b")
