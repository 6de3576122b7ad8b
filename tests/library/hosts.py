"""Small random models of other libraries, each with a call that returns the outputs of its real tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from timm.models.twins import Twins
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from subquad.library.implementations import PREFIX

TOKENS, LENGTHS = 20, [20, 12, 5]
REAL = torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()


def takes_heads(name: str) -> bool:
    """Whether docs/library.md says that an attention can be an attention implementation of transformers."""
    return f"`{PREFIX}{name}`" in PAGE


@dataclass(frozen=True)
class Family:
    """`run` returns the outputs of the rows of `REAL`; `padded` fills what is not real with other values."""

    build: Callable[[], nn.Module]
    run: Callable[..., Tensor]
    padded: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def text(model: nn.Module, fill: int = 1) -> Tensor:
    ids = torch.randint(4, 50, REAL.shape, generator=torch.Generator().manual_seed(0))
    ids = torch.where(REAL, ids, fill)
    return model(input_ids=ids, attention_mask=REAL.long()).last_hidden_state[REAL]


def steps(model: nn.Module, fill: int = 0) -> Tensor:
    x = torch.randn(*REAL.shape, 32, generator=torch.Generator().manual_seed(0))
    return model(torch.where(REAL[..., None], x, float(fill)), src_key_padding_mask=~REAL)[REAL]


def steps_first(model: nn.Module, fill: int = 0) -> Tensor:
    x = torch.randn(*REAL.shape, 32, generator=torch.Generator().manual_seed(0))
    x = torch.where(REAL[..., None], x, float(fill))
    return model(x.transpose(0, 1), src_key_padding_mask=~REAL).transpose(0, 1)[REAL]


def image(model: nn.Module, side: int = 32) -> Tensor:
    y = model(torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0)))
    return getattr(y, "last_hidden_state", y)


def bert(name: str, **changes: Any) -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    if name == "DistilBert":
        sizes = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64}
    if name == "ViT":
        sizes |= {"image_size": 32, "patch_size": 8}
    else:
        sizes |= {"vocab_size": 50, "max_position_embeddings": 40}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes | changes))
    return model.double()


def encoder(batch_first: bool = True, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, **options)


FAMILIES = {
    "bert": Family(lambda: bert("Bert"), text),
    "bert_eager": Family(lambda: bert("Bert", attn_implementation="eager"), text),
    "roberta": Family(lambda: bert("Roberta"), text),
    "distilbert": Family(lambda: bert("DistilBert"), text),
    "hf_vit": Family(lambda: bert("ViT").float(), image, padded=False),
    "encoder": Family(lambda: encoder(), steps, options={"max_len": 30}),
    "encoder_length_first": Family(
        lambda: encoder(batch_first=False, enable_nested_tensor=False), steps_first, options={"max_len": 30}
    ),
    "vit": Family(
        lambda: VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4), image, padded=False
    ),
    "pvt_v2": Family(
        lambda: timm.create_model("pvt_v2_b0", sr_ratios=(1, 1, 1, 1)), image, padded=False, options={"image_size": 32}
    ),
    "twins": Family(  # windows as large as the image
        lambda: Twins(
            img_size=64, num_classes=7, depths=(2, 2, 1, 1), embed_dims=(16, 32, 32, 32), num_heads=(2, 2, 2, 4),
            wss=(16, 8, 4, 2), sr_ratios=(1,) * 4,
        ),
        lambda model: image(model, 64), padded=False,
    ),
}  # fmt: skip
"""Families in which softmax attention is that of the model itself."""
