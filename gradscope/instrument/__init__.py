"""Instrumentation: a traced loss rewritten so that running it also returns the values and gradients inside it.

Vocabulary: a *plan* states which sites are observed and what is kept of each (the *observer*). A *tap* is the identity
at a site; its *sink* is a second argument through which the cotangent's observation leaves. A *term* is the part of a
value's gradient that comes back from one use of it (`terms`). The *interpreter* runs the jaxpr again with taps in
place, by one *rule* per kind of frame; `jax.vjp` of that, with respect to parameters and sinks together, is the
*observing program*. Where memory is short the same is done one *segment* after another. A *query* is what is requested
beyond the loss and its gradients; `query/resolve` makes the plan for it.

An *isolating* run gives a value and a cotangent at every held site, so that no error passes from one to the next.

Laws (each has a test): an empty plan changes nothing; observing twice is observing once; operation by operation,
loss and gradients are bit for bit those of `jax.value_and_grad`; a scan of n iterations gives n records.

Why terms are pulled back aside (2026-11): a tap in the way of every use would give each term as it flows, but JAX adds
up what flows back in the order of its linearised operations, of which `tanh` alone has two; grouped by use, sums round
otherwise. So the operation's own backward rule is applied once more, to the cotangents that arrive at its outputs, and
what flows stays as it is. Compiled, both are the same computation, and are merged; but what a loop or a custom rule
does in addition to computing is done again where its operands' terms are requested: a `jax.debug.print` inside prints
twice.

Why a linear solve is transparent (2026-11): of the constructs that were opaque, `custom_linear_solve` is the one that
`jax.numpy` and `jax.scipy` emit (`linalg.solve`, `inv`, `cg`, `gmres`, `bicgstab`). `custom_root` is a `custom_jvp` in
a trace, a `fori_loop` of known length is a `scan` already, and a `pallas_call` computes with memory references. The
values inside a solver are observed, as its auxiliary data. They have no gradients: JAX solves the transposed system
instead of differentiating the solver. So nothing inside can be fed, stopped or differentiated.

Why cotangents leave through sinks and values as plain outputs (2026-11): one program reads both off the same pass, and
on the CPU tensors as outputs made ResNet-50's step faster than the plain one, because they undo bad fusions.
"""
