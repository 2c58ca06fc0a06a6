"""Work on real Ray clusters of two nodes, whose workers and nodes are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from bitwright.errors import ClusterError, DataError
from bitwright.support.cluster import ClusterWorkers
from bitwright.support.cluster_connection import all_nodes_see, open_cluster

ray = pytest.importorskip("ray", reason="ray is not installed")
NodeAffinitySchedulingStrategy = pytest.importorskip(
    "ray.util.scheduling_strategies"
).NodeAffinitySchedulingStrategy


def make_adder(base, marks):
    """Add; what is to fail once, or always, is told by a file."""

    def add(item):
        folder = Path(marks)
        if item == "refuse":
            raise DataError("item 'refuse' is refused.")
        if isinstance(item, tuple):
            what, value = item
            mark = folder / f"{what}-{value}"
            if what == "die always" or (what == "die once" and not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "node dies" and not mark.exists():
                mark.touch()
                time.sleep(60)
            item = value
        return base + item

    return lambda items: [add(item) for item in items]


def concatenate(one, other):
    return one + other


def start_cluster():
    """Two nodes; a machine that is busy with other tests may need more than one attempt."""
    from ray.cluster_utils import Cluster

    for _ in range(3):
        made = None
        try:
            made = Cluster(
                initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
            )
            made.add_node(num_cpus=1)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            if made is not None:
                made.shutdown()
        else:
            return made
    pytest.skip("this machine is too busy to start a cluster in Ray's 30 seconds")


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        # What the workers unpickle is in this file.
        places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        patch.setenv("PYTHONPATH", places)
        patch.setenv("RAY_worker_niceness", "0")  # else whatever else runs here comes first
        made = start_cluster()
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.mark.slow
def test_items_on_two_nodes_come_in_order_and_the_dead_are_replaced(cluster, tmp_path):
    items = [*range(9), ("die once", 9), *range(10, 20)]
    seen = []
    with (
        open_cluster(None) as connected,
        ClusterWorkers(connected, make_adder, (100, str(tmp_path)), count=2) as work,
        pytest.warns(UserWarning, match="a worker of the cluster died; shard 1 is done"),
    ):
        merged = work.reduce(items, concatenate, on_done=seen.append)
    assert merged == [100 + i for i in range(20)]
    assert seen[-1] == 20 and seen == sorted(seen)


@pytest.mark.slow
def test_results_are_the_same_for_any_number_of_workers(cluster, tmp_path):
    for workers in (1, 2, None):
        with ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=workers, shard=2) as work:
            assert list(work.map([])) == []  # before any worker has started
            for _ in range(2):  # the same workers
                assert list(work.map([[item] for item in range(5)])) == [[1], [2], [3], [4], [5]]
                assert list(work.stream(range(5))) == [1, 2, 3, 4, 5]
            assert work.reduce([], concatenate) is None and list(work.map([])) == []
            first = next(iter(work.map([[item] for item in range(50)])))  # the rest is given up
            assert first == [1] and list(work.map([[7]])) == [[8]]


class Parts(dict):
    """What is kept of a run."""

    def put(self, number, part):
        self[number] = part

    def get(self, number):
        return self[number]


@pytest.mark.slow
def test_parts_that_are_kept_are_not_done_again(cluster, tmp_path):
    kept, seen = Parts(), []
    items = list(range(20))
    with ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=2) as work:
        first = work.reduce(items, concatenate, kept=kept)
    assert first == list(range(1, 21)) and sorted(kept) == [0, 1]  # the last one is not full
    kept[1] = ["kept"]
    with ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=2) as work:
        again = work.reduce(items, concatenate, on_done=seen.append, kept=kept)
        assert again == [*range(1, 9), "kept", *range(17, 21)] and seen[-1] == 20
        with pytest.raises(DataError, match="fewer samples than in the run that is to go on"):
            work.reduce(items[:12], concatenate, kept=kept)


@pytest.mark.slow
def test_all_nodes_are_asked_for_files(cluster, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"x")
    assert all_nodes_see(ray, [str(tmp_path / "x.npy"), str(tmp_path)])


@pytest.mark.slow
def test_an_error_of_ours_comes_as_it_is(cluster, tmp_path):
    with ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=2) as work:
        with pytest.raises(DataError, match=r"^item 'refuse' is refused\.$") as caught:
            list(work.map([[1], ["refuse"], [2]]))
        assert type(caught.value) is DataError


@pytest.mark.slow
def test_an_item_that_kills_every_worker_is_told(cluster, tmp_path):
    with (
        ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=1) as work,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        with pytest.raises(ClusterError, match="workers died over the same samples"):
            list(work.map([[("die always", 1)]]))


@pytest.mark.slow
def test_a_node_that_dies_is_done_without(cluster, tmp_path):
    extra = cluster.add_node(num_cpus=1)
    work = ClusterWorkers(ray, make_adder, (1, str(tmp_path)), count=1)
    # The first items are done on the new node, those after it wherever there is room.
    elsewhere = work._options
    strategy = NodeAffinitySchedulingStrategy(extra.node_id, soft=False)
    work._options = {**elsewhere, "scheduling_strategy": strategy}
    killed = []

    def kill_node():
        while not list(tmp_path.glob("node dies-*")):
            time.sleep(0.2)
        work._options = elsewhere
        cluster.remove_node(extra, allow_graceful=False)
        killed.append(extra)

    thread = threading.Thread(target=kill_node)
    thread.start()
    try:
        with pytest.warns(UserWarning, match="of the cluster died"):
            found = list(work.map([[1], [("node dies", 2)], [3]]))
    finally:
        thread.join()
        work.close()
    assert found == [[2], [3], [4]] and killed
