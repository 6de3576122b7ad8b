"""The contract of every attention mechanism."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.ops.affine import Activation, affine
from subquad.ops.heads import split_heads
from subquad.specs import SITE_SETTINGS, UNKNOWN, Context, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import seen_by_torch
from subquad.utils.errors import UserError
from subquad.utils.setting_types import CheckedSettings

Carry = Tensor | None
"""What a layer passes to the next layer (the latent rows of Luna and DBA); None before the first layer.

It must not be a parameter or a view of one, because FSDP frees a layer's parameters after its forward pass.
"""


Maps = Mapping[str, tuple[Tensor, Tensor | None]]
"""Weight [d, d] and bias [d] of linear maps, by their names in softmax attention: query, key, value, out."""


class UnsupportedPattern(UserError):
    """The mechanism does not support this kind of attention (self or cross)."""


class _OwnMaps(nn.Module):
    """Refuses wrappers around its linear maps (LoRA of peft), because most mechanisms read weights of maps."""

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get("_modules", {}).get(name)
        if isinstance(held, nn.Linear) and isinstance(value, nn.Module) and not isinstance(value, nn.Linear):
            raise UserError(
                f"A mechanism may read the weight of its map {name!r} without a call, and an adapter around the map "
                "is then without effect; give the weight a parametrisation instead (docs/library.md, Adapters), or "
                "leave the maps of attention out."
            )
        super().__setattr__(name, value)


class Attention(_OwnMaps, CheckedSettings, abc.ABC):
    """Attention of query tokens to context tokens. In self-attention, the caller passes the same tensor twice.

    It takes token embeddings, not heads: a mechanism owns its projections, because some mechanisms compress tokens
    before they project them, and some have no projections.

    The constructor takes a `Site`, or its values as keywords (`Site.of`): `DBA(dim=256, heads=4)`. A mechanism with a
    parameter or a table of the length needs `max_len` too; others take it where their settings follow from it.
    `forward` has two forms:

    - a plain layer: `y = layer(x, mask=mask)`, and `y = layer(x, context, mask=mask, context_mask=context_mask)` in
      cross-attention; True in a mask is a real token (in `key_padding_mask` of `nn.MultiheadAttention`, True is
      padding: pass `mask=~key_padding_mask`). Each layer then has a latent of its own, if it has one.
    - a layer of a stack, which is given a `Masks`: `y, carry = layer(x, x, Masks(mask, mask), carry)`. Layers built
      with `layer=i, layers=n` share what the carry holds.

    The contract, checked for every configs/attention/*.yaml by test_contract.py, test_derivatives.py and test_export.py
    of tests/attention:
        - padding never changes an output at a real token; outputs and gradients stay finite when a row is all padding;
        - rows of a batch do not influence each other;
        - in eval mode a call changes no parameter and no buffer, and is deterministic;
        - the state dict contains the whole state;
        - sequences up to `site.query_len`, `site.context_len` are accepted; longer ones give what a layer built for
          them gives, or raise UserError (see `fix_length`);
        - safetensors, torch.jit.trace, torch.compile, torch.export and ONNX give equal outputs, but for what
          `cannot_export` names, which fails;
        - a parametrisation of the weight of a map acts; a wrapper around the map is refused;
        - torch.func, gradient checkpointing and copies give the same; second derivatives are right or refused (see
          `plain_operators`);
        - a constructor argument accepts no value outside of its annotation (see `CheckedSettings`).
    """

    section = "attention"

    patterns: ClassVar[frozenset[Pattern]]
    """Self-attention, cross-attention or both; the constructor raises UnsupportedPattern for others."""

    complexity: str
    """Time and memory in n (tokens), as the paper states them; instances override it if a setting changes it."""

    approximates_softmax: bool = False
    """Whether outputs approximate those of softmax attention with the same projections, so that an error is defined."""

    fixed_length: str | None = None
    """Which parts depend on the length of the site, so that longer sequences are refused; None if no part does."""

    fixed_grid: bool = False
    """Whether images of another size than that of the site are refused."""

    cannot_export: ClassVar[frozenset[Literal["batch", "length", "onnx"]]] = frozenset()
    """What export does not support: a `batch` or a `length` other than the example's, or the operators of `onnx`."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.pattern not in self.patterns:
            raise UnsupportedPattern(
                f"{type(self).__name__} has no {site.pattern.value}-attention form; "
                f"it supports {' and '.join(sorted(p.value for p in self.patterns))}-attention."
            )
        if site.dim % site.heads:
            raise UserError(
                f"A width of {site.dim} cannot be split into {site.heads} heads; "
                "choose backbone.heads so that it divides backbone.dim."
            )
        self.site = site

    @property
    def _dropout(self) -> float:
        """The probability of dropping an attention weight: that of the site in training, 0 in evaluation."""
        return self.site.dropout if self.training else 0.0

    @classmethod
    def _arguments(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Makes the site of the keywords that are values of a site."""
        sizes = {name: given.pop(name) for name in SITE_SETTINGS if name in given}
        if sizes:
            return given | {"site": Site.of(cls.__name__, **sizes)}
        if not args and "site" not in given:
            raise UserError(f"{cls.__name__} needs its sizes; write {cls.__name__}(dim=256, heads=4).")
        return given

    def forward(
        self, x: Tokens, context: Context | None = None, masks: Masks | None = None, carry: Carry = None,
        mask: Tensor | None = None, context_mask: Tensor | None = None,
    ) -> Tokens | tuple[Tokens, Carry]:  # fmt: skip
        """Returns the output for each query token; if `masks` is given, also the `carry` of the next layer."""
        if masks is not None:
            if mask is not None or context_mask is not None:
                raise UserError("masks holds the masks of both inputs; give it, or mask and context_mask, not both.")
            context = x if context is None else context
            _check_masks(x, context, masks)
            return self._attended(x, context, masks, carry)
        if carry is not None:
            raise UserError("A carry belongs to a layer of a stack, which is given Masks: layer(x, x, Masks(), carry).")
        if self.site.pattern is Pattern.SELF:
            if context is not None and context is not x:
                raise UserError(
                    f"This {type(self).__name__} is self-attention and takes one input; for two, build it "
                    'with pattern="cross".'
                )
            if context_mask is not None and context_mask is not mask:
                raise UserError(f"This {type(self).__name__} is self-attention and takes one mask: mask=mask.")
            context, context_mask = x, mask
        elif context is None:
            raise UserError(f"This {type(self).__name__} is cross-attention and needs the context as second input.")
        masks = Masks(mask, context_mask)
        _check_masks(x, context, masks)
        return self._attended(x, context, masks, None)[0]

    def _attended(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        """`attend_with_carry`; raises UserError if the output is not of the shape of x, which sums would broadcast.

        An empty batch, or one of no tokens, has an empty output, with a gradient of 0 for every weight.
        """
        if not seen_by_torch() and not x.numel():
            nothing: Tensor = sum((weight.sum() for weight in self.parameters()), x)
            return nothing, carry
        y, carry = self.attend_with_carry(x, context, masks, carry)
        if getattr(y, "shape", None) != x.shape:
            found = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise UserError(f"{type(self).__name__} returned {found} for tokens {list(x.shape)}; return their shape.")
        return y, carry

    @abc.abstractmethod
    def attend_with_carry(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        """Returns the output for each query token and the `carry` of the next layer."""

    def carry_of_weights(self) -> Carry:
        """What this layer passes on without a carry, if that depends on its weights alone; otherwise None."""
        return None

    def softmax_maps(self) -> Maps:
        """The maps of this module that correspond to those of softmax attention, for weight transfer.

        They are tensors or views of any shape with as many elements. The default finds them by name in this module or
        in its `projections`; a mechanism with other names overrides this.
        """
        maps = ((name, getattr(getattr(self, "projections", self), name, None)) for name in _SOFTMAX_MAPS)
        return {name: (linear.weight, linear.bias) for name, linear in maps if isinstance(linear, nn.Linear)}

    def fix_length(self, parts: str) -> None:
        """Says that `parts`, a plural, depend on the length of the site: raises UserError where it is unknown.

        For constructors; longer sequences are then refused.
        """
        if UNKNOWN in (self.site.query_len, self.site.context_len):
            raise UserError(
                f"{type(self).__name__} needs its longest input, because {parts} depend on it; pass it, as "
                "max_len=1024."
            )
        self.fixed_length = parts

    def fix_grid(self) -> None:
        """Says that tokens are read as the rows of `site.grid`: longer sequences and other images are refused."""
        self.fix_length("the rows of its grid")
        self.fixed_grid = True

    def longest(self, x: Tensor, context: Tensor) -> tuple[int, int]:
        """The longest queries and context that this layer is built for, or these if they are longer."""
        return max(self.site.query_len, x.shape[1]), max(self.site.context_len, context.shape[1])

    def check_lengths(self, x: Tensor, context: Tensor) -> None:
        """Raises UserError if a sequence is longer than `fixed_length` allows."""
        if self.fixed_length is None:
            return
        for length, limit in ((x.shape[1], self.site.query_len), (context.shape[1], self.site.context_len)):
            if length > limit:
                raise UserError(
                    f"{type(self).__name__} was built for at most {limit} tokens, on which {self.fixed_length} "
                    f"depend, and was given {length}; build it with a larger length or shorten the input."
                )


def _check_masks(x: Tokens, context: Context, masks: Masks) -> None:
    """Raises UserError for a mask that is not boolean, or not one value for each token."""
    for mask, tokens in ((masks.query, x), (masks.context, context)):
        if mask is None:
            continue
        if mask.dtype != torch.bool:
            raise UserError(
                f"A mask is boolean, True at real tokens, and this one is {mask.dtype}; pass mask > -1 where it has 0 "
                "at real tokens and -1e30 or -inf at padding, and mask.bool() where it has 1 and 0."
            )
        if mask.shape != tokens.shape[:2]:
            raise UserError(
                f"A mask says which tokens are real and has the shape {list(tokens.shape[:2])} here, not "
                f"{list(mask.shape)}; masks of pairs of tokens, such as causal ones, are not supported."
            )


_SOFTMAX_MAPS = ("query", "key", "value", "out")


class StatelessAttention(Attention):
    """An attention that passes nothing to the next layer; subclasses implement `attend`."""

    def attend_with_carry(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        self.check_lengths(x, context)
        return self.attend(x, context, masks), carry

    @abc.abstractmethod
    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        """Returns the output for each query token."""


class Refreshable(abc.ABC):
    """A mechanism with state that is fitted to data or redrawn (hash functions, random features).

    The state is in buffers that `forward` only reads, so that a call has no side effects and compiles. Before each
    training step, a callback calls `due`, and if that is true `refresh` with the inputs of the next `forward`.
    """

    @abc.abstractmethod
    def due(self, epoch: int, batch: int, step: int) -> bool:
        """Whether to refresh before batch `batch` of pass `epoch` (both from 0), after `step` steps."""

    @abc.abstractmethod
    def refresh(self, x: Tokens, context: Context, masks: Masks) -> None:
        """Updates the state."""


class Redrawn(Refreshable):
    """A mechanism whose state is drawn anew without a look at the data, so that a callback needs no pass over them."""

    @abc.abstractmethod
    def redraw(self) -> None:
        """Draws the state anew, by torch's generator of the CPU: several processes then draw the same numbers."""

    def refresh(self, x: Tokens, context: Context, masks: Masks) -> None:
        self.redraw()


def copy_drawn(state: Tensor, drawn: Tensor) -> None:
    """Copies numbers drawn on the CPU to a buffer on any device; the CPU does not wait for a GPU."""
    state.copy_(drawn.pin_memory() if state.is_cuda else drawn, non_blocking=True)


class Discrete:
    """Marks a mechanism with hash codes: outputs jump where a code changes, more often in low precision."""


class SurrogateGradient:
    """Marks a mechanism whose backward pass is by design not the derivative of its forward pass.

    The tests of the mechanism compare its gradients with the surrogate.
    """


@runtime_checkable
class AttentionFactory(Protocol):
    """Builds an attention for a site, such as `functools.partial(DBA, d_p=16)`; Hydra's `_partial_` makes it."""

    def __call__(self, *, site: Site) -> Attention: ...


class Affine(nn.Linear):
    """`nn.Linear` with the faster of two kernels and an optional activation in the same pass."""

    def forward(self, x: Float[Tensor, "*b d"], activation: Activation = "none") -> Float[Tensor, "*b e"]:
        return affine(x, self.weight, self.bias, activation)


class Projections(_OwnMaps):
    """The four linear maps query, key, value and out, with the same names in every mechanism that has them."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (Affine(dim, dim) for _ in range(4))

    def split(self, x: Tokens) -> Float[Tensor, "b h n e"]:
        """Splits the width into heads."""
        return split_heads(x, self.heads)

    def qkv(
        self, x: Tokens, context: Context
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h m e"], Float[Tensor, "b h m e"]]:
        """Queries of x, keys and values of the context, in heads."""
        return self.split(self.query(x)), self.split(self.key(context)), self.split(self.value(context))

    def merge(self, y: Float[Tensor, "b h n e"]) -> Tokens:
        """Joins the heads and applies the output map."""
        return self.out(y.transpose(1, 2).flatten(-2))
