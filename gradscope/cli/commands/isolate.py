"""`gradscope isolate` writes one layer as a script of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
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
            help="The layer's name in the dump, or in that of --reference, such as block[3]/attn; 'before "
            "block[3]/attn' for the layer and the code before it.",
        ),
    ],
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="The dump that contains its inputs and cotangents.")],
    target: options.Target,
    *,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="DUMP",
            help="The dump of another program that TARGET is a port of, such as a capture from PyTorch: the script has "
            "its values, in TARGET's layout, in place of those of DUMP.",
        ),
    ] = None,
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

    # Of the folder at the start, whatever the model does to it.
    folder, read = output.absolute(), [each.absolute() for each in (reference, dump) if each is not None]
    _require_free(output, force=force, dumps=read)
    with ExitStack() as closing:
        opened = closing.enter_context(open_dump(dump))
        other = None if reference is None else closing.enter_context(open_dump(reference))
        closing.enter_context(stdout_to_stderr())
        progress = closing.enter_context(Progress(quiet=quiet))
        with reads_remembered(anew=True):
            model = rerun_model(target, options_of(dump, opened.manifest.provenance))
        from gradscope.capturing.isolate.reproducing.reproduction import reproduce
        from gradscope.capturing.isolate.reproducing.reproduction_script import write_reproduction

        progress.phase("run")
        with reads_remembered():
            found = reproduce(model, name, opened, other)
    write_reproduction(folder, found, file=_FILE, dumps=read, force=force)
    for line in _summary(output, found, asked=name):
        print_line(line)


def _require_free(folder: Path, *, force: bool, dumps: Sequence[Path]) -> None:
    """Raises `UsageError` where the folder contains the files already, or is not a folder; or has a dump as one."""
    from gradscope.dump.storage.writing.target_path import checked_file
    from gradscope.errors import UsageError

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="name a folder with --output")
    for suffix in ("py", "npz") if folder.exists() else ():
        checked_file(folder / f"{_FILE}.{suffix}", force=force, inputs=dumps)


def _summary(folder: Path, found: Reproduction, *, asked: str) -> list[str]:
    from gradscope.naming.paths import BEFORE
    from gradscope.naming.wording import counted

    expected = (*found.outputs, *found.gradients)
    ins, outs = counted(len(found.inputs), "input"), counted(len(found.outputs), "output")
    counts = Counter(each.origin for each in expected)
    from_where = [f"{counts['dump']} of {len(expected)} arrays are {found.whose}"]
    from_where += [f"{counts['rest']} the rest of its sums, less the terms of other layers"] if counts["rest"] else []
    from_where += ["the others from a run of the layer"] if counts["run"] else []
    unjudged = [each.name for each in found.gradients if each.origin == "run"]
    lines = [
        f"{folder / _FILE}.py  {found.name}: {ins}, {outs}",
        f"expected  {', '.join(from_where)}",
    ]
    if unjudged:
        gradients = f"gradient{'s' if len(unjudged) > 1 else ''} of {', '.join(unjudged)}"
        lines.append(f"unjudged  {gradients}: the dump does not have the term of this layer alone")
    if found.name.startswith(BEFORE) and not asked.startswith(BEFORE):
        without = f"no gradient that the dump has for what {found.name.removeprefix(BEFORE)} reads shows its error"
        lines.append(f"inputs    {without}: the script has the code before it, too")
    if found.computed and not found.name.startswith(BEFORE):
        computed = f"{', '.join(found.computed)} {'is' if len(found.computed) == 1 else 'are'} computed by the model"
        lines.append(f"inputs    {computed}; '{BEFORE}{found.name}' has the code that computes this, too")
    return lines
