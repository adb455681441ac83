"""Programs that make Python interesting rather than tensors.

Tables say what a compiled function may read (`kinds` of values, in `carriers`, and `sources` that change by themselves),
write, be passed and return; `issues` are reports of others. `assemble` makes programs of their rows, `cells` lists all.
"""
