"""Files of a checkpoint are opened, whatever library has written them.

`checkpoint_files` opens one; `checkpoint_folders` finds it in a folder, `file_kinds` tells what it is, `refusals` says
of those that are not read what to do, and `file_bounds` limits the memory that reading takes.
"""
