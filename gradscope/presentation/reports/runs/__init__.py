"""Runs has the reports of a training run.

- `run_report` reports its trends, or one of its steps; `series_report` one tensor or one number over time.
- `run_facts` has the lines below the tables of a run.
- `run_watch` reports a run that goes on, and `run_noise` the noise of its gradients.
- `which_tensors` selects tensors of a run, and `alarm_words` has its alarms in words.
"""
