"""`gradscope isolate` writes one layer as a script of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradscope.cli.options import shared as options

if TYPE_CHECKING:
    from gradscope.capturing.isolate.reproducing.reproduction import Reproduction

#: Name of the script and of the file of its arrays, without suffix.
_FILE: Final = "isolated"


def isolate(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The layer's name in the dump, such as block[3]/attn; 'before block[3]/attn' for the layer and the "
            "code before it.",
        ),
    ],
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="The dump that contains its inputs and cotangents.")],
    target: options.Target,
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="The folder for the script and its arrays."),
    ] = Path("repro"),
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Write one layer as a script of plain jax.lax, with its inputs, cotangents and expected values.

    The script needs only jax and numpy. It prints the errors of the layer and of its VJP, and exits 0 where they are
    within tolerance. The model file is imported and run with your rights.
    """
    from gradscope.cli.printing import print_line
    from gradscope.cli.running.rerun import options_of, rerun_model
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.dump.reader import open_dump
    from gradscope.dump.storage.writing.read_files import reads_remembered

    _require_free(output, force=force, dump=dump)
    # Of the folder at the start, whatever the model does to it.
    folder, read = output.absolute(), dump.absolute()
    with open_dump(dump) as opened, stdout_to_stderr(), Progress(quiet=quiet) as progress:
        with reads_remembered(anew=True):
            model = rerun_model(target, options_of(dump, opened.manifest.provenance))
        from gradscope.capturing.isolate.reproducing.reproduction import reproduce
        from gradscope.capturing.isolate.reproducing.reproduction_script import write_reproduction

        progress.phase("run")
        with reads_remembered():
            found = reproduce(model, name, opened)
    write_reproduction(folder, found, file=_FILE, dump=read, force=force)
    for line in _summary(output, found):
        print_line(line)


def _require_free(folder: Path, *, force: bool, dump: Path) -> None:
    """Raises `UsageError` where the folder contains the files already, or is not a folder; or has the dump as one."""
    from gradscope.dump.storage.writing.target_path import checked_file
    from gradscope.errors import UsageError

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="name a folder with --output")
    for suffix in ("py", "npz") if folder.exists() else ():
        checked_file(folder / f"{_FILE}.{suffix}", force=force, inputs=(dump,))


def _summary(folder: Path, found: Reproduction) -> list[str]:
    from gradscope.naming.paths import BEFORE
    from gradscope.naming.wording import counted

    expected = (*found.outputs, *found.gradients)
    ins, outs = counted(len(found.inputs), "input"), counted(len(found.outputs), "output")
    of_dump = sum(each.origin == "dump" for each in expected)
    others = "" if of_dump == len(expected) else ", the others from a run of the layer"
    lines = [
        f"{folder / _FILE}.py  {found.name}: {ins}, {outs}",
        f"expected  {of_dump} of {len(expected)} arrays are the dump's{others}",
    ]
    if found.computed and not found.name.startswith(BEFORE):
        computed = f"{', '.join(found.computed)} {'is' if len(found.computed) == 1 else 'are'} computed by the model"
        lines.append(f"inputs    {computed}; '{BEFORE}{found.name}' has the code that computes this, too")
    return lines
