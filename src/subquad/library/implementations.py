"""Mechanisms as attention implementations of transformers, chosen by `attn_implementation`."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, Redrawn, Refreshable
from subquad.attention.local import Local
from subquad.attention.longformer import Longformer
from subquad.attention.nystromformer import Nystromformer
from subquad.attention.softmax import Softmax
from subquad.config.choices import options
from subquad.library.building import AttentionChoice, attention_factory
from subquad.library.of_heads import attend_heads, beside_maps, core_of, reads_heads
from subquad.library.padding import real_tokens
from subquad.specs import SITE_SETTINGS, UNKNOWN, Masks, Pattern, Site
from subquad.utils.errors import UserError, first_line

PREFIX: Final = "subquad_"
WITHOUT_PARAMETERS: Final[dict[type, dict[str, Any]]] = {
    Nystromformer: {"kernel": None},
    Longformer: {"global_tokens": 0},
}
"""Settings that leave out those parts of a mechanism that have parameters of their own."""
UNREAD: Final = ("position_bias", "softcap", "s_aux", "cache", "cu_seq_lens_q", "cu_seq_lens_k")
"""Arguments of attention implementations that change the result, and that no mechanism here reads."""
_WINDOW: Final = "subquad_window"
"""The attribute of a mask that says how far its queries see on each side."""


def register_with_transformers(**settings: dict[str, Any] | AttentionChoice) -> list[str]:
    """Registers mechanisms with transformers, so that a model is built with `attn_implementation="subquad_<name>"`.

    Every choice of configs/attention is registered, and works in every encoder of transformers that chooses its
    attention by this name, if the mechanism is a function of queries, keys, values and a padding mask. The first call
    refuses others (mechanisms with parameters or fitted state, which the model has no place for: use `swap`), causal
    models, and sliding windows, which only softmax and local attention have. The convolution of Nyströmformer and the
    global tokens of Longformer have parameters and are left out. Random numbers are drawn by a fixed seed and stay.

    Args:
        settings: settings by the name of a choice, such as `nystromformer={"landmarks": 32}`; a class, a factory or
            another choice by a new name, such as `narrow=partial(Local, window=32)` for "subquad_narrow". `max_len`,
            the longest input in tokens, is a setting; without it, that of the model's configuration is taken.

    Returns:
        The names for `attn_implementation`.

    Raises:
        UserError: if transformers is missing or too old, and for unknown names and settings.

    Examples:
        >>> import torch, transformers
        >>> import subquad
        >>> names = subquad.register_with_transformers(nystromformer={"landmarks": 16})
        >>> config = transformers.BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=50)
        >>> model = transformers.AutoModel.from_config(config, attn_implementation="subquad_nystromformer")
        >>> model(torch.randint(50, (2, 20))).last_hidden_state.shape
        torch.Size([2, 20, 32])
    """
    attentions, masks = _interfaces()
    choices: dict[str, tuple[AttentionChoice, dict[str, Any]]] = {name: (name, {}) for name in options("attention")}
    for name, given in settings.items():
        choice, own = (name, given) if isinstance(given, dict) else (given, {})
        if sizes := {*SITE_SETTINGS} & own.keys() - {"max_len"}:
            raise UserError(f"{', '.join(sorted(sizes))} of {name} cannot be set here; the model has its own.")
        if not (isinstance(choice, str) or callable(choice)):
            raise UserError(
                f"{name} is {choice!r}; pass settings as a dict, the name of a choice, a class or a factory."
            )
        try:  # says now what is wrong
            attention_factory(choice)(**{"dim": 64, "heads": 4, "max_len": 512} | own)
        except TypeError as error:
            raise UserError(f"The settings of {name} do not fit ({error}); see docs/attentions.md.") from None
        choices[name] = choice, own
    made = [Implementation(f"{PREFIX}{name}", choice, own) for name, (choice, own) in choices.items()]
    for implementation in made:
        attentions.register(implementation.name, implementation)
        masks.register(implementation.name, implementation.mask)
    return [implementation.name for implementation in made]


class Implementation:
    """One mechanism, called by attentions of transformers in place of `sdpa`."""

    def __init__(self, name: str, choice: AttentionChoice, settings: dict[str, Any]) -> None:
        self.name, self.choice = name, choice
        self.max_len, self.settings = settings.get("max_len"), {k: v for k, v in settings.items() if k != "max_len"}
        self.built: dict[_Use, Attention] = {}

    @cached_property
    def factory(self) -> Callable[..., Attention]:
        """The factory of the choice; to compose it from files takes time."""
        return attention_factory(self.choice)

    def mask(
        self, batch_size: int, kv_length: int, mask_function: Callable[..., Any], attention_mask: Tensor | None = None,
        local_size: int | None = None, device: torch.device | str = "cpu", **_: Any,
    ) -> Tensor | None:  # fmt: skip
        """The padding mask [b, 1, 1, n], True at real tokens, from what a model of transformers asks for."""
        from transformers.masking_utils import bidirectional_mask_function

        if local_size is None and mask_function is bidirectional_mask_function:
            return None if attention_mask is None else attention_mask[:, None, None, :kv_length].bool()
        if local_size is None or not _is_window(mask_function, local_size):
            raise UserError(
                f"{self.name} has padding masks only, and this model asks for a causal mask or another one of pairs of "
                "tokens; choose another attn_implementation for it."
            )
        real = torch.ones(batch_size, kv_length, device=device) if attention_mask is None else attention_mask
        mask = real[:, None, None, :kv_length].bool()
        setattr(mask, _WINDOW, local_size)
        return mask

    def __call__(
        self, module: nn.Module, query: Float[Tensor, "b h n e"], key: Float[Tensor, "b g n e"],
        value: Float[Tensor, "b g n e"], attention_mask: Tensor | None, scaling: float | None = None,
        dropout: float = 0.0, **given: Any,
    ) -> tuple[Float[Tensor, "b n h e"], None]:  # fmt: skip
        """The output of each head, and None for the weights, which no mechanism writes out."""
        window = getattr(attention_mask, _WINDOW, None)
        self._check(module, query, key, value, window, given)
        heads, width = query.shape[1], query.shape[3]
        if key.shape[1] != heads:  # grouped queries: neighbouring heads share keys
            key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
        if scaling is not None and not math.isclose(by := scaling * math.sqrt(width), 1, rel_tol=1e-6):
            query = query * by  # mechanisms divide by √width
        config = getattr(module, "config", None)
        use = _Use(
            heads, width, getattr(module, "layer_idx", None) or 0, window, dropout if module.training else 0.0,
            self.max_len or getattr(config, "max_position_embeddings", None) or UNKNOWN, module.training,
            query.device, query.dtype,
        )  # fmt: skip
        if use not in self.built:
            self._build(use)
        real = real_tokens(attention_mask)
        y = attend_heads(self.built[use], query, key, value, Masks(real, real))
        return y.unflatten(-1, (heads, width)), None

    def _check(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, window: int | None, given: dict[str, Any]
    ) -> None:
        if given.get("is_causal") or getattr(module, "is_causal", False):
            raise UserError(
                f"{self.name} is not causal, and {type(module).__name__} is; choose another attn_implementation."
            )
        if query.shape[2] != key.shape[2]:
            raise UserError(
                f"{self.name} is self-attention, and {query.shape[2]} queries read {key.shape[2]} keys here."
            )
        if value.shape[3] != query.shape[3]:
            raise UserError(
                f"{self.name} needs values as wide as queries, and in {type(module).__name__} they have "
                f"{value.shape[3]} and {query.shape[3]} channels a head."
            )
        if unread := [name for name in UNREAD if given.get(name) is not None]:
            raise UserError(f"{type(module).__name__} passes {', '.join(unread)}, which {self.name} does not read.")
        if given.get("sliding_window") is not None and window is None:
            raise UserError(
                f"The sliding window of {type(module).__name__} is not in its mask; pass a mask [batch, tokens]."
            )

    @torch.compiler.disable
    def _build(self, use: "_Use") -> None:
        """Builds the mechanism for one use. A seed gives its random numbers, because the model does not store them."""
        site = Site(
            pattern=Pattern.SELF, dim=use.heads * use.width, heads=use.heads, query_len=use.max_len,
            context_len=use.max_len, layer=use.layer, layers=use.layer + 1, dropout=use.dropout,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(use.layer)
            attention, like = self._attention(site, use.window), nn.Linear(1, 1)
        like = like.to(use.device, use.dtype)
        self.built[use] = core_of(attention, like).to(use.device).train(use.training)

    def _attention(self, site: Site, window: int | None) -> Attention:
        attention = simplest(self.factory, site=site, **self.settings)
        kind = type(attention).__name__
        if reason := unfit(attention):
            raise UserError(f"{kind} {reason}, for which models of transformers have no place; use subquad.swap.")
        if window is None:
            return attention
        if isinstance(attention, Softmax) or (isinstance(attention, Local) and not attention.blockwise):
            return Local(site, window=2 * window)
        raise UserError(
            f"{kind} has no sliding window, and this model has one; use subquad.swap with where=[...], or "
            f"{PREFIX}softmax or {PREFIX}local, which keep it."
        )


def simplest(factory: Callable[..., Attention], **settings: Any) -> Attention:
    """An attention, without those of its parts that have parameters and can be left out."""
    attention = factory(**settings)
    simpler = WITHOUT_PARAMETERS.get(type(attention))
    return factory(**simpler | settings) if simpler and beside_maps(attention) else attention


def unfit(attention: Attention) -> str | None:
    """What an attention needs that an attention implementation of transformers has not, None if it is nothing."""
    if names := beside_maps(attention):
        return f"has parameters of its own ({', '.join(names[:3])})"
    if not reads_heads(attention):
        return "reads the tokens themselves"
    fitted = isinstance(attention, Refreshable) and not isinstance(attention, Redrawn)
    return "has a state that is fitted to data" if fitted else None


class _Use(NamedTuple):
    """What a built mechanism depends on."""

    heads: int
    width: int
    layer: int
    window: int | None
    dropout: float
    max_len: int
    training: bool
    device: torch.device
    dtype: torch.dtype


@torch.compiler.disable
def _is_window(mask_function: Callable[..., Any], size: int) -> bool:
    """Whether a query sees the keys that are at most `size` tokens away, on both sides."""

    def sees(query: int, key: int) -> bool:
        return bool(mask_function(*map(torch.tensor, (0, 0, query, key))))

    return sees(0, size) and sees(size, 0) and not sees(0, size + 1) and not sees(size + 1, 0)


def _interfaces() -> tuple[Any, Any]:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import bidirectional_mask_function  # noqa: F401  older ones have none
    except ImportError as error:
        raise UserError(
            f"register_with_transformers needs transformers 5.0 or newer ({first_line(error)}); pip install "
            "'transformers>=5.0'."
        ) from None
    return AttentionInterface, AttentionMaskInterface
