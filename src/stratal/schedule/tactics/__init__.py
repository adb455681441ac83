"""One tactic per kind of kernel: which loops, in what order, split and vectorised how."""
