"""Measures, and compares what it measured with the alternative in the same run. Nothing imports this package."""

if __name__ == "benchmarks":  # in a checkout; everywhere else it is ``tune_policies.benchmarks``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
