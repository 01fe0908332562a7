"""Inspection: what a model is, from its trace alone. Nothing is compiled and nothing is run.

- *FLOPs* are floating-point operations, one per addition or multiplication: a multiply-add is two. `flops` knows what
  one equation costs, `pullback` what it costs backwards, `costs` adds them up by layer.
- An *inspection* is rows and totals. The row of a layer includes those of the layers inside it; what no layer owns has
  a row of its own, so that the rows without a parent add up to the totals. With operations, each has a row and its
  `links`: what it reads, and which layers' outputs it makes.
- An inquiry may go with it: then each row tells how many of its operations a run for that would need.

Sharp edges: a loop whose number of turns only running tells counts as one turn, of branches the dearest counts, and
multiplications with a convolution's padding do not count, as in XLA's own analysis: the usual 4.1 billion multiply-adds
of a ResNet-50 include them. Where gradients from several uses of a value meet, their sum is not counted.

Why not XLA's cost analysis itself (2026-11): it has to compile, counts a loop's body once, and knows no layers. It is
what the tests hold these numbers against.
"""
