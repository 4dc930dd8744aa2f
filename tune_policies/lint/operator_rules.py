"""What KubeRay's operator refuses, or reads otherwise than one would think, though the definitions let it through."""

from tune_policies.lint.rule import RuleSet

RULES: RuleSet = ()
