"""Tests that valid files have no findings, and that each inserted mistake is reported at its line."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kuberay.planted import capacity, files, groups, pods, sharing, templates
from tests.unit.kuberay.planted.no_mistakes import NO_MISTAKES
from tests.unit.kuberay.planted.planting import Planted
from tests.unit.kuberay.planted.sound import SOUND
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.lint.rule import Rule
from tune_policies.kuberay.lint.rules import ALL_RULES, RULES

VALID = {**SOUND, **NO_MISTAKES, **capacity.NO_MISTAKES, **templates.NO_MISTAKES}
MISTAKES = (
    *pods.MISTAKES,
    *groups.MISTAKES,
    *capacity.MISTAKES,
    *sharing.MISTAKES,
    *files.MISTAKES,
    *templates.MISTAKES,
)
SCALARS = st.sampled_from([None, True, -1, 0, 1, 2**70, 0.5, 1e300, "", "0", "1", "500m", "0.5", "abc", "4x4", "-1"])
KEYS = st.sampled_from(["cpu", "GPU", "nvidia.com/gpu", "name", "value", "limits", "image", "containers", "resources"])
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_a_valid_file_has_no_finding(text: str) -> None:
    assert lint_text(text, "sound.yaml") == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.rule}: {mistake.claim}")
def test_a_mistake_is_found_at_its_line(mistake: Planted) -> None:
    found = [(each.rule, each.line) for each in lint_text(mistake.text, "planted.yaml")]

    assert (mistake.rule, mistake.line) in found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_tested_with_a_mistake(rule: Rule) -> None:
    assert rule.name in {mistake.rule for mistake in MISTAKES}


def test_the_names_of_rules_are_unique() -> None:
    names = [rule.name for rule in ALL_RULES]

    assert len(names) == len(set(names))


@given(cut=st.tuples(st.sampled_from(sorted(SOUND)), st.integers(0), st.integers(0, 40), st.text(max_size=8)))
@settings(deadline=None, max_examples=40)
def test_no_typo_in_a_file_raises_an_error(cut: tuple[str, int, int, str]) -> None:
    name, place, length, typed = cut
    text = SOUND[name]
    place %= len(text)

    found = lint_text(text[:place] + typed + text[place + length :], "typed.yaml")

    assert all(1 <= each.line <= text.count("\n") + len(typed) + 1 and each.message for each in found)


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_replacing_any_part_of_a_file_raises_no_error(data: st.DataObject) -> None:
    document = yaml.safe_load(SOUND[data.draw(st.sampled_from(sorted(SOUND)))])
    part = document
    while True:
        keys = sorted(part) if isinstance(part, dict) else range(len(part))
        key = data.draw(st.sampled_from(keys))
        if not part[key] or not isinstance(part[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
            break
        part = part[key]
    part[key] = data.draw(ANYTHING)

    found = lint_text(yaml.safe_dump(document), "changed.yaml")

    assert all(each.line >= 1 and each.message for each in found)
