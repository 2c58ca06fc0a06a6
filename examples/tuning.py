"""Quantize the shipped classifier as far as its accuracy allows: tuning.py OUTPUT [DROP]."""

import sys

import bitwright


def accuracy(outputs, sample):
    """Return whether the best class is the label."""
    return outputs["logits"].argmax() == sample["label"]


def main(output: str, drop: str = "2%") -> None:
    """Search on labelled samples, and report on some that the search has not seen."""
    demo = bitwright.load_demo()
    result = bitwright.tune(
        demo.model_path,
        output,
        data=demo.calibration[:32],
        eval_data={"image": demo.images[:200], "label": demo.labels[:200]},
        evaluate=accuracy,
        max_drop=drop,
        effort="low",
    )
    print(result.summary())


if __name__ == "__main__":
    main(*sys.argv[1:])
