"""The ListOps language: symbols, token ids, evaluation, and the text form of the Long Range Arena release.

An expression is a digit or `[OP argument argument ... ]` with OP among MIN, MAX, MED (the median, rounded down) and SM
(the sum modulo 10). It is stored without the redundant parentheses of the release: one token per digit, two per
operator.

Source: Nangia & Bowman, "ListOps" (2018); Tay et al., "Long Range Arena" (2021), `listops/input_pipeline.py` since
commit c209b2a. Earlier versions of that tokenizer lose the brackets and with them the tree: their numbers are not
comparable.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from subquad.utils.errors import UserError

SYMBOLS = ("", "[MIN", "[MAX", "[MED", "[SM", "X", *"0123456789")
"""Text of each token id: 0 is padding, 1-4 open an operator, 5 closes it, 6-15 are the digits."""

VOCAB = len(SYMBOLS)
PAD, MIN, MAX, MED, SM, CLOSE, ZERO = range(7)

_IDS = {symbol: token for token, symbol in enumerate(SYMBOLS) if symbol} | {"]": CLOSE, "(": PAD, ")": PAD}


def _median(arguments: list[int]) -> int:
    ordered, last = sorted(arguments), len(arguments) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) // 2


_OPERATORS: dict[int, Callable[[list[int]], int]] = {MIN: min, MAX: max, MED: _median, SM: lambda a: sum(a) % 10}


def encode(text: str) -> np.ndarray:
    """Token ids, uint8 [length], of an expression in cleaned (`[MAX 3 5 X`, also `]`) or in release form.

    Parentheses are dropped unchecked; `evaluate` checks them. Raises UserError with the first unknown symbol and its
    position among the symbols of `text`, counted from 0.
    """
    symbols = text.split()
    try:
        tokens = bytes(map(_IDS.__getitem__, symbols))
    except KeyError as error:
        symbol = error.args[0]
        raise UserError(f"Unknown ListOps symbol {symbol!r} at position {symbols.index(symbol)}.") from None
    return np.frombuffer(tokens.translate(None, bytes([PAD])), np.uint8)


def decode(ids: Iterable[int]) -> str:
    """Cleaned text such as `[MAX 3 5 X`, without padding. Raises UserError for an id outside 0..15."""
    return " ".join(SYMBOLS[token] for token in _checked(ids) if token != PAD)


def evaluate(expression: str | Iterable[int]) -> int:
    """The value, 0..9, of an expression given as token ids or as text (see `encode`).

    Raises UserError for malformed input. The positions in its message count from 0: tokens for ids and misplaced
    brackets, symbols of the text for unknown symbols and misplaced parentheses.
    """
    return parse(expression)[1] if isinstance(expression, str) else _walk(_checked(expression))[0]


def parse(text: str) -> tuple[np.ndarray, int]:
    """The token ids (`encode`) and the value (`evaluate`) of a text; raises as they do."""
    ids = encode(text)
    tokens = ids.tolist()
    value, counts = _walk(tokens)
    if "(" in text or ")" in text:
        _check_parentheses(text.split(), _release_symbols(tokens, counts))
    return ids, value


def to_release_text(ids: Iterable[int]) -> str:
    """The release form, such as `( ( ( [MAX 3 ) 5 ) ] )`: each argument and each `]` is applied to what precedes it.

    An expression of n tokens has n - 1 pairs of parentheses. `encode` restores the ids exactly. Raises UserError as
    `evaluate` does.
    """
    tokens = _checked(ids)
    return " ".join(_release_symbols(tokens, _walk(tokens)[1]))


def _checked(ids: Iterable[int]) -> list[int]:
    tokens = [int(token) for token in ids]
    for position, token in enumerate(tokens):
        if not 0 <= token < VOCAB:
            raise UserError(f"{token} at position {position} is no ListOps token id; ids are 0 to {VOCAB - 1}.")
    return tokens


def _walk(tokens: Sequence[int]) -> tuple[int, list[int]]:
    """The value of the expression, and the number of arguments of each operator in the order they open."""
    counts: list[int] = []
    pending: list[tuple[int, int, list[int]]] = []
    value = None
    for position, token in enumerate(tokens):
        if value is not None and not pending:
            raise UserError(f"The ListOps expression goes on after its end, at position {position}.")
        if token == PAD:
            raise UserError(f"Padding inside a ListOps expression at position {position}.")
        if token < CLOSE:
            pending.append((token, len(counts), []))
            counts.append(0)
            continue
        if token > CLOSE:
            value = token - ZERO
        elif not pending:
            raise UserError(f"Closing bracket without an opening one at position {position}.")
        else:
            operator, number, arguments = pending.pop()
            if not arguments:
                raise UserError(f"Operator without arguments closed at position {position}.")
            value, counts[number] = _OPERATORS[operator](arguments), len(arguments)
        if pending:
            pending[-1][2].append(value)
    if pending or value is None:
        raise UserError(
            f"The ListOps expression ends too early, at position {len(tokens)}: {len(pending)} open brackets."
        )
    return value, counts


def _release_symbols(tokens: Sequence[int], counts: Sequence[int]) -> list[str]:
    remaining = iter(counts)
    symbols: list[str] = []
    for token in tokens:
        if token < CLOSE:
            symbols += ["("] * (next(remaining) + 1)
            symbols.append(SYMBOLS[token])
        elif token == CLOSE:
            symbols += ["]", ")", ")"]
        else:
            symbols += [SYMBOLS[token], ")"]
    return symbols[:-1]  # the root is no argument, so it has no closing parenthesis


def _check_parentheses(symbols: Sequence[str], expected: Sequence[str]) -> None:
    if symbols != expected:
        same = (a == b for a, b in zip(symbols, expected, strict=False))
        position = next((i for i, equal in enumerate(same) if not equal), min(len(symbols), len(expected)))
        raise UserError(
            f"Parenthesis missing, superfluous or misplaced at position {position} of a ListOps expression."
        )
