"""Models run by the torch executor."""

import onnx_ir as ir


def run_in_torch(proto, feeds, device="cpu"):
    import torch  # not everywhere: the tests skip without it

    from bitwright.learning.torch_graph.executor import TorchGraph

    model = ir.serde.deserialize_model(proto)
    outputs = [value.name for value in model.graph.outputs]
    graph = TorchGraph(model.graph, outputs, opset=model.graph.opset_imports[""], device=device)
    found = graph.run({name: torch.from_numpy(array).to(device) for name, array in feeds.items()})
    return [found[name].cpu().numpy() for name in outputs]
