"""The public surface as data: every name users call, a call of each that works, what such a call is made of.

`entries` walks the namespaces, `draws` makes arguments, `functions` and `layers` say which call each name
takes. The manifest (`python -m benchmarks names`), the benchmark (`python -m benchmarks surface`) and the
tests that go over all names (`tests/fuzz/fuzz_calls.py`, `tests/support/special_points.py`) read the same
tables.
"""
