"""Tracing: from a target to everything there is to know about a model before it runs.

Vocabulary, from the outside in:

- A *target* is what the user typed; the *loader* finds a *model* by it: three functions and their provenance.
- A *checkpoint* takes the place of what the model's `init` makes, a file or an input *pipeline* that of its `batch`;
  either has to look like what it replaces.
- The *tracer* turns the model's loss into a *trace*: one jaxpr, traced once on shapes alone.
- A *frame* is a jaxpr in its place: the root, or what some equation of another frame runs.
- A *lift* is a loop that a framework runs on behalf of one module, whose iterations are that module's.
- A *scope path* names where in the model an equation is, loops included but not yet which iteration of them.
- A *layer* is a maximal run of equations under one entry into a scope; a *site* is a value that a layer returns or
  reads, and that can therefore be observed; a *use* is one place where an operation reads a value.
- A *segment* is what is computed between values that are known; a layer *alone* is a function of what it reads.

Everything that depends on JAX's version is in `jaxcompat`. Nothing here runs a step of the model.

Why layers come from the name stack (2026-11): every framework either emits scopes or can be made to, they survive all
of JAX's transformations, and nothing in the user's source has to change. Why by the identity of `Scope` objects and not
by their names: a layer that is called twice in a row has the same name twice, but opens its scope twice.
"""
