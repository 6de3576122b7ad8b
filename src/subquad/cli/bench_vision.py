"""Images per second and memory of vision models with other attentions, relative to softmax attention.

python scripts/bench_vision.py                                 # EcoFormer in PVTv2-B0 at 224 x 224
python scripts/bench_vision.py model=twins_svt_small attention=[ecoformer,linformer] batch=4 size=112

"published" is the original model: PVTv2 and Twins with their reduction of keys.
"""

import sys
from typing import get_args

import timm
import torch
from rich.console import Console
from rich.table import Table

from subquad.backbones.vision import Pyramid, PyramidName, ViT
from subquad.cli.command import listed, script_settings
from subquad.config.compose import load_attention
from subquad.measure.benchmark import Measured
from subquad.measure.image_speed import Models, measure_images
from subquad.specs import ImageSpec
from subquad.utils.cores import usable_cores
from subquad.utils.devices import chosen_device
from subquad.utils.errors import UserError

SIZES = {
    "model": "pvt_v2_b0", "attention": ["ecoformer"], "modes": ["inference", "training"], "batch": 8, "size": 224,
    "rounds": 5, "threads": None, "device": "auto",
}  # fmt: skip


FULL, PUBLISHED = "softmax", "published"


def main() -> None:
    """Prints one table for each mode."""
    config = script_settings(SIZES, sys.argv[1:])
    torch.set_num_threads(config.threads or usable_cores())
    device = chosen_device(config.device)
    spec = ImageSpec(side=config.size, channels=3, classes=1000)
    chosen = listed(config.attention)
    torch.manual_seed(0)
    models = build_models(config.model, spec, list(dict.fromkeys([FULL, *chosen])))
    for mode in config.modes:
        measured = measure_images(models, spec, mode, config.batch, config.rounds, device)
        title = (
            f"{config.model}, {mode}: {config.batch} images of {spec.side} x {spec.side}, "
            f"{torch.get_num_threads()} threads, {device}"
        )
        Console(width=110).print(_table(title, measured, config.batch))


def build_models(name: str, spec: ImageSpec, attentions: list[str]) -> Models:
    """Builds a model with each attention (stage 4 of a pyramid keeps softmax), and a pyramid also as published."""
    factories = {choice: load_attention(choice) for choice in attentions}
    if name in get_args(PyramidName):
        replaced = {
            choice: Pyramid(spec, factory, factories[FULL], name)  # type: ignore[arg-type]
            for choice, factory in factories.items()
        }
        return {**replaced, PUBLISHED: timm.create_model(name, num_classes=spec.classes)}
    if name != "deit_tiny":
        raise UserError(f"There is no model {name} to measure; choose deit_tiny, {', '.join(get_args(PyramidName))}.")
    return {
        choice: ViT(spec, factory, layers=12, dim=192, heads=3, ffn=768, patch=16, class_token=True)
        for choice, factory in factories.items()
    }


def _table(title: str, measured: dict[str, Measured], batch: int) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("", "ms", "images/s", "x softmax", "range", "memory MiB", "of softmax"):
        table.add_column(heading, justify="right" if heading else "left")
    full = measured[FULL]
    for name, m in measured.items():
        least, most = full.timing.spread(m.timing)
        table.add_row(
            name, f"{1e3 * m.timing.median:.0f}", f"{batch / m.timing.median:.1f}",
            f"{full.timing.ratio(m.timing):.2f}", f"{least:.2f}-{most:.2f}",
            f"{m.peak / 2**20:.0f}", f"{m.peak / full.peak:.2f}",
        )  # fmt: skip
    return table
