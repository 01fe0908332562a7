"""`capture` writes the same dump from a PyTorch model, through hooks, to compare a port layer by layer.

    from gradscope.frameworks.torch import capture

    capture(model, lambda logits: F.cross_entropy(logits, labels), images, "torch.npz")

The dump has every module's outputs and the gradients that arrive at them, parameters, inputs and their gradients, and
buffers (as `state`, before the run). Names are PyTorch's, with slashes for dots: `layer1/0/conv1`; a module's second
call is `layer1/0/relu#2`, the second of several outputs `encoder.1`. A tensor that a module returns unchanged is one
tensor under several names. Tensors keep PyTorch's layout and their own dtype, bfloat16 included. The gradient of a
complex tensor is that of JAX, the conjugate of PyTorch's.

Sharp edges. The module itself is a layer only where its output is not the output of one of its modules. Operations that
a module runs without calling a module are seen as that module's output, not one by one; what that is computed from,
autograd's graph tells, up to what is detached or computed without gradients. Gradients are computed by
`torch.autograd.grad`, which leaves `grad` alone; only where `torch.utils.checkpoint(..., use_reentrant=True)` refuses
that, by `backward`, with `grad` restored. What such a checkpoint runs again is recognised by its values, so modules
inside that do not compute the same twice have no gradients. Modules under `torch.compile` run without their compiled
code, which takes no hooks. The units of a tensor of four or
five axes are assumed to be its channels, the second axis; of any other tensor they are the last axis.

Why it is among the frameworks and yet above `stats` and `api` (2026-11): it is a writer of its own, as `capture` is for
JAX, and needs neither JAX nor the tracing of models; its place is the name under which users look for it. Nothing else
imports it, which a contract of import-linter states.
"""

from gradscope.frameworks.torch.capture import capture

__all__ = ["capture"]
