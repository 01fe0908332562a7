"""Capturing: an observing program run, and what it observed turned into the records of a dump.

Two ways in. `preparation` makes a model's `arguments` and compiles its observing program side by side, for the one-shot
`dump`; what does not fit into memory runs `piecewise`. `observe` is the drop-in for `jax.value_and_grad` in a user's
own step; what it hands out (`seen`) becomes a run on the host when it is saved. Either way a *run* is cut into *drafts*
(one tensor each), drafts are *measured* in a thread into records, and a *session* streams those while it keeps the
*ledger* and the *layer tree*. Where it is asked for, the *plain* loss (`plainloss`) runs for each of the `examples`.

What is asked afterwards runs the loss once more: where a NaN began (`origins`, on a `replay`, and the `traps` it fell
into), why a gradient is exactly zero (`zeros`, with a `closeup` of what multiplied it and the `cuts` on its way), how
much observing changed (`selfcheck`). `gradients` answers `tf.gradients`; `calibration` measures a reference's noise.

A candidate is *isolated* when its layers run one by one: values and cotangents of a reference are *held* at every layer
that both dumps know (`holding`), on arguments that are *given* likewise, and what comes out at the *ends* is judged
(`isolation`). A *reproduction* is one layer as a script of its own (`repro`, `reproscript`).

Under `jax.distributed` a tensor may lie on the devices of several processes. Then each of them measures and writes the
*pieces* that its own devices hold (`observation`, `processes`), and nobody gathers a tensor.
"""
