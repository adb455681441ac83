"""How kernels are computed: schedule primitives over loop nests, and one tactic per kind of kernel."""
