"""The command line: one file per verb, which only reads options, calls, and prints.

Options that belong together are groups, which `grouping` spreads for typer: which model and batch in `modeloptions`,
what is shown in `reportoptions` and `operations`, what is asked in `inquiries`; single shared ones stand in `options`.
A model runs again as a dump says it ran by `rerun`; what makes a command exit 1 is in `findings`. JAX is set up in
`jaxsetup`; what only reads starts lighter by `blas`. The program starts in `main`. `boundary` is the one place that
turns errors into exit statuses and `interrupts` the one that ends the process on a signal; nothing prints but
`printing` and `progress`.
"""
