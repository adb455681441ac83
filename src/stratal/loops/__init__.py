"""The loop-level IR: what kernels compute, first as tensor expressions, then as loop nests.

    Expr    := Const(value) | Var(name, extent) | Load(buffer, (Expr, ...)) | Call(fn, (Expr, ...))
             | Guard(condition, value, otherwise)     value is evaluated only where condition holds
             | Lanes(fn, value)                       all lanes of a vector combined, as a tree
    Compute := out[axes] = body                       element-wise, views, anything without a reduction
             | out[axes] = combine(term[axes, reduce] ...)
    Stmt    := For(var, kind, body) | Store(buffer, (Expr, ...), value) | If(condition, then, otherwise)
             | Fail(condition, code) | Prefetch(buffer, (Expr, ...), int)
             | ProductCall(rows, columns, depth, body) | Seq(Stmt ...)
    Kernel  := name, parameters, locals, body         one parallel loop outermost is the chunk loop

Expressions are hash-consed, so sharing is sharing of objects. Index expressions are int64 and kept in normal
form by `loops.index`. Scalar functions (`fn`) are those of `loops.expr.FUNCTIONS`; all else is built of them.
"""
