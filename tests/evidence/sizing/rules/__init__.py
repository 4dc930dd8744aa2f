"""The sizing rules. To add a rule, add a module here that defines ``RULES``: functions that create the rules."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from ..simulation import SizingRule


def all_rules() -> dict[str, Callable[[], SizingRule]]:
    """Return the functions that create the rules of all modules of this package, by the name of the rule."""
    rules: dict[str, Callable[[], SizingRule]] = {}
    for module in iter_modules(__path__):
        for create in import_module(f"{__name__}.{module.name}").RULES:
            rules[create().name] = create
    return rules
