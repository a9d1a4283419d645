"""The report's colours: apart for colour-blind eyes, strong against the page, heat that rises in lightness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from genie.report.html.palette import DARK, HEAT_LEVELS, LIGHT, SERIES, VERDICTS

# What is left of linear RGB for full protanopia, deuteranopia and tritanopia (Machado, Oliveira, Fernandes 2009).
EYES = {
    "all three cones": np.eye(3),
    "protanopia": np.reshape(
        [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998], (3, 3)
    ),
    "deuteranopia": np.reshape(
        [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881], (3, 3)
    ),
    "tritanopia": np.reshape(
        [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900], (3, 3)
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
SCHEMES = {"light": LIGHT, "dark": DARK}
APART = 20
"""CIE76 distance: ten times what is just noticeable side by side."""


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ TO_XYZ[1])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (0.95047, 1, 1.08883)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.fixture(params=SCHEMES.values(), ids=SCHEMES.keys())
def scheme(request):
    return request.param


@pytest.mark.parametrize("eye", EYES.values(), ids=EYES.keys())
def test_series_are_told_apart(scheme, eye):
    seen = {f"s{i}": lab(eye @ linear(scheme[f"s{i}"])) for i in range(SERIES)}
    distances = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2)}
    assert min(distances.values()) >= APART, distances


@pytest.mark.parametrize("eye", EYES.values(), ids=EYES.keys())
def test_the_parts_of_a_bar_are_told_apart(scheme, eye):
    seen = [lab(eye @ linear(scheme[name])) for name in ("s0", "s1", "idle")]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= APART


@pytest.mark.parametrize("eye", EYES.values(), ids=EYES.keys())
def test_the_heat_scale_is_one_way_in_lightness(scheme, eye):
    steps = np.diff([lab(eye @ linear(scheme[f"h{i}"]))[0] for i in range(HEAT_LEVELS)])
    assert (steps < -3).all() if scheme is LIGHT else (steps > 3).all(), steps


@pytest.mark.parametrize("name", ["text", "muted", "link", *VERDICTS])
@pytest.mark.parametrize("ground", ["page", "panel"])
def test_text_can_be_read(scheme, name, ground):
    assert contrast(scheme[name], scheme[ground]) >= 4.5


@pytest.mark.parametrize("name", [f"s{i}" for i in range(SERIES)])
def test_lines_stand_out_from_the_page(scheme, name):
    assert contrast(scheme[name], scheme["page"]) >= 3


@pytest.mark.parametrize("name", VERDICTS)
def test_the_word_in_a_badge_can_be_read(scheme, name):
    assert contrast(scheme["on"], scheme[name]) >= 4.5


def test_both_schemes_name_the_same_colours():
    assert LIGHT.keys() == DARK.keys()
