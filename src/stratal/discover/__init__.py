"""Rewrites that the system finds and proves; none is written by hand.

Each op's record is its specification. Its type rule says which graphs there are, its tensor expression says
what they compute:

    records ── enumerate ──> graphs ── fingerprint ──> pairs that agree ── prove ──> rules with certificates
     infer                           lower, in a field                     lower, as sums of products

The normal form (`terms`, `canonical`, `normal_form`) is the heart: a graph becomes, for one element of its
result, a sum of products of elements of its inputs, each record's expression put into the next one's; two
graphs with one normal form (`prove`) are equal. `generalise` makes a rule of a pair, `discovery` searches,
`matching` applies a rule to a graph and proves what it did; `families` and `rules.json` are what ships.

See: TASO (Jia et al., 2019), PET (Wang et al., 2021), Mirage (Wu et al., 2024).
"""

import stratal.ops  # noqa: F401  fills the registry that rules name ops of
