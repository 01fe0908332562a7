"""`python -m gradscope` is the same as the `gradscope` command."""

from gradscope.cli.main import main

main()
