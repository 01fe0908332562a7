"""PyTorch: the same dump from a PyTorch model, through hooks, so that a port can be compared layer by layer.

    from gradscope.frameworks.torch import capture

    capture(model, lambda logits: F.cross_entropy(logits, labels), images, "torch.npz")

Every module's outputs and the gradients that arrive at them, parameters, inputs and their gradients, and buffers (as
`state`, before the run). Names are PyTorch's, dots being slashes: `layer1/0/conv1`; a module called again is
`layer1/0/relu#2`, the second of several outputs `encoder.1`. What a module hands on unchanged is one tensor under
several names. Tensors keep PyTorch's layout and their own dtype, bfloat16 included.

Sharp edges. The module itself is a layer only where its output is not that of one of its modules. What a module
computes without calling a module is seen as that module's output, not operation by operation. Gradients are taken by
`torch.autograd.grad`, which `torch.utils.checkpoint(..., use_reentrant=True)` refuses. The units of a tensor of four or
five axes are taken to be its channels, the second axis; of any other tensor they are the last.

Why among the frameworks and yet above `stats` and `api` (2026-11): it is a writer of its own, as `capture` is for JAX,
and needs neither JAX nor the tracing of models; that it is found here is its name to users. Nothing else imports it,
which a contract of import-linter's states.
"""

from gradscope.frameworks.torch.capture import capture

__all__ = ["capture"]
