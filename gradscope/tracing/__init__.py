"""Tracing finds the frames, layers and sites of a model before it runs.

The parts, in the order in which they are used:

1. `loading` finds a *model* by its *target*, the string that the user typed. A model is three functions and their
   provenance. `user_frames` reports errors of the user's code; `debug_flags` turns those of JAX off that would stop it.
2. `data` replaces the outputs of the model's functions: a *checkpoint* replaces that of `init`, a file or an input
   *pipeline* that of `batch`. Either must have the structure of what it replaces.
3. `tracer` turns the model's loss into a *trace*: one jaxpr, traced once on shapes only. `leaves` gives its
   arguments families and names.
4. `jaxpr` reads jaxprs of any supported JAX version, and builds the tree of frames. `references` makes values of arrays
   that are written in place.
5. `layers` finds layers, sites and uses.
6. `lookup` finds values, layers and operations by name.

Vocabulary:

- A *frame* is a jaxpr together with the equation that runs it; the root frame has no such equation.
- A *transfer* states how values pass between an equation and a frame that it runs.
- A *lift* is a loop that a framework runs on behalf of one module, so that its iterations are that module's.
- A *scope path* is the path of an equation in the model, in which the iterations of loops are still open.
- A *layer* is a maximal run of equations under one entry into a scope.
- A *site* is a value that a layer returns or reads, and that can therefore be observed.
- A *use* is one operand at which an operation reads a value.
- A *segment* is the computation between values that are known.
- A `IsolatedLayer` is one call of a layer as a function of the values that it reads.

Everything that depends on JAX's version is in `jaxpr/jaxcompat`. Nothing here runs a step of the model.

Why layers come from the name stack (2026-11): every framework either emits scopes or can be made to, they survive all
of JAX's transformations, and nothing in the user's source has to change. Why by the identity of `Scope` objects and not
by their names: a layer that is called twice in a row has the same name twice, but opens its scope twice.
"""
