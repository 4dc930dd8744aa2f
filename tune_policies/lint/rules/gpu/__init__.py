"""All rules for what a user of devices gets wrong."""

from typing import Final

from tune_policies.lint.rule import Rule
from tune_policies.lint.rules.gpu import (
    containers,
    devices,
    memory,
    nodes,
    scaling,
    tpu,
)

RULES: Final[tuple[Rule, ...]] = (
    *devices.RULES,
    *containers.RULES,
    *nodes.RULES,
    *scaling.RULES,
    *memory.RULES,
    *tpu.RULES,
)
