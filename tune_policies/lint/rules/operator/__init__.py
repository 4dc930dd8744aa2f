"""What KubeRay's operator refuses, or reads otherwise than one would think, though the definitions let it through.

Written after the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler; a message or a reason names the version where they
differ.
"""

from tune_policies.lint.rule import RuleSet
from tune_policies.lint.rules.operator import (
    cluster,
    groups,
    job,
    start,
)

RULES: RuleSet = (
    *groups.RULES,
    *start.RULES,
    *cluster.RULES,
    *job.RULES,
)
