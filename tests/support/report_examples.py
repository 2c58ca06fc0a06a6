"""Reports to look at and to test with: a network of any size with measured errors made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright import load_recipe
from bitwright.assess import NodeSensitivity, OutputComparison, Proposal, Sensitivity
from bitwright.assess.comparison.results import NodeComparison
from bitwright.assess.report.subject import ReportNode, ReportSubject, SuggestedFix
from bitwright.assess.report.views import Histogram, TensorView, channel_peaks
from bitwright.plan import NodePlan, QuantPlan
from bitwright.recipe import Recipe

OPS = ("Conv", "Relu", "Conv", "Add", "Relu", "MatMul", "Softmax")

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>'\"&"


def measured(**changes):
    """Return a NodeComparison of which tests say what they are about."""
    return NodeComparison(
        **{
            "name": "conv",
            "op": "Conv",
            "index": 0,
            "depth": 0,
            "action": "quantized",
            "reason": None,
            "output": "y",
            "sqnr": 40.0,
            "cosine": 0.9999,
            "max_error": 0.01,
            "local_sqnr": 45.0,
            "saturated": 0.0,
            "used": 0.9,
            **changes,
        }
    )


def activation(name="x", values=None, *, seed=0, top=None, **changes):
    rng = np.random.default_rng(seed)
    if values is None:
        values = np.maximum(rng.standard_normal(4000), 0) * 2
    top = float(values.max()) if top is None else top
    return TensorView(
        **{
            "name": name,
            "role": "activation",
            "qtype": "uint8",
            "scale": np.array(max(top, 1e-6) / 255),
            "zero_point": np.array(0),
            "method": "minmax",
            "histogram": Histogram.of_array(values),
            "clipped": float(np.mean(values > top)),
            **changes,
        }
    )


def weight(name="w", array=None, *, seed=0, per_channel=False, **changes):
    if array is None:
        array = np.random.default_rng(seed).standard_normal((32, 8, 3, 3)) * 0.1
    peaks = channel_peaks(array, 0)
    scale = peaks / 127 if per_channel else np.array(peaks.max() / 127)
    return TensorView(
        **{
            "name": name,
            "role": "weight",
            "qtype": "int8",
            "scale": scale,
            "zero_point": np.zeros(scale.shape, int),
            "histogram": Histogram.of_array(array),
            "clipped": 0.0,
            "peaks": peaks,
            **changes,
        }
    )


def output(sqnr=35.0, agreement=0.995, name="logits"):
    return OutputComparison(name, sqnr, 0.9995, 0.12, agreement)


def subject(nodes=None, *, worst=None, tensors=None, **changes):
    """Return a small report: one good model of three nodes unless told otherwise."""
    nodes = nodes if nodes is not None else [measured(name=f"conv{n}") for n in range(3)]
    return ReportSubject(
        **{
            "float_name": "model.onnx",
            "quantized_name": "model-int8.onnx",
            "float_bytes": 4_000_000,
            "quantized_bytes": 1_050_000,
            "outputs": [output()],
            "nodes": [n if isinstance(n, ReportNode) else ReportNode(measured=n) for n in nodes],
            "worst": list(range(len(nodes))) if worst is None else worst,
            "tensors": {t.name: t for t in tensors or ()},
            "samples": 8,
            "data": "images",
            "data_option": "--data images",
            "recipe": load_recipe("int8"),
            **changes,
        }
    )


def evil_subject():
    """Return a report in which every name tries to become a script."""
    node = ReportNode(
        measured=measured(name=EVIL, op=EVIL, action="float", reason=EVIL, output=EVIL),
        tensors=[("input", EVIL), ("weight", EVIL + "w")],
    )
    plan = QuantPlan(
        fingerprint=EVIL, tool=EVIL, recipe=Recipe(name=EVIL), tensors={}, nodes={}, notes=[EVIL]
    )
    given = subject(
        [node, measured(name=EVIL + "2", local_sqnr=1.0)],
        outputs=[output(1.0, 0.1, EVIL)],
        tensors=[activation(EVIL), weight(EVIL + "w")],
        float_name=EVIL,
        quantized_name=EVIL,
        data=EVIL,
        data_option=EVIL,
        recipe=Recipe(name=EVIL),
        plan=plan,
        plan_name=EVIL,
    )
    return with_fix(given, plan_name=EVIL)


def with_fix(given, *back, to="float", reached=True, **changes):
    """Return the report with nodes tried out: each regains less than the one before it."""
    names = [node.measured.name for node in given.nodes if node.quantized]
    nodes = [
        NodeSensitivity(name, "Conv", 0.02 / rank, 0.1 * (1 - 0.5 / rank), 0.1)
        for rank, name in enumerate(reversed(names), 1)
    ]
    plan = QuantPlan(fingerprint="", recipe=given.recipe or Recipe(), tensors={}, nodes={})
    found = Sensitivity(plan, 0.1, nodes, 8, None)
    left = 0.015 if reached else 0.06
    proposal = Proposal(plan, back or (nodes[0].name,), to, len(names), 0.1, left, 0.8, 0.1, left)
    return replace(
        given, suggested_fix=SuggestedFix(sensitivity=found, proposal=proposal, **changes)
    )


def tuned(**changes):
    """Return what a tuning run found, as plain data."""
    units = [
        {"node": "conv_7", "op": "Conv", "state": "float", "reason": "31 % of the error"},
        {"node": EVIL, "op": "Gemm", "state": "a16", "reason": "12 % of the error"},
    ]
    changed = [tuple(unit.values()) for unit in units]

    def point(cost, measured_cost, drop, fallen):
        spread = None if drop is None else [drop - 0.003, drop + 0.003]
        found = None if drop is None else {"drop": drop, "interval": spread, "samples": 400}
        verdict = None if drop is None else "pass" if drop < 0.01 else "fail"
        times = None if measured_cost is None else [measured_cost, measured_cost + 0.4]
        return {"cost": cost, "error": 0.1, "measured_cost": measured_cost, "measured": found,
                "cost_spread": times, "verdict": verdict, "refined": False,
                "fallen": fallen}  # fmt: skip

    return {
        "met": True,
        "metric": "top1",
        "max_drop": 0.01,
        "purpose": "speed",
        "float_score": 0.75,
        "float_cost": 5.0,
        "points": [
            point(2.0, None, 0.03, []),
            point(2.5, 2.6, 0.004, units),
            point(3.5, None, None, units * 2),
        ],
        "chosen": 1,
        "final": {"drop": 0.006, "interval": [0.001, 0.011], "samples": 100},
        "stopped": None,
        "changed": changed,
        "ship": "yes, top1 is within the allowed drop",
        "notes": ["weights alone lose nothing"],
        "command": "bitwright apply model.onnx best-plan.json -o int8.onnx",
        **changes,
    }


def network(count, *, seed=0, sabotaged=None):
    """Return a report of a deep network whose error grows with depth, and jumps where sabotaged."""
    rng = np.random.default_rng(seed)
    sabotaged = int(count * 0.62) // 7 * 7 if sabotaged is None else sabotaged
    nodes, tensors, plans = [], {}, {}
    # A few of each, by many names: a test is not for drawing random numbers.
    drawn_values = [
        activation(values=np.maximum(rng.standard_normal(900), 0) * size)
        for size in rng.uniform(0.5, 4, 40)
    ]
    drawn_weights = [weight(seed=n) for n in range(20)]
    noise = 1e-5
    for place in range(count):
        op = OPS[place % len(OPS)]
        block = place // len(OPS)
        name = f"/backbone/stage{block // 8 + 1}/block{block % 8}/{op.lower()}_{place}"
        left = op == "Softmax"
        local = None if left else float(rng.normal(44, 4))
        if place == sabotaged:
            local = 11.3
        noise += 0 if local is None else 10 ** (-local / 10) * 0.05
        made, got = f"{name}_output", f"{OPS[(place - 1) % len(OPS)].lower()}_{place - 1}_output"
        drawn = []
        if not left:
            tensors[made] = replace(drawn_values[place % 40], name=made)
            drawn = [("input", got), ("output", made)]
            tensors.setdefault(got, replace(drawn_values[place * 7 % 40], name=got))
        if op in ("Conv", "MatMul"):
            key = f"{name}.weight"
            tensors[key] = replace(drawn_weights[place % 20], name=key)
            if place == sabotaged:
                array = rng.standard_normal((24, 6, 3, 3)) * 0.1
                array[17] *= 1000
                tensors[key] = weight(key, array)
            drawn.insert(1, ("weight", f"{name}.weight"))
        reason = "Softmax is quantized only when named in op_types" if left else None
        plans[name] = NodePlan(op=op, action="float" if left else "quantize", reason=reason)
        nodes.append(
            ReportNode(
                measured=measured(
                    name=name,
                    op=op,
                    depth=place,
                    action="float" if left else "quantized",
                    reason=reason,
                    output=made,
                    sqnr=-10 * np.log10(noise) + float(rng.normal(0, 1.2)),
                    cosine=1 - noise / 2,
                    max_error=float(rng.lognormal(-3)),
                    local_sqnr=local,
                    saturated=float(rng.exponential(2e-4)) if not left else None,
                    used=float(rng.uniform(0.6, 1)) if not left else None,
                    # Each after the one before; an Add also after the start of its block.
                    reads=(place - 4, place - 1)
                    if op == "Add" and place > 3
                    else (place - 1,)[:place],
                ),
                tensors=drawn,
            )
        )
    recipe = load_recipe("int8")
    ranking = [(node.measured.local_sqnr, place) for place, node in enumerate(nodes)]
    return ReportSubject(
        float_name="resnet-like.onnx",
        quantized_name="resnet-like-int8.onnx",
        float_bytes=102_180_000,
        quantized_bytes=26_010_000,
        outputs=[output(18.4, 0.934)],
        nodes=nodes,
        worst=[place for local, place in sorted(m for m in ranking if m[0] is not None)],
        tensors=tensors,
        samples=16,
        data="imagenet-validation",
        data_option="--data imagenet-validation",
        recipe=recipe,
        plan=QuantPlan(
            tool="bitwright 0.1.0",
            fingerprint="0" * 16,
            recipe=recipe,
            tensors={},
            nodes=plans,
            notes=["folded 53 batch norms into their convolutions"],
        ),
    )
