"""Compute optimal plans with a solver. Tests call these functions in a separate process, which imports OR-tools."""


def question(policy, capacity):
    from tests.evidence.plans.optimum import Question

    return Question.of(policy, capacity.nodes, cpus=1)


def best(policy, capacity, **kwargs):
    from tests.evidence.plans.optimum import optimum

    return optimum(question(policy, capacity), **kwargs)


def promised(policy, capacity):
    from tests.evidence.plans.optimum_comparison import rule_of_thumb

    return rule_of_thumb(question(policy, capacity))


def compared(seed):
    from tests.evidence.plans.optimum_comparison import compare, draw_questions

    capacity, policies = draw_questions(seed, 3)
    # Return plain data, because unpickling the result class would import OR-tools.
    return [(each.planned, each.best, each.reason) for each in (compare(seed, capacity, policy) for policy in policies)]
