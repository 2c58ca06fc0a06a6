"""One search of `tune.py`: a JSON object with what to do, as the only argument.

Runs in the environment of either tool, so it imports nothing but what both have. Each session has
one thread: pinned to a core, those that ONNX Runtime takes for all cores would take it from each
other, which doubles a peer's CPU time.

A sample is right if the classes that it gets, repeated ones and blanks left out where they are a
sequence, are those of its label; a picture is as good as its boxes. Recordings are scored together:
how often a window of speech is above one without.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from area_under_roc import area_under_roc
from boxes import f1_of_objects
from measure import report

Sample = dict[str, np.ndarray]


def is_right(scores: np.ndarray, label: np.ndarray) -> float:
    """Return 1 for the right class, or for the right sequence of classes, else 0."""
    best = scores[0].argmax(axis=-1).reshape(-1)
    if best.size > 1:  # greedy CTC
        best = np.array([k for i, k in enumerate(best) if k and (i == 0 or k != best[i - 1])])
    return float(np.array_equal(best, np.asarray(label).reshape(-1)))


def rank_windows(outputs: list[np.ndarray], labels: list[np.ndarray]) -> float:
    """Return the area under ROC of all windows of all recordings."""
    return area_under_roc(np.stack([one.reshape(-1) for one in outputs]), np.stack(labels))


SCORES = {"classes": is_right, "objects": f1_of_objects}
"""For a sample, from its first output and its label."""
SET_SCORES = {"windows": rank_windows}
"""For all samples, from their first outputs and their labels."""


def bitwright(task: dict[str, Any], samples: list[Sample], labelled: list[Sample]) -> dict:
    import bitwright

    kind = task["score"]

    def score(outputs: dict[str, np.ndarray], sample: Sample) -> float:
        return SCORES[kind](next(iter(outputs.values())), sample["label"])

    def score_set(outputs: list[dict[str, np.ndarray]], samples: list[Sample]) -> float:
        first = [next(iter(found.values())) for found in outputs]
        return SET_SCORES[kind](first, [sample["label"] for sample in samples])

    result = bitwright.tune(
        task["model"],
        task["output"],
        data=samples,
        eval_data=labelled,
        evaluate=score_set if kind in SET_SCORES else score,
        evaluate_on="set" if kind in SET_SCORES else "sample",
        max_drop=task["drop"],
        work=task["work"],
        log=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    return {
        "met": float(result.met),
        "evaluations": result.evaluations,
        "unseen": result.drop,
        "fallen": len(result.fallen),
    }


def nncf(task: dict[str, Any], samples: list[Sample], labelled: list[Sample]) -> dict:
    import nncf
    import onnx
    import onnxruntime

    kind = task["score"]
    use_one_thread(onnxruntime.InferenceSession)
    # The part that our search evaluates on; the rest is for the end in both cases.
    validation = [labelled[index] for index in task["evaluation"]]
    calls = 0

    def validate(model: onnx.ModelProto, items: Any) -> tuple[float, list[float]]:
        nonlocal calls
        calls += 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        outputs, labels = [], []
        for item in items:
            feeds = {name: array for name, array in item.items() if name != "label"}
            outputs.append(session.run(None, feeds)[0])
            labels.append(item["label"])
        if kind in SET_SCORES:  # it ranks by the scores of each: its ONNX backend takes no outputs
            score = SET_SCORES[kind]
            each = [score([one], [label]) for one, label in zip(outputs, labels, strict=True)]
            return score(outputs, labels), each
        found = [SCORES[kind](*pair) for pair in zip(outputs, labels, strict=True)]
        return float(np.mean(found)), found

    quantized = nncf.quantize_with_accuracy_control(
        onnx.load(task["prepared"]),
        calibration_dataset=nncf.Dataset(samples),
        validation_dataset=nncf.Dataset(validation),
        validation_fn=validate,
        subset_size=len(samples),
        max_drop=task["drop"],
        drop_type=nncf.DropType.ABSOLUTE,
        model_type=nncf.ModelType.TRANSFORMER if task["transformer"] else None,
    )
    onnx.save(quantized, task["output"])
    return {"evaluations": calls}


def use_one_thread(sessions: Any) -> None:
    """Let all sessions have one thread, those too that a tool opens."""
    import onnxruntime

    open_with = sessions.__init__

    def open_one(self: Any, model: Any, sess_options: Any = None, *rest: Any, **more: Any) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        options.intra_op_num_threads = 1
        open_with(self, model, options, *rest, **more)

    sessions.__init__ = open_one


TOOLS = {"bitwright": bitwright, "nncf": nncf}
MODULES = {"bitwright": "bitwright.jobs.tuning.job", "nncf": "nncf"}
"""What loads a tool: imports are not its work, and ours are put off until they are needed."""


def read(folder: str) -> list[Sample]:
    found = []
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as arrays:
            found.append(dict(arrays))
    return found


def main() -> None:
    task = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    samples, labelled = read(task["data"]), read(task["labelled"])
    importlib.import_module(MODULES[task["tool"]])
    start, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        figures = TOOLS[task["tool"]](task, samples, labelled)
    report(time.perf_counter() - start, cpu=time.process_time() - cpu, **figures)


if __name__ == "__main__":
    main()
