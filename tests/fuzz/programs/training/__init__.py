"""Training programs: a network of odd sizes, a loss, optimisers with options, and what people do around a step.

`layers`, `losses` and `optimisers` are tables; `habits` adds lines to the places of a `Draft`; `write` makes the text.
"""
