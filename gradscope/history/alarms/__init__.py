"""Alarms state what is wrong with a run at a step, by rules that are relative to what the run itself did before.

- `alarm_rules` has the table of all rules.
- `tensor_rules` applies those about tensors to recorded steps, `stuck_parameters` those about parameters that stay.
- `dying_units` finds units that get no gradient any more.
- `reset_optimizer` finds an optimizer whose state begins anew at each step.
- `streaks` counts the recorded steps in a row at which a condition holds.
- `diverging_loss` says of a loss that grows by orders that the learning rate is too large.
- `update_direction` states whether the updates of a step descend.
- `unbounded_loss` says of a loss that falls below zero ever faster that a term of it has no lower bound.
- `alarm_watch` applies all of them, step by step, and names the tensor that deviates most.

A rule raises an alarm where its condition begins to hold, and not again while it holds. The alarm names the tensor
whose own deviation is the largest, the forward-most where several deviate alike.

Why no rule has an absolute default (2026-11): a loss of 7 and a gradient of norm 100 are sound in one model and the end
of another. The rule for spikes is that of OLMo-core and MaxText; those about tensors wait until a
condition held at several recorded steps in a row, because a single one may be due to the schedule or the batch.
"""
