"""Inspection lists the layers, parameters and costs of a model from its trace, without compiling or running it.

- *FLOPs* are floating-point operations, one per addition or multiplication: a multiply-add counts as two. `flops`
  counts those of one equation, `frame_flops` those of a frame, `pullback` those of an equation's vector-Jacobian
  product, and `layer_costs` adds them up by layer.
- An *inspection* (`inspect_loss`) is rows and totals. The row of a layer includes the layers inside it. Equations
  outside of all layers have a row of their own, so that the rows without a parent add up to the totals. Operations can
  have rows too, with links (`operation_links`) to what they read and to the layers whose outputs they compute.
- With a query, each row also states how many of its operations a run of that query needs.

Sharp edges: a loop of unknown length counts as one iteration, and of several branches the most expensive counts.
Multiplications with a convolution's padding do not count, as in XLA's own analysis; the usual 4.1 billion multiply-adds
of a ResNet-50 include them. The sum of gradients from several uses of a value is not counted.

Why not XLA's cost analysis itself (2026-11): it has to compile, counts a loop's body once, and has no layers. The tests
compare these numbers with it.
"""
