"""Each rule of each target's file has a tiny model that breaks it, and one that keeps it; the first
is named by rule, node, what was found, what is allowed, consequence and fix, the second by none."""

import pytest
from support.rule_models import MAKERS, make_models

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.targets import TARGETS, find_target
from bitwright.verification.rules import KINDS, read_rules


def every_rule():
    """Return each rule that a file or a variant has, once."""
    found = {}
    for name, target in TARGETS.items():
        for variant in ("", *target.variants):
            one = find_target(f"{name}:{variant}" if variant else name)
            for rule_name, rule in read_rules(one).items():
                found.setdefault(repr(rule), pytest.param(rule, id=f"{one.name}-{rule_name}"))
    return list(found.values())


def findings(model, rule):
    return list(rule.find("a_rule", QuantizedView(model)))


@pytest.mark.parametrize("rule", every_rule())
def test_a_rule_names_what_breaks_it_and_nothing_that_keeps_it(rule):
    broken, kept = make_models(rule)
    found = findings(broken, rule)
    assert {(finding.rule, finding.node) for finding in found} == {("a_rule", "node")}
    for finding in found:
        assert finding.consequence == rule.consequence
        assert finding.found and finding.allowed and finding.source
        assert finding.remedy == rule.fix != ""
    assert not findings(kept, rule)


def test_every_kind_of_rule_has_a_check_and_two_models():
    assert {*MAKERS} == {asks for kind in KINDS for asks in kind.ASKS}
