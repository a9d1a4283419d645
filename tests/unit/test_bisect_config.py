"""What ``bisect.changes`` may hold, before a search begins."""

from __future__ import annotations

import pytest

from genie.bisect.config import BisectConfig
from genie.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "one of the changes is empty"),
        ("  ", "one of the changes is empty"),
        ("protocol=aba", "'protocol=aba' is no change: protocol is the same for all states"),
        ("collective=ring +dry_run=true", "'+dry_run=true' is no change"),
        ("bisect.worse_ratio=3", "bisect is the same for all states"),
        ("tracking.mlflow.enabled=false", "tracking is the same for all states"),
    ],
    ids=["nothing", "blanks", "a protocol", "one word of two", "a setting of the search", "where it is logged"],
)
def test_what_is_no_change_is_refused(change, says):
    with pytest.raises(ConfigError) as error:
        BisectConfig(changes=("collective=ring", change))
    assert says in str(error.value)


def test_changes_of_anything_that_makes_a_state_are_taken():
    changes = ("fault=link_rate_half", "topology.mtu=1500 collective=ring", "seed=3", "warmup=0")
    assert BisectConfig(changes=changes).changes == changes
