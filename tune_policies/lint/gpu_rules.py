"""All rules for what a user of devices gets wrong."""

from typing import Final

from tune_policies.lint import (
    gpu_rules_containers,
    gpu_rules_devices,
    gpu_rules_nodes,
    gpu_rules_scaling,
    memory_rules,
    tpu_rules,
)
from tune_policies.lint.rule import Rule

RULES: Final[tuple[Rule, ...]] = (
    *gpu_rules_devices.RULES,
    *gpu_rules_containers.RULES,
    *gpu_rules_nodes.RULES,
    *gpu_rules_scaling.RULES,
    *memory_rules.RULES,
    *tpu_rules.RULES,
)
