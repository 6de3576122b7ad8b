"""Planted bugs of the compiled kernels."""

from planted import Bug

ATTENTION, BUILD = "tests/kernels/test_short_attention.py", "tests/kernels/test_build.py"

BUGS = [
    Bug(name, "kernels/short_attention.cpp", old, new, tests=ATTENTION)
    for name, old, new in [
        ("the last tile writes rows of queries that are none", "call.queries - first < QUERIES ?", "false ?"),
        ("hidden keys keep a trace of weight", "x < -87.0f ? Vector{} : sum", "x < -87.0f ? Vector{} + 1e-30f : sum"),
        (
            "a row of padding hides the first half only",
            "i < width; i += LANES) at(logits + i) = V",
            "2 * i < width; i += LANES) at(logits + i) = V",
        ),
        ("odd queries of a mask are seen", "logits[i] = seen[i] ?", "logits[i] = true ?"),
        (
            "where nothing is seen, values are averaged",
            "(top <= HIDDEN) & (sum == sum) ? Vector{} :",
            "(top != top) ? Vector{} :",
        ),
        ("later tiles overwrite the gradients of keys", "size, chunk, number > from)", "size, chunk, false)"),
        ("slopes keep their mean", "(at(slopes + j) - mean)", "at(slopes + j)"),
        ("the gradient of queries lacks the scale", "- mean) * call.scale", "- mean)"),
        ("the largest logit is not taken out", "exponential(weight - top)", "exponential(weight)"),
        ("threads share a room", ".forward(call->scratch + omp_get_thread_num() * size)", ".forward(call->scratch)"),
        (
            "the second part overwrites what the first gave",
            "count,\n                     call.channels, part.keys, from);",
            "count,\n                     call.channels, part.keys, false);",
        ),
        ("logits of the second part lie on the first's", "multiply(to + from * width,", "multiply(to,"),
        (
            "queries forget the slopes of the first part",
            "part.keys,\n                     from);",
            "part.keys,\n                     false);",
        ),
        ("a sum that is no number counts as none", "(top <= HIDDEN) & (sum == sum)", "(top <= HIDDEN)"),
    ]
]
BUGS += [
    Bug(name, "kernels/short_attention.py", old, new, tests=ATTENTION)
    for name, old, new in [
        (
            "memory of the threads is let go before the call",
            "return call, [scratch(_KERNEL, call), *operands.values(), *(x for part in parts for x in part.values())]",
            "return call, []",
        ),
        ("gradients of the chunks are not summed", "x.sum(0) if count > 1 else x[0]", "x[0]"),
        ("masks are read across", "seen.mT.contiguous().mT", "seen"),
    ]
]
BUGS += [
    Bug(name, "kernels/operands.py", old, new, tests=ATTENTION)
    for name, old, new in [
        ("tangents are lost", "forward_ad._current_level < 0", "True"),
        ("transforms are not seen", "not torch._C._are_functorch_transforms_active()", "True"),
        ("scratch has the default precision", ', dtype=torch.float32, device="cpu"', ""),
        ("gradients of overlapping rows overlap", "y if y.stride(-1) == 1 else", "y if True else"),
        ("heads of another width are taken", "x.shape[3] % VECTOR == 0", "True"),
        ("who watches operators sees none", "        and not torch._C._is_torch_function_mode_enabled()\n", ""),
        ("numbers of a row are taken for neighbours", "x if x.stride(-1) == 1 else x.contiguous()", "x"),
    ]
]
BUGS += [
    Bug(name, "kernels/build.py", old, new, tests=BUILD)
    for name, old, new in [
        ("processors share what is compiled", "version, _processor()]", "version]"),
        ("a broken file stays", "except OSError:  # half", "except KeyError:  # half"),
        ("off compiles", 'switch == "off" or', "False or"),
        ("the compiler's words are lost", 'getattr(error, "stderr", None) or error', "error"),
    ]
]
BUGS += [
    Bug(
        "counters count our kernels as nothing",
        "measure/operations.py",
        "self._open.enter_context(torchs_own())",
        "self._open.enter_context(ExitStack())",
        tests="tests/measure/test_operations.py",
    )
]
