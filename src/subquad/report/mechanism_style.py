"""The colour of each mechanism, the same on every page and in every figure."""

import colorsys
from zlib import crc32

_HUES = {
    "dba": 215, "linformer": 25, "luna": 160, "performer": 320, "linear": 45, "cosformer": 345, "flowformer": 185,
    "ecoformer": 110, "attention_bn": 265, "attention_sh": 290, "linear_bn_sh": 60, "reformer": 5, "blrp": 240,
    "nystromformer": 140, "transformer_ls": 200, "yoso": 80, "s4": 300, "s4_dba": 225,
}  # fmt: skip
"""Hues of mechanisms that are often in one chart, in degrees; others have one that their name determines."""


def colours(mechanism: str) -> tuple[str, str]:
    """The colour on a light and on a dark page; grey for softmax and for none, which others are compared with."""
    if mechanism in ("", "no_attention", "softmax"):
        return ("#8a9099", "#7d8590") if mechanism != "softmax" else ("#1b1f24", "#e6e9ee")
    hue = _HUES.get(mechanism, crc32(mechanism.encode()) % 360) / 360
    light, dark = (colorsys.hls_to_rgb(hue, lightness, 0.62) for lightness in (0.38, 0.68))
    return _hex(light), _hex(dark)


def _hex(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
