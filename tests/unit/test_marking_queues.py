"""What a host's own queues say about marking."""

from __future__ import annotations

import pytest

from genie.fabric.survey import marking_queues
from genie.topology import Ecn

TBF = '{"kind":"tbf","handle":"7e1e:","dev":"wire0","root":true,"options":{"rate":2500000}}'
RED = (
    '{"kind":"red","handle":"7e1f:","dev":"wire0","parent":"7e1e:1","options":{"limit":131072,"min":25600,'
    '"max":76800,"ecn":true,"nodrop":true,"ewma":2,"probability":0.1}}'
)
DROPS = RED.replace('"ecn":true', '"ecn":false')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"[{TBF},{RED}]", {"wire0": Ecn(25_600, 76_800, 0.1)}, id="a red below a shaper"),
        pytest.param(f"[{TBF}]", {}, id="a shaper alone"),
        pytest.param(f"[{RED}]", {}, id="a red that belongs to another root"),
        pytest.param(f"[{TBF},{DROPS}]", {}, id="a red that drops"),
        pytest.param("", {}, id="no tc there"),
    ],
)
def test_only_a_red_that_marks_below_a_shaper_is_one(text: str, expected: dict[str, Ecn]) -> None:
    assert marking_queues(text) == expected
