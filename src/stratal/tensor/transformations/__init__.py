"""Functions of functions: derivatives, rows, branches and loops, rules of the user's."""
