"""Measures workloads on devices, compares the devices, and decides. No other package imports this one."""

if __name__ == "benchmarks":  # only in a checkout; elsewhere the name is ``tune_policies.benchmarks``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
