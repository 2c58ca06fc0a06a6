"""`ONNXModel` of `onnxruntime.quantization`, with two of its methods repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from itertools import count

from bitwright.compat.model_wrapper import read_names
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.graph.subgraphs import iter_messages

__getattr__, __dir__ = hand_on(__name__)


class ONNXModel(peer("onnx_model").ONNXModel):  # type: ignore[misc]
    """A model proto, looked at and changed in place.

    >>> import bitwright, onnx
    >>> model = ONNXModel(onnx.load(bitwright.load_demo().model_path))
    >>> model.is_graph_input("image"), len(model.nodes())
    (True, 27)
    """

    def remove_unused_constant(self) -> None:
        """Drop constants that nothing reads; the peer drops those that only a body reads, too."""
        read = {*read_names(self.graph()), *(value.name for value in self.graph().output)}
        nodes = [node for node in self.nodes() if node.op_type == "Constant"]
        self.remove_nodes([node for node in nodes if read.isdisjoint(node.output)])
        for tensor in [tensor for tensor in self.initializer() if tensor.name not in read]:
            for value in [value for value in self.graph().input if value.name == tensor.name]:
                self.graph().input.remove(value)
            self.remove_initializer(tensor)

    def replace_gemm_with_matmul(self) -> None:
        """Split Gemm nodes into MatMul and Add.

        The peer transposes a constant in place for each of the nodes that share it.
        """
        graphs = [graph for _, graph in iter_messages("", self.graph())]
        constants = {
            tensor.name: (tensor, graph) for graph in graphs for tensor in graph.initializer
        }
        readers = Counter(read_names(self.graph()))
        gemms = [node for graph in graphs for node in graph.node if node.op_type == "Gemm"]
        for node in gemms:
            name = node.input[1]
            if not any(each.name == "transB" and each.i for each in node.attribute):
                continue
            if readers[name] > 1 and name in constants:
                tensor, graph = constants[name]
                copied = graph.initializer.add()
                copied.CopyFrom(tensor)
                copied.name = node.input[1] = name_of_copy(name, constants)
                constants[copied.name] = copied, graph
                readers[name] -= 1
        super().replace_gemm_with_matmul()


def name_of_copy(name: str, taken: Container[str]) -> str:
    """Return a name for a copy that nothing has yet."""
    names = (f"{name}_{number}" for number in count(1))
    return next(name for name in names if name not in taken)
