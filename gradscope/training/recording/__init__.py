"""Recording turns what a step observed into rows of a run's history, and gives past states back.

- `recorded` defines what is recorded of one step, on the device.
- `compared_arrays` compares two arrays: a gradient with the one before, a parameter with what a step made of it.
- `step_rows` turns it into rows of the history.
- `loss_faults` states what is wrong with the program of a loss, whatever its numbers are.
- `expected_changes` finds what should be another value at each step, and is not.
- `noise_rows` measures the noise of gradients, and keeps its moving averages.
- `unwritten_history` stands for the history in a process that does not write the run.
- `step_profiles` profiles steps.
- `state_ring` keeps copies of past states, from which the state before an alarm's step can be had again.
- `array_records` makes the record of a dump from an array, and the array from a dump.
- `alarm_notes` states what is known of an alarm.
"""
