"""The folder of a run has files of fixed names, and one process that writes to it.

- `run_files` names the files, and finds them.
- `run_folder` locks the folder, and replaces the run in it.
"""
