"""Train tests/fixtures/sklearn_digits.onnx: a pipeline of scikit-learn that ends in a ZipMap.

pip install scikit-learn skl2onnx 'onnx<1.20'
python scripts/train_sklearn_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FILE = Path(__file__).parents[1] / "tests" / "fixtures" / "sklearn_digits.onnx"


def main() -> None:
    """Train on seven tenths of the digits, and print the accuracy on the others."""
    from skl2onnx import to_onnx

    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32)
    train, test, train_labels, test_labels = train_test_split(
        pixels, labels, random_state=0, test_size=0.3
    )
    network = MLPClassifier((256, 128), max_iter=60, random_state=0)
    pipeline = make_pipeline(StandardScaler(), network).fit(train, train_labels)
    print(f"{pipeline.score(test, test_labels):.1%} right")
    FILE.write_bytes(to_onnx(pipeline, train[:1], target_opset=17).SerializeToString())


if __name__ == "__main__":
    main()
