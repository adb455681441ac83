"""The rows of the mission this milestone owes, by id: what `make rows` prints a table of."""

from __future__ import annotations

ROWS = {
    "A2": "a graph of ops and tensors; np.asarray copies nothing",
    "A3": "only the ancestors of a fetched value run",
    "A4": "reverse autodiff, adjoints of a fan-out summed",
    "A5": "the gradient is a graph; dead adjoints vanish",
    "A6": "check_grad, applied to every registered op",
    "A7": "gradients grow linearly where symbolic ones explode",
    "A9": "forward, backward and update equal a hand-written loop to the bit",
    "A10": "logistic regression: NumPy and imperative agree",
    "A14": "SGD, Adagrad and Adam follow their formulas; state bytes",
    "B2": "modules, parameters and an imperative forward",
    "B3": "errors name the user's line; a debugger works in eager mode",
    "B4": "capture fuses relu and matmul into one kernel",
    "C1": "dead code, constants and common subexpressions go",
    "C14": "a small primitive set; element-wise chains are one kernel",
    "E1": "the naive executor, as a yardstick",
    "E2": "no allocation per step in the steady state",
    "E3": "planned peak equals observed peak",
    "E4": "in place only for a sole consumer",
    "E5": "disjoint lifetimes share memory",
    "I1": "machine peaks measured; every kernel placed under the roofline, its bound named",
    "I2": "contraction, normalisation, element-wise: operations and time; fusion shrinks the last two",
    "I6": "timing refuses work not waited for; hidden synchronisations are told",
    "I7": "warm-up, repeats, random order, an interval on every number",
    "I12": "the top bottleneck comes first",
}
