"""Measures workloads on devices, and decides which device is better. No other package imports this package."""

if __name__ == "benchmarks":  # only in a checkout; elsewhere the name is ``tune_policies.benchmarks``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
