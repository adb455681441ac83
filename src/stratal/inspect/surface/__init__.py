"""The public surface as data: every name users call, a call of each that works, what such a call is made of.

`entries` walks the namespaces, `draws` makes arguments, `functions` and `layers` say which call each name
takes. The manifest (`stratal ops --surface`), the benchmark (`python -m benchmarks surface`) and the fuzz of
bad input (`tests/fuzz_calls.py`) read the same tables.
"""
