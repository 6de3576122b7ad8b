"""Builds attentions and models from the files of configs/, for code outside of this package."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from subquad.attention.base import Attention
from subquad.backbones.encoder import check_fits
from subquad.config.choices import CONFIGS, hint, options
from subquad.config.settings import check_settings
from subquad.utils.errors import UserError, explain

AttentionChoice = str | Callable[..., Attention]
"""The name of a file in configs/attention, a class, or a factory such as `functools.partial(DBA, d_p=16)`."""


def build_attention(attention: AttentionChoice, **settings: Any) -> Attention:
    """An attention with the settings of `configs/attention/<name>.yaml`, which `settings` change.

    The sizes of the layer (dim, heads, max_len, and the other values of a `Site`) are settings too. Raises UserError
    for unknown names and settings.

    Examples:
        >>> from subquad import build_attention
        >>> layer = build_attention("dba_per_head", dim=64, heads=4, max_len=512, d_p=8)
        >>> layer.d_p, layer.groups
        (8, 4)
    """
    return attention_factory(attention)(**settings)


def attention_factory(attention: AttentionChoice) -> Callable[..., Attention]:
    """The factory of a choice; it takes a site or sizes, and settings."""
    if not isinstance(attention, str):
        return partial(attention)
    return _instantiated("attention", f"+attention={_known('attention', attention)}")


def build_model(backbone: str, spec: Any, attention: AttentionChoice = "dba", **settings: Any) -> nn.Module:
    """A model of configs/backbone with untrained weights; each layer has its own `attention`.

    Args:
        backbone: the name of a file in configs/backbone. Backbones with a mechanism of their own ignore `attention`.
        spec: the inputs and outputs, such as a `DataSpec` for sequences or an `ImageSpec` for images.
        attention: the attention of the layers; those that keep exact attention have softmax.
        settings: replace those of the file, such as dim, layers, heads and ffn.

    Examples:
        >>> import torch
        >>> from subquad import DataSpec, build_model
        >>> spec = DataSpec(max_len=128, vocab=20, classes=10)
        >>> model = build_model("sequence", spec, "linformer", dim=32, layers=2)
        >>> model(torch.randint(1, 20, (3, 100)), None).shape
        torch.Size([3, 10])
    """
    named = attention if isinstance(attention, str) else "softmax"
    factory = _instantiated(
        "backbone", f"+backbone={_known('backbone', backbone)}", f"+attention={_known('attention', named)}",
        "+attention@exact=softmax", settings=settings,
    )  # fmt: skip
    if not isinstance(attention, str) and "attention" in factory.keywords:
        factory = partial(factory, attention=attention)
    check_fits(factory, spec)
    try:
        model: nn.Module = factory(spec=spec)
    except ModuleNotFoundError as error:
        raise explain(error) or error from None
    return model


def _known(group: str, name: str) -> str:
    if name not in (known := options(group)):
        raise UserError(f"There is no {group} {name}; {hint(name, known)}")
    return name


def _instantiated(group: str, *overrides: str, settings: dict[str, Any] | None = None) -> Any:
    """The factory that the node `group` of a composition describes; the caller's own use of Hydra is not affected."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()  # Hydra refuses to be initialised twice
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = compose(overrides=list(overrides))
    finally:
        GlobalHydra.instance().hydra = held
    composed: Any = OmegaConf.to_container(config, resolve=True)
    node = composed[group] | (settings or {})
    check_settings(group, node)
    return instantiate(node, _convert_="all")
