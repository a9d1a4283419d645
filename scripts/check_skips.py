"""Refuse skipped tests that could have run: every reason in a JUnit file must match `ALLOWED`. Used by scripts/test."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from xml.etree import ElementTree

ROOT = os.geteuid() == 0
ALLOWED = {
    r"kernel (lacks|has no|without) ": "the kernel cannot do it",
    r"namespaces cannot be had": "the kernel refuses namespaces",
    r"not root": "needs root" if not ROOT else "",
    r"only (as|for) (an )?ordinary user": "needs a user that is not root" if ROOT else "",
    r"chromium is not installed": "needs root to install chromium" if not ROOT else "",
}
"""Reason (regular expression) → why that is no fault here; "" means that it is one here."""


def main(path: str) -> int:
    """Print the skips by reason; 1 if one is not allowed."""
    reasons: Counter[str] = Counter()
    for skipped in ElementTree.parse(path).getroot().iter("skipped"):  # noqa: S314 (pytest wrote it)
        reasons[(skipped.get("message") or "").strip()] += 1
    bad = 0
    for reason, count in sorted(reasons.items()):
        matches = (text for pattern, text in ALLOWED.items() if re.search(pattern, reason, re.IGNORECASE))
        why = next((text for text in matches if text), "")
        print(f"skipped {count}: {reason} [{why or 'NOT ALLOWED: this could run here'}]")
        bad += not why
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
