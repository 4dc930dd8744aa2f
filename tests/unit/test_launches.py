"""When the autoscaler's reports mean that a request will not be met."""

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


def test_a_refusal_is_believed_at_once():
    assert verdicts(report(2, refused=True)) == [
        "the autoscaler reports that no node that it may add satisfies the request"
    ]


def test_a_report_that_does_not_know_the_request_says_nothing():
    assert verdicts(report(2, refused=True, answers=False)) == [None]


def test_a_report_from_before_the_request_says_nothing():
    assert verdicts(report(1, refused=True)) == [None]


def test_a_pending_launch_is_waited_for():
    assert verdicts(*(report(number, pending=["gpu"]) for number in range(2, 99))) == [None] * 97


def test_three_silent_reports_mean_that_nothing_will_come():
    silence = "the autoscaler launches no further nodes for it"

    assert verdicts(report(2), report(3), report(4)) == [None, None, silence]
    assert verdicts(report(2), report(2), report(2), report(3)) == [None] * 4
    assert verdicts(report(2), report(3), report(4, pending=["gpu"]), report(5), report(6)) == [None] * 5


def test_a_failed_launch_that_is_only_retried_is_given_up():
    assert verdicts(report(2, pending=["gpu"], failed=[failed()])) == ["the launch of 'gpu' failed: out of stock"]


def test_after_a_failure_another_type_is_waited_for():
    assert verdicts(report(2, pending=["other"], failed=[failed()]), node_types=["gpu", "other"]) == [None]


def test_after_a_failure_a_type_that_does_not_help_is_not_waited_for():
    assert verdicts(report(2, pending=["cpu"], failed=[failed()]), node_types=["gpu"]) != [None]


def test_the_failure_of_a_type_that_does_not_help_is_somebody_elses():
    assert verdicts(report(2, pending=["cpu"], failed=[failed("cpu")]), node_types=["gpu"]) == [None]


def test_after_a_failure_the_autoscaler_has_one_more_report_to_try_another_type():
    assert verdicts(report(2, failed=[failed()]), report(3, failed=[failed()])) == [
        None,
        "the launch of 'gpu' failed: out of stock",
    ]


def test_when_every_type_that_helps_has_failed_it_is_given_up():
    both = [failed("small"), failed("large", error="no quota")]

    assert verdicts(report(2, pending=["small"], failed=both), node_types=["small", "large"]) == [
        "the launch of 'large' failed: no quota and the launch of 'small' failed: out of stock"
    ]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(report(1, failed=[failed()]), id="it had failed before"),
        pytest.param(BEFORE._replace(launches=frozenset({Launch("gpu", 10)})), id="it was launched before"),
        pytest.param(BEFORE._replace(time=10.5), id="it was started before the time of the last report"),
    ],
)
def test_a_failure_of_an_earlier_launch_does_not_count(before):
    old, new = failed(started_at=10), failed(started_at=11)

    assert verdicts(report(2, pending=["gpu"], failed=[old]), before=before) == [None]
    assert verdicts(report(2, pending=["gpu"], failed=[old, new]), before=before) != [None]


def test_two_failures_that_look_alike_are_two():
    before = report(1, failed=[failed()])

    assert verdicts(report(2, pending=["gpu"], failed=[failed(), failed()]), before=before) != [None]
