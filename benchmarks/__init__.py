"""Measures workloads on devices, compares them, and decides. No other package imports this one."""

if __name__ == "benchmarks":  # in a checkout; everywhere else it is ``tune_policies.benchmarks``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
