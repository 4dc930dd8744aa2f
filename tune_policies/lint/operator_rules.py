"""What KubeRay's operator refuses, or reads otherwise than one would think, though the definitions let it through.

Written after the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler; a message or a reason names the version where they
differ.
"""

from tune_policies.lint import (
    operator_rules_cluster,
    operator_rules_documents,
    operator_rules_groups,
    operator_rules_job,
    operator_rules_start,
)
from tune_policies.lint.rule import RuleSet

RULES: RuleSet = (
    *operator_rules_documents.RULES,
    *operator_rules_groups.RULES,
    *operator_rules_start.RULES,
    *operator_rules_cluster.RULES,
    *operator_rules_job.RULES,
)
