"""Whole programs as tests: source text, run compiled and in other ways, compared call by call.

`observe` says what of a program is compared, `execute` runs one and judges it, `worker` and `pool` do so in
other processes, `shrink` makes a failing one small. `training/` writes training programs, `python/`
programs that make Python interesting; `faults` plants faults that both must find.
"""
