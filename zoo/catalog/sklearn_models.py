"""Estimators of scikit-learn through skl2onnx: mostly models with nothing to quantize."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from zoo.case import save_samples
from zoo.network import SAMPLES
from zoo.runner import Model, model_of_file

ESTIMATORS = {
    "linear": ("linear_model", "LinearRegression", {}),
    "logistic": ("linear_model", "LogisticRegression", {}),
    "ridge": ("linear_model", "Ridge", {}),
    "tree": ("tree", "DecisionTreeClassifier", {"max_depth": 4}),
    "forest": ("ensemble", "RandomForestClassifier", {"n_estimators": 4, "max_depth": 3}),
    "boosting": ("ensemble", "GradientBoostingClassifier", {"n_estimators": 4}),
    "svc": ("svm", "SVC", {}),
    "neighbors": ("neighbors", "KNeighborsClassifier", {}),
    "naive-bayes": ("naive_bayes", "GaussianNB", {}),
    "mlp": ("neural_network", "MLPClassifier", {"hidden_layer_sizes": (32, 16), "max_iter": 20}),
    "mlp-regressor": (
        "neural_network",
        "MLPRegressor",
        {"hidden_layer_sizes": (32,), "max_iter": 20},
    ),
    "scaler": ("preprocessing", "StandardScaler", {}),
    "pca": ("decomposition", "PCA", {"n_components": 8}),
    "kmeans": ("cluster", "KMeans", {"n_clusters": 4, "n_init": 1}),
}


def models(folder: Path) -> Iterator[Model]:
    """Give every estimator, fitted to the digits and converted."""
    for name in ESTIMATORS:
        path = folder / "sklearn" / f"{name}.onnx"
        if not path.exists():
            _convert(name, path)
        yield model_of_file(f"sklearn/{name}", "skl2onnx", path)


def _convert(name: str, path: Path) -> None:
    import importlib
    import warnings

    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32) / 16
    module, class_name, options = ESTIMATORS[name]
    kind = getattr(importlib.import_module(f"sklearn.{module}"), class_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(**options).fit(pixels[:200], labels[:200])
        proto = to_onnx(model, pixels[:1], options=_plain(model), target_opset=17)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    rows = pixels[200 : 200 + SAMPLES]
    save_samples(path.with_suffix(".npz"), [{"X": row[np.newaxis]} for row in rows])


def _plain(model: object) -> dict[int, dict[str, bool]] | None:
    """Ask for probabilities as a tensor: a list of maps is nothing that can be compared."""
    return {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
