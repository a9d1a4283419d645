"""Whatever dies at whatever step of a fault: the target is as it was within the time limit, and somebody says so."""

import kill_matrix
import pytest

from genie.fabric.probe import probe


@pytest.fixture
def shaped(lab):
    """The lab, with a shaper of the target's own."""
    with kill_matrix.shaped(lab) as found:
        yield found


@pytest.mark.inventory
@pytest.mark.sample(2)
@pytest.mark.parametrize("cell", kill_matrix.POSSIBLE, ids=lambda cell: cell.name)
def test_a_death_on_machines(shaped, tmp_path, cell):
    print(kill_matrix.run_cell(shaped, cell, tmp_path))


@pytest.mark.inventory
def test_a_host_on_which_nobody_is_left(shaped, tmp_path):
    kill_matrix.run_with_nobody_left(shaped, tmp_path)


@pytest.mark.netns
@pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces: {probe().unfit}")
@pytest.mark.sample(1)
@pytest.mark.parametrize("cell", kill_matrix.NETNS_CELLS, ids=lambda cell: cell.name)
def test_a_death_on_namespaces(tmp_path, cell):
    print(kill_matrix.run_netns_cell(cell, tmp_path))
