"""Find the nodes that cost accuracy and leave them float: accuracy.py MODEL DATA OUTPUT."""

import sys

import bitwright


def main(model: str, data: str, output: str) -> None:
    """Rank the nodes, take the plan that regains most of the loss, and apply it."""
    plan = bitwright.make_plan(model, data=data, recipe="int8")
    found = bitwright.find_sensitivity(model, plan, data=data, candidates=2)
    print(found)
    proposal = found.proposal(regain=0.8)
    print(proposal.describe())
    print(bitwright.apply_plan(proposal.plan, model, output, data=data).verdict.sentence)


if __name__ == "__main__":
    main(*sys.argv[1:])
