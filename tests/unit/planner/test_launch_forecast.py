"""Tests that LaunchWatch detects from reports of the autoscaler that a request will not be satisfied."""

from collections import Counter

import pytest

from tune_policies.autoscaling.readiness import LaunchWatch
from tune_policies.ray_compat.autoscaler import Launch, LaunchReport

BEFORE = LaunchReport(1, answers=False)


def report(number, *, pending=(), failed=(), refused=False, answers=True):
    return LaunchReport(number, answers, pending=Counter(pending), failures=Counter(failed), refused=refused)


def failed(node_type="gpu", started_at=10, error="out of stock"):
    return Launch(node_type, started_at, error)


def verdicts(*reports, before=BEFORE, node_types=None):
    watch = LaunchWatch(before, None if node_types is None else frozenset(node_types))
    return [watch.verdict(each) for each in reports]


def test_a_refused_request_ends_the_wait_immediately():
    assert verdicts(report(2, refused=True)) == [
        "the autoscaler reports that it cannot add a node that satisfies the request"
    ]


def test_a_report_that_does_not_answer_the_request_is_ignored():
    assert verdicts(report(2, refused=True, answers=False)) == [None]
    assert verdicts(report(1, refused=True)) == [None]  # the report is older than the request


def test_a_pending_launch_continues_the_wait():
    assert verdicts(*(report(number, pending=["gpu"]) for number in range(2, 99))) == [None] * 97


def test_three_reports_without_a_launch_end_the_wait():
    silence = "the autoscaler launches no further nodes for the request"

    assert verdicts(report(2), report(3), report(4)) == [None, None, silence]
    assert verdicts(report(2), report(2), report(2), report(3)) == [None] * 4
    assert verdicts(report(2), report(3), report(4, pending=["gpu"]), report(5), report(6)) == [None] * 5


def test_a_failed_launch_of_the_only_pending_type_ends_the_wait():
    assert verdicts(report(2, pending=["gpu"], failed=[failed()])) == ["the launch of 'gpu' failed: out of stock"]


def test_after_a_failure_only_a_pending_launch_of_another_useful_type_continues_the_wait():
    assert verdicts(report(2, pending=["other"], failed=[failed()]), node_types=["gpu", "other"]) == [None]
    assert verdicts(report(2, pending=["cpu"], failed=[failed()]), node_types=["gpu"]) != [None]


def test_the_failed_launch_of_an_unrelated_type_is_ignored():
    assert verdicts(report(2, pending=["cpu"], failed=[failed("cpu")]), node_types=["gpu"]) == [None]


def test_after_a_failure_the_autoscaler_may_try_another_type_until_its_next_report():
    assert verdicts(report(2, failed=[failed()]), report(3, failed=[failed()])) == [
        None,
        "the launch of 'gpu' failed: out of stock",
    ]


def test_the_wait_ends_when_every_useful_type_has_failed():
    both = [failed("small"), failed("large", error="no quota")]

    assert verdicts(report(2, pending=["small"], failed=both), node_types=["small", "large"]) == [
        "the launch of 'large' failed: no quota and the launch of 'small' failed: out of stock"
    ]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(report(1, failed=[failed()]), id="it failed before the request"),
        pytest.param(BEFORE._replace(launches=frozenset({Launch("gpu", 10)})), id="it was launched before the request"),
        pytest.param(BEFORE._replace(time=10.5), id="it was started before the time of the last report"),
    ],
)
def test_a_failure_of_an_earlier_launch_is_ignored(before):
    old, new = failed(started_at=10), failed(started_at=11)

    assert verdicts(report(2, pending=["gpu"], failed=[old]), before=before) == [None]
    assert verdicts(report(2, pending=["gpu"], failed=[old, new]), before=before) != [None]


def test_a_second_failure_that_equals_an_earlier_failure_ends_the_wait():
    before = report(1, failed=[failed()])

    assert verdicts(report(2, pending=["gpu"], failed=[failed(), failed()]), before=before) != [None]
