"""The packages of BOHB, which the project's own needs do not bring: few have them, and they are old."""

import pytest


def skip_without_bohb():
    for package in ("hpbandster", "ConfigSpace"):
        pytest.importorskip(package, reason="BOHB needs `pip install hpbandster ConfigSpace`")
