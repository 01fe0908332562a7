"""Instrumentation rewrites a traced loss so that running it also returns the values and gradients inside it.

The parts, in the order in which they are used:

1. `query` turns a capture spec or a query into a plan.
2. `plan` has the plan; `taps` has taps and sinks; `statistics` are what may be kept in place of a value, for which
   `host_calls` runs NumPy inside a compiled program on the CPU; `saturation_observer` observes bounded functions.
3. `rewriting` has the interpreter, which runs the traced loss again with the taps of a plan.
4. `observing_program` differentiates the interpreted loss with `jax.vjp`, with respect to parameters and sinks at once.
5. `segments` does the same one segment after another, where memory is short.
6. `isolating` runs every segment between pinned values on injected values and cotangents.
7. `describe` prints frames, layers, sites and plan, for developers.

Vocabulary (frames, layers, sites and uses are defined in `tracing`):

- A *plan* states which sites are observed, and what is kept of each.
- An *observer* is the function that computes what is kept of a value: the tensor itself, or statistics.
- A *tap* is the identity on the value of a site, with a custom backward rule.
- A *sink* is the tap's second argument, whose "gradient" is the observation of the cotangent.
- A *term* is the part of a value's gradient that comes back from one use of the value.
- A *rule* states how the interpreter runs one kind of frame.
- The *observing program* runs forward and backward once and returns everything that the plan observes.
- A *segment* is a number of consecutive steps: equations, or iterations of a loop.
- A *query* requests more than the loss and its gradients: other values to differentiate, stop, feed or fetch.

Laws (each has a test): an empty plan changes nothing; observing twice is observing once; operation by operation,
loss and gradients are bit for bit those of `jax.value_and_grad`; a scan of n iterations returns n records.

Why terms are computed separately (2026-11): a tap before every use would return each term directly. But JAX adds up
cotangents in the order of its linearised operations, of which `tanh` by itself has two, and sums that are grouped by
use round differently. So the operation's own backward rule is applied once more, to the cotangents that arrive at its
outputs, and the backward pass itself is unchanged. Under `jit` the compiler merges the two computations. The side
effects of a loop or a custom rule happen again where its operands' terms are requested: a `jax.debug.print` inside
prints twice.

Why a linear solve is transparent (2026-11): of the constructs that were opaque, `custom_linear_solve` is the one that
`jax.numpy` and `jax.scipy` emit (`linalg.solve`, `inv`, `cg`, `gmres`, `bicgstab`). `custom_root` is a `custom_jvp` in
a trace, a `fori_loop` of known length is a `scan` already, and a `pallas_call` computes with memory references. The
values inside a solver are observed, as its auxiliary data. They have no gradients: JAX solves the transposed system
instead of differentiating the solver. So nothing inside can be fed, stopped or differentiated.

Why a custom rule runs as it is, and its function beside it (2026-11): the rule makes the outputs and their gradients by
a program of its own, so observing inside it would need another rule. Solvers call whole networks there (diffrax' vector
field), of which the function shows the values, and the program that is differentiated stays what it was. It costs one
more run of the function, and only where something in it is observed. A function that calls no layers is one operation,
as `relu` is, and one with side effects is not run twice.

Why cotangents leave through sinks and values as plain outputs (2026-11): one program reads both off the same pass, and
on the CPU tensors as outputs made ResNet-50's step faster than the plain one, because they undo bad fusions.
"""
