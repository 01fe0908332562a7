"""Instrumenting: a traced loss rewritten so that running it also tells what went through it.

Vocabulary: a *plan* says which sites are observed and what is kept of each (the *observer*). A *tap* is the identity at
a site; its *sink* is a second argument through which the cotangent's observation leaves. The *interpreter* runs the
jaxpr again with taps in place, by one *rule* per kind of frame; `jax.vjp` of that, with respect to parameters and
sinks together, is the *observing program*.

An *isolating* run gives a value and a cotangent at every held site, so that no error passes from one to the next.

Laws (each has a test): an empty plan changes nothing; observing twice is observing once; operation by operation,
loss and gradients are bit for bit those of `jax.value_and_grad`; a scan of n turns gives n records.

Why cotangents leave through sinks and values as plain outputs (2026-11): one program reads both off the same pass, and
on the CPU tensors as outputs made ResNet-50's step faster than the plain one, because they undo bad fusions.
"""
