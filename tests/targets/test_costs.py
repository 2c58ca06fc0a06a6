import pytest

from bitwright.decide.placement.kernels import KERNELS
from bitwright.errors import TargetError
from bitwright.targets.costs import CPU_CLASSES, Cost, CostTable, Work, read_costs, write_costs
from bitwright.targets.host import detect_cpu_class


@pytest.mark.parametrize("cpu", CPU_CLASSES)
def test_every_class_has_a_price_for_every_kernel(cpu):
    table = read_costs(cpu)
    assert table.cpu == cpu
    assert set(table.kernels) == set(KERNELS)


def test_a_class_that_nobody_measured_says_whose_table_it_has():
    assert read_costs("x86-vnni").borrowed_from is None
    assert read_costs("arm").borrowed_from in CPU_CLASSES


def test_in_the_browser_a_convolution_gains_less_from_integers_than_with_vnni():
    floats, integers = Work("conv_blocked", 1e8, 1e5, 1e5), Work("qconv", 1e8, 1e5, 1e5)
    wasm, vnni = read_costs("wasm-simd"), read_costs("x86-vnni")
    gains = [table.time(floats) / table.time(integers) for table in (wasm, vnni)]
    assert wasm.borrowed_from is None
    assert gains[0] < gains[1]


def test_without_a_name_it_is_the_class_of_this_machine():
    assert read_costs().cpu == detect_cpu_class()


def test_time_is_linear_in_the_work():
    table = CostTable(cpu="arm", kernels={"k": Cost(call=2, macs=10, read=3, written=5)})
    assert table.time(Work("k", 5e6, 2000, 1000)) == 2 + 50 + 6 + 5


def test_a_table_that_is_written_is_read_back(tmp_path):
    table = CostTable(cpu="arm", flags=("dot",), kernels={"k": Cost(call=2.5, written=0.25)})
    path = tmp_path / "mine.json"
    write_costs(table, path)
    assert read_costs(path) == read_costs(str(path)) == table


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a table"),
        ('{"cpu": "arm"}', "kernels"),
        ('{"cpu": "arn", "kernels": {}}', "Did you mean 'arm'"),
        ('{"cpu": "arm", "kernels": {"k": {"call": -1}}}', "at least 0"),
        ('{"cpu": "arm", "kernels": {"k": {"cals": 1}}}', "cals"),
    ],
)
def test_a_malformed_table_is_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(TargetError, match=words):
        read_costs(path)


def test_unknown_names_get_a_hint():
    with pytest.raises(TargetError, match="Did you mean 'x86-amx'"):
        read_costs("x86-amy")
    with pytest.raises(TargetError, match="Known: arm"):
        read_costs("zzz")
    with pytest.raises(TargetError, match="cannot read the costs"):
        read_costs("none.json")
    with pytest.raises(TargetError, match="Did you mean 'qadd'"):
        read_costs("arm").time(Work("qad"))


def test_the_shipped_tables_name_what_they_were_measured_with():
    for cpu in CPU_CLASSES:
        table = read_costs(cpu)
        assert table.processor
        assert {"onnxruntime", "onnxruntime-web"} & table.versions.keys()
