"""A model in a browser's runtime, onnxruntime-web's WebAssembly with SIMD, which node runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from bitwright import graph
from bitwright.assess.bench.process import ModelProcess
from bitwright.data import Sample
from bitwright.errors import DataError, MissingPackageError, ModelError
from bitwright.support import WorkerProcess

_SCRIPT = Path(__file__).with_name("web.mjs")


class WebProcess(ModelProcess):
    """Node with an open model, one thread; its seconds are those that the process worked."""

    _runtime = "onnxruntime-web"

    @classmethod
    def of_model(cls, name: str, model: ir.Model, path: Path) -> WebProcess:
        """Open a model, which is written to one file first: a browser is given bytes.

        Node must find the npm package onnxruntime-web from the working folder, or by NODE_PATH.
        """
        graph.save_model(graph.clone_model(model), path, external_data=False)
        try:
            return cls(name, "open", model=str(path.absolute()))
        except ModelError as error:
            if "Cannot find module" not in str(error):
                raise
            raise MissingPackageError(
                "node does not find the npm package onnxruntime-web; run 'npm install "
                "onnxruntime-web' in this folder, or name a node_modules that has it in NODE_PATH."
            ) from error

    def _start(self) -> WorkerProcess:
        node = shutil.which("node")
        if node is None:
            raise MissingPackageError(
                "onnxruntime-web is run by node, which is not installed; install it from "
                "https://nodejs.org, and then the npm package onnxruntime-web."
            )
        return WorkerProcess(_SCRIPT, [node, _SCRIPT])

    def load(self, samples: Sequence[Sample], folder: Path) -> None:
        """Give it the samples, in files of a new folder: the numbers of each input."""
        folder.mkdir()
        feeds = []
        for index, sample in enumerate(samples):
            tensors = {}
            for place, (name, array) in enumerate(sample.items()):
                if array.dtype.kind not in "fiub":
                    raise DataError(
                        f"input {name!r} takes {array.dtype}, which cannot be timed yet."
                    )
                file = folder / f"{index}-{place}.bin"
                array.tofile(file)
                tensors[name] = {"type": array.dtype.name, "dims": array.shape, "file": str(file)}
            feeds.append(tensors)
        self.call("load", samples=feeds)
