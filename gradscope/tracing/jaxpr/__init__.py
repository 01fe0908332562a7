"""Jaxprs: what JAX's traced programs contain, version by version, and every jaxpr in its place (a *frame*)."""
