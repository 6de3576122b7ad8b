"""The one contract that every attention mechanism meets."""

import abc
from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from subquad.errors import UserError
from subquad.ops.affine import Activation, affine
from subquad.ops.heads import split_heads
from subquad.specs import Masks, Pattern, Site

Carry = Tensor | None
"""What a layer hands to the next one for the same sequences (Luna's and DBA's latent); None before the first.

Not a parameter, nor a view of one: FSDP frees the parameters of a layer after its forward pass.
"""


Maps = Mapping[str, tuple[Tensor, Tensor | None]]
"""Weight [d, d] and bias [d] of linear maps by the names they have in softmax attention: query, key, value, out."""


class UnsupportedPattern(UserError):
    """The mechanism is not defined for this wiring."""


class Attention(nn.Module, abc.ABC):
    """Lets each query token gather from the context tokens; in self-attention the caller passes the same tensor twice.

    `forward` takes token embeddings, not heads: a mechanism owns its projections, because the best of them compress
    before they project and some have none.

    The contract, checked for every configs/attention/*.yaml by tests/attention/test_contract.py:
        - padding never changes an output at a real token; outputs and gradients stay finite when a row is all padding;
        - rows of a batch never see each other;
        - in eval mode a call changes no parameter and no buffer, and is deterministic;
        - the state dict is all there is to remember;
        - sequences up to `site.query_len`, `site.context_len` are accepted, longer ones refused.
    """

    patterns: ClassVar[frozenset[Pattern]]
    """The wirings the mechanism is defined for; others are refused when it is built."""

    complexity: str
    """Time and memory in n (tokens), as the source states them; a key that changes them sets them anew."""

    approximates_softmax: bool = False
    """Whether outputs estimate those of softmax attention with the same projections, so that an error can be stated."""

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

    @abc.abstractmethod
    def forward(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks, carry: Carry = None
    ) -> tuple[Float[Tensor, "b n d"], Carry]:
        """Returns the mixed queries and what the next layer is to be given as `carry`."""

    def softmax_maps(self) -> Maps:
        """Its own maps that do what those of softmax attention do, of any shape with as many numbers; views count.

        What a model takes over from one that was trained with softmax attention goes there. By their names, of this
        module or of its `projections`; a mechanism that has them under others overrides this.
        """
        found = ((name, getattr(getattr(self, "projections", self), name, None)) for name in _SOFTMAX_MAPS)
        return {name: (linear.weight, linear.bias) for name, linear in found if isinstance(linear, nn.Linear)}

    def check_lengths(self, x: Tensor, context: Tensor) -> None:
        """Raises UserError when a sequence is longer than this attention was built for."""
        for got, limit in ((x.shape[1], self.site.query_len), (context.shape[1], self.site.context_len)):
            if got > limit:
                raise UserError(
                    f"{type(self).__name__} was built for at most {limit} tokens and was given {got}; "
                    "build it with a larger length or shorten the input."
                )


_SOFTMAX_MAPS = ("query", "key", "value", "out")


class StatelessAttention(Attention):
    """An attention that hands nothing to the next layer: subclasses write `attend` only."""

    def forward(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks, carry: Carry = None
    ) -> tuple[Float[Tensor, "b n d"], Carry]:
        self.check_lengths(x, context)
        return self.attend(x, context, masks), carry

    @abc.abstractmethod
    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        """The mechanism itself."""


class Refreshable(abc.ABC):
    """A mechanism with fitted or redrawn state (hash functions, random features).

    The state lives in buffers that `forward` only reads, so that a call is pure and compiles. Between training steps a
    callback asks `due`, and where it is, calls `refresh` with what `forward` is about to be given.
    """

    @abc.abstractmethod
    def due(self, epoch: int, batch: int, step: int) -> bool:
        """Whether to renew before this batch of this pass over the training rows (both from 0), after `step` steps."""

    @abc.abstractmethod
    def refresh(self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks) -> None:
        """Renews the state; mechanisms that fit it to data read the tokens, others ignore them."""


class Discrete:
    """Marks a mechanism that decides by hash codes: where a code flips an output jumps, in low precision more often."""


class SurrogateGradient:
    """Marks a mechanism whose backward pass is by design not the derivative of its forward pass.

    Its own tests compare the gradients with the surrogate written out.
    """


@runtime_checkable
class AttentionFactory(Protocol):
    """What a backbone is given: `functools.partial(DBA, d_p=16)`, made by Hydra's `_partial_`."""

    def __call__(self, *, site: Site) -> Attention: ...


class Affine(nn.Linear):
    """`nn.Linear` through the faster of two kernels, with the activation in the same pass where one is asked for."""

    def forward(self, x: Float[Tensor, "*b d"], activation: Activation = "none") -> Float[Tensor, "*b e"]:
        return affine(x, self.weight, self.bias, activation)


class Projections(nn.Module):
    """The usual four linear maps, one spelling for every mechanism that has them: query, key, value, out."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (Affine(dim, dim) for _ in range(4))

    def split(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n e"]:
        """Cuts the width into heads."""
        return split_heads(x, self.heads)

    def qkv(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"]
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h m e"], Float[Tensor, "b h m e"]]:
        """Queries of x, keys and values of the context, in heads."""
        return self.split(self.query(x)), self.split(self.key(context)), self.split(self.value(context))

    def merge(self, y: Float[Tensor, "b h n e"]) -> Float[Tensor, "b n d"]:
        """Joins the heads and applies the output map."""
        return self.out(y.transpose(1, 2).flatten(-2))
