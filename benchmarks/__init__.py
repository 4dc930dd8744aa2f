"""Measures workloads on devices and decides which device is faster or cheaper. No other package imports this one."""

if __name__ == "benchmarks":  # only in a checkout; the installed package is ``tune_policies.benchmarks``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
