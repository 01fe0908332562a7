"""Queries and capture specs, and how they become a plan.

1. `capture_spec` states which tensors the user selects.
2. `planning` makes the plan that observes them; `terms` selects terms of gradients, `inner_values` what is named inside
   layers.
3. `trace_query` states what a query differentiates, stops, feeds and fetches.
4. `query_names` finds the names of a query in the trace.
5. `resolve` extends the plan by the query.
"""
