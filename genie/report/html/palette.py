"""Colours of the HTML report, for light and dark, as CSS variables. Used by the page and by charts that stand alone.

Series colours keep apart for the three common colour deficiencies and have 3:1 against the page, text has 4.5:1, and
the heat scale rises in lightness alone (light: pale to dark; dark: the other way); `tests/unit/test_html_palette.py`
computes all of it. No meaning hangs on colour alone: lines differ in dashes too, and every chart has a table behind
it.
"""

from __future__ import annotations

from collections.abc import Mapping

SERIES = 5
HEAT_LEVELS = 8
VERDICTS = ("ok", "improved", "measured", "degraded", "inconclusive", "invalid")

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "panel": "#f5f7f9",
    "text": "#1a2027",
    "muted": "#55606c",
    "rule": "#d3dae1",
    "link": "#0b5ea8",
    "s0": "#0b6bb8",
    "s1": "#d55e00",
    "s2": "#46243f",
    "s3": "#8d0bf8",
    "s4": "#b3845a",
    "idle": "#c3ccd4",
    "window": "#d55e00",
    "h0": "#eef6d2",
    "h1": "#cfe9be",
    "h2": "#9dd6b9",
    "h3": "#63c1c1",
    "h4": "#38a0c1",
    "h5": "#2478b3",
    "h6": "#214f9c",
    "h7": "#14246b",
    "ok": "#1a7f37",
    "improved": "#1a7f37",
    "measured": "#0b5ea8",
    "degraded": "#c3261c",
    "inconclusive": "#8a5a00",
    "invalid": "#7a3bc4",
    "on": "#ffffff",
}
DARK: Mapping[str, str] = {
    "page": "#0f1318",
    "panel": "#171d24",
    "text": "#e6eaee",
    "muted": "#9aa6b2",
    "rule": "#303a45",
    "link": "#79bdf2",
    "s0": "#58b0ee",
    "s1": "#ff9a4d",
    "s2": "#f4f1c8",
    "s3": "#8f76ff",
    "s4": "#ff5c93",
    "idle": "#46515d",
    "window": "#ff9a4d",
    "h0": "#1b2440",
    "h1": "#21386f",
    "h2": "#245494",
    "h3": "#2878b0",
    "h4": "#3c9fc0",
    "h5": "#6cc2bf",
    "h6": "#a8dbb8",
    "h7": "#eaf5cf",
    "ok": "#4ac26b",
    "improved": "#4ac26b",
    "measured": "#79bdf2",
    "degraded": "#ff8178",
    "inconclusive": "#e3b341",
    "invalid": "#c297ff",
    "on": "#0f1318",
}


def variables() -> str:
    """The CSS of both schemes; print is always light, since paper is."""
    light = "".join(f"--{name}:{value};" for name, value in LIGHT.items())
    dark = "".join(f"--{name}:{value};" for name, value in DARK.items())
    return f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
