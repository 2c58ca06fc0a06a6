import logging

import bitwright


def test_a_job_logs_its_steps_and_what_became_of_each_node(caplog):
    demo = bitwright.load_demo()
    caplog.set_level(logging.DEBUG, "bitwright")
    result = bitwright.quantize(
        demo.model_path, data=demo.calibration[:4], recipe="int8", progress=False
    )
    lines = [record.getMessage() for record in caplog.records]
    steps = [line.split(":")[0] for line in lines if line.endswith(" s")]
    wanted = ["prepare the model", "observe ranges", "decide", "round weights"]
    assert [step for step in steps if step in wanted] == wanted
    named = [line for line in lines if line.startswith("node ")]
    assert len(named) == len(result.plan.nodes)
    for note in result.plan.notes:
        assert f"note: {note}" in lines


def test_the_library_adds_no_handler():
    bitwright.inspect(bitwright.load_demo().model_path)
    assert logging.getLogger("bitwright").handlers == []
