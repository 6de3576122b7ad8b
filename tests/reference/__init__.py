"""Each mechanism as its paper prints it: one sequence without padding, all products written out, nothing clever.

`layer(attention, x, context, carry, **choices) -> (y, carry)` takes the parameters of a built module and nothing else
of it: sizes and choices are passed in, so a constant that the module derives wrongly shows.
"""
