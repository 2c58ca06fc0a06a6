"""`bitwright compare` on the demo model."""


def test_the_nodes_that_lose_most_are_shown(run, model, quantized, data):
    answer = run("compare", model, quantized, "--data", data, "--limit", 4, "--worst", 3)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "The 3 nodes that lose most on their own"
    assert lines[1].split("  ")[1] == "node"
    assert len([line for line in lines if line.startswith("  ")]) == 4
    assert "Samples: 4" in lines
    assert any(line.startswith("Against float: output ") for line in lines)


def test_verbose_shows_every_node_in_graph_order(run, model, quantized, data):
    document = run("compare", model, quantized, "--data", data, "--limit", 2, "--json").json
    answer = run("compare", model, quantized, "--data", data, "--limit", 2, "--verbose")
    lines = answer.out.splitlines()
    assert lines[0] == "All nodes in graph order"
    shown = [line.split()[0] for line in lines[2:] if line.startswith("  ")]
    assert shown == [node["name"] for node in document["nodes"]]


def test_json_has_nodes_tensors_outputs_and_weights(run, model, quantized, data):
    document = run("compare", model, quantized, "--data", data, "--json").json
    assert document["samples"] == 16
    assert document["worst"][0] in {node["name"] for node in document["nodes"]}
    assert document["outputs"][0]["sqnr"] > 20
    assert {"sqnr", "local_sqnr", "saturated", "used"} <= document["tensors"][0].keys()
    assert min(document["weights"].values()) > 20


def test_random_data_shows_that_it_runs(run, model, quantized):
    assert run("compare", model, quantized, "--random-data", 2, "--json").json["samples"] == 2


def test_without_data_one_sentence_says_what_to_give(run, model, quantized):
    answer = run("compare", model, quantized)
    assert answer.code == 1
    assert answer.err.startswith("error: comparing runs both models and needs samples; give --data")
