"""The tensor-level IR: nodes, the op protocol, graphs, their forms as text and JSON, verifier, interpreter.

    Graph  := name, inputs: (Node ...), outputs: (Node ...), updates: ((state input, new value) ...)
    Node   := op, inputs: (Node ...), type, where                      immutable and hash-consed
    Op     := a record class with attributes: str, int, float, bool, None, DType, Literal, Graph, tuples
    Type   := dtype[dim, ...] | (Type, ...)

There is no assign node: state changes are the graph's `updates`. Sub-graphs of control flow are closed: what
they need is threaded in as operands.
"""
