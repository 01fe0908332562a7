"""How the program starts: complete help, at once, and nothing imported that is not needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.integration.command import gradscope, gradscope_process

COMMANDS = (
    "dump",
    "show",
    "compare",
    "report",
    "train",
    "watch",
    "export",
    "isolate",
    "calibrate",
    "mesh",
    "inspect",
    "check",
    "verify",
    "recover",
    "explain",
    "help",
)

#: What every command takes that runs a model or traces it.
MODEL = (
    "--seed --batch-size --data --batch-index --checkpoint --map-keys --map --keep-init --input --loss --train --dtype "
    "--x64 --matmul-precision"
)
CHOSEN = "--select --exclude --depth --families"
#: What every command line documents, by command; `--help` itself aside.
OPTIONS = {
    "dump": f"{MODEL} {CHOSEN} --output --self-check --no-cache --distributed --of --wrt --cotangent --stop-gradient "
    "--fetch --feed --ops --terms --per-example --stats-only --exact-quantiles --cast --check --strict --sort "
    "--no-fold --full --no-origin --max-memory --source --force --format --json --quiet --verbose --traceback",
    "show": f"{CHOSEN} --tensor --step --diff --ledger --check --sort --no-fold --full --format --json --traceback",
    "compare": "--tol --tol-file --rtol --atol --bitwise --allow-missing --map --write-map --select "
    "--exclude --all --worst-first --as --isolate --full --format --json --quiet --verbose --traceback",
    "report": "--tol --tol-file --rtol --atol --bitwise --allow-missing --map --as --select --exclude --output --open "
    "--force --traceback",
    "train": f"{MODEL} --select --exclude --steps --output --optimizer --learning-rate --clip --multiply --only "
    "--freeze --ema --state-updates --devices --distributed --every --histograms-every --per-example-every "
    "--microbatch --tensorboard --dump-every --dump-at --log-every --trace-every "
    "--save-every --keep --resume --check-numerics --on-alarm --check --keep-alarms --no-cache --force --format --json "
    "--quiet --verbose --traceback",
    "watch": "--once --select --exclude --format --json --traceback",
    "export": f"{CHOSEN} --to --output --force --quiet --traceback",
    "isolate": "--reference --output --force --quiet --traceback",
    "calibrate": f"{MODEL} {CHOSEN} --per-example --output --no-cache --force --quiet --traceback",
    "mesh": f"{MODEL} {CHOSEN} --devices --output --no-cache --ops --tol --all --full --format --json --force --quiet "
    "--traceback",
    "inspect": f"{MODEL} {CHOSEN} --ops --fetch --feed --gradients --sort --full --format --json "
    "--quiet --verbose --traceback",
    "check": f"{MODEL} --tol --allow --no-cache --format --json --quiet --verbose --traceback",
    "verify": "--traceback",
    "recover": "--output --force --traceback",
    "explain": "--format --json --traceback",
    "help": "",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_states_every_option_in_a_sentence(tmp_path: Path, command: str) -> None:
    done = gradscope(command, "--help", folder=tmp_path, COLUMNS="200")
    assert (done.status, done.errors) == (0, "")
    lists = done.output[done.output.index(":\n  ") :]  # behind the text, which has names of options, too
    rows = re.findall(r"^  (?:-[a-zA-Z], )?(--[a-z0-9-]+)(.*(?:\n {6,}.*)*)", lists, re.MULTILINE)
    assert {name for name, _ in rows} == {*OPTIONS[command].split(), "--help"}
    for name, entry in rows:
        assert re.search(r"\s{2,}[A-Z].*\.(\s+\[.*\])?$", entry, re.DOTALL), f"{name} has no sentence: {entry}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal_and_cuts_nothing(tmp_path: Path, command: str) -> None:
    shown = gradscope(command, "--help", folder=tmp_path, COLUMNS="80").output
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    wide = gradscope(command, "--help", folder=tmp_path, COLUMNS="200").output
    assert shown.split() == wide.split()
    narrow = gradscope(command, "--help", folder=tmp_path, COLUMNS="48").output.splitlines()
    assert [line for line in narrow if len(line) > 48 and not line.startswith("      gradscope ")] == []


def test_the_program_without_a_command_shows_its_commands(tmp_path: Path) -> None:
    bare, requested = gradscope_process(folder=tmp_path), gradscope_process("--help", folder=tmp_path)
    assert (bare.status, requested.status) == (2, 0)
    assert bare.output.strip() == requested.output.strip()
    assert all(f"\n  {command} " in requested.output for command in COMMANDS)
    commands = requested.output.partition("\nCommands:\n")[2]
    assert "\n\n" not in commands.rstrip()  # of each one sentence
    assert len(re.findall(r"[.?]$", commands, re.MULTILINE)) == len(COMMANDS)


def test_the_version_is_that_of_the_distribution(tmp_path: Path) -> None:
    for option in ("--version", "-V"):
        assert gradscope_process(option, folder=tmp_path).output == f"gradscope {version('gradscope-jax')}\n"


def test_the_version_of_a_checkout_that_is_not_installed_is_unknown() -> None:
    code = (
        "import importlib.metadata as m; m.distributions = None; m.Distribution.discover = lambda **_: iter(()); "
        "from gradscope.cli.main import main; import sys; sys.argv = ['gradscope', '--version']; sys.exit(main())"
    )
    done = subprocess.run((sys.executable, "-P", "-c", code), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gradscope unknown\n", "")


def test_a_file_of_the_current_folder_is_not_taken_for_a_library(tmp_path: Path) -> None:
    for name in ("json", "re", "rich", "signal", "typer", "typing"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError(__file__)")
    run = subprocess.run(
        [sys.executable, "-m", "gradscope", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_help_of_a_command_is_what_the_command_says(tmp_path: Path) -> None:
    by_name, requested = (gradscope(*words, folder=tmp_path) for words in (("help", "verify"), ("verify", "--help")))
    assert (by_name.status, by_name.output) == (0, requested.output)
    program, bare = (gradscope(*words, folder=tmp_path) for words in (("--help",), ("help",)))
    assert (bare.status, bare.output) == (0, program.output)
    unknown = gradscope("help", "nonsense", folder=tmp_path)
    assert (unknown.status, unknown.lines[0]) == (2, "gradscope: error: no such command 'nonsense'")


def test_the_help_of_dump_begins_with_five_examples(tmp_path: Path) -> None:
    shown = gradscope("dump", "--help", folder=tmp_path, COLUMNS="80").output
    examples = [
        line for line in shown.partition("Arguments")[0].splitlines() if line.startswith("      gradscope dump ")
    ]
    assert len(examples) == 5
    assert "explain" in shown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", None),
        ("bogus", "no such command 'bogus'"),
        ("dump", "missing argument 'TARGET'"),
        ("dump a b", "got unexpected extra argument(s) (b)"),
        ("show a.npz --nonsense", "no such option: --nonsense"),
        ("dump mlp --batch-size 0", "invalid value for '--batch-size': 0 is not a whole number of at least 1"),
        ("dump mlp --batch-size four", "invalid value for '--batch-size': 'four' is not a whole number of at least 1"),
        ("dump mlp --seed x", "invalid value for '--seed': 'x' is not a whole number"),
        ("compare a.npz b.npz --rtol small", "invalid value for '--rtol': 'small' is not a number of at least 0"),
        ("dump mlp --input float32", "'float32' does not describe an input"),
        ("dump mlp --input f32[8]", "'f32[8]': there is no dtype 'f32'"),
        ("dump mlp --input float32[8]", "a framework's module takes --input, and mlp has its own batch and loss"),
        ("dump mlp --loss cross", "invalid value for '--loss'"),
        ("dump mlp --eval", "the loss of mlp does not distinguish training from evaluation"),
        ("dump mlp --dtype int8", "invalid value for '--dtype'"),
        ("show a.npz --format html", "invalid value for '--format'"),
        ("compare a.npz b.npz --tol -1", "invalid value for '--tol'"),
        ("dump mlp --per-example --of loss", "--per-example and --of contradict each other"),
        ("dump mlp --per-example --max-memory 1GiB", "--per-example and --max-memory contradict each other"),
        ("dump mlp --per-example --distributed auto", "--per-example and --distributed contradict each other"),
        ("show a.npz --tensor x --ledger", "--tensor and --ledger contradict each other"),
        ("show a.npz --diff b.npz", "--diff applies to one tensor"),
        ("dump mlp --batch-size 3 --data x.npz", "--batch-size and --data contradict each other"),
        ("show a.npz --families params", "there is no family 'params'"),
        ("show a.npz --families ,", "the list of family names is empty"),
        ("show a.npz --check nope", "there is no finding 'nope'"),
        ("show a.npz --check ''", "the list of finding names is empty"),
        ("show a.npz --select re:(", "'(' is not a regular expression"),
        ("dump mlp --dtype float64", "--dtype float64 without --x64 would compute in float32"),
    ],
)
def test_a_wrong_command_line_is_reported_in_a_line_and_a_hint(tmp_path: Path, line: str, says: str | None) -> None:
    done = gradscope(*(word.strip("'") for word in line.split()), folder=tmp_path)
    assert done.status == 2
    if says is not None:
        assert done.output == ""
        assert done.lines[0].startswith(f"gradscope: error: {says}")
        assert all(line.startswith("hint: ") for line in done.lines[1:])
        assert len(done.lines) <= 2


@pytest.mark.parametrize("line", ["dump mlp --seed", "dump mlp --nonsense", "dump"])
def test_a_wrong_command_line_names_the_help_of_its_command(tmp_path: Path, line: str) -> None:
    assert "'gradscope dump --help' lists all options" in gradscope(*line.split(), folder=tmp_path).errors


#: What a process has imported after each of the lines that it is given, as JSON.
IMPORTED = """
import contextlib, io, json, sys
from gradscope.cli.error_boundary import guarded

found = {}
for line in sys.argv[1:]:
    def run():
        from gradscope.cli.main import _run
        return _run(None)

    sys.argv = ["gradscope", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()):
        status = guarded(run, sys.argv[1:])
    found[line] = [status, sorted(sys.modules)]
print(json.dumps(found))
"""
#: What has no use for it is first: modules stay.
NO_NUMPY = ("--version", "--help")
NUMPY = ("show a.npz", "compare a.npz b.npz", "verify a.npz", "recover a.npz -o recovered.npz", "explain vanishing")


@pytest.mark.parametrize("lines", [NO_NUMPY, NUMPY])
def test_what_needs_no_jax_does_not_import_it(dumps: Path, tmp_path: Path, lines: tuple[str, ...]) -> None:
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).symlink_to(dumps / name)
    command = [sys.executable, "-P", "-c", IMPORTED, *lines]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert found.keys() == set(lines), done.stderr
    for line, (status, modules) in found.items():
        imported = set(modules)
        assert status == int(line.startswith("compare")), line
        assert not imported & {"jax", "jaxlib", "scipy", "torch", "numpy.ma"}, line
        assert ("numpy" in imported) is (lines is NUMPY), line
        # Nor what a model's run takes for options, unless all commands are spoken of.
        assert ("gradscope.cli.options.model_options" in imported) is (line == "--help"), line


#: Without it typer looks for a shell among the processes that started this one, and takes that for the one meant.
SHELL_IS_NAMED = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_completes(tmp_path: Path, shell: str) -> None:
    shown = gradscope_process("--show-completion", shell, folder=tmp_path, **SHELL_IS_NAMED)
    assert shown.status == 0
    assert "_GRADSCOPE_COMPLETE" in shown.output


def test_completion_knows_commands_and_options(tmp_path: Path) -> None:
    def completed(words: str, at: int) -> list[str]:
        environment = {"_GRADSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return gradscope_process(folder=tmp_path, **environment).output.split()

    assert completed("gradscope ", 1) == list(COMMANDS)
    assert completed("gradscope compare --all", 2) == ["--allow-missing", "--all"]
    assert completed("gradscope show --format ", 3) == ["table", "json", "csv", "markdown", "github"]
    assert completed("gradscope compare --format ju", 3) == ["junit"]


def test_completion_knows_names(dumps: Path) -> None:
    def completed(words: str) -> list[str]:
        environment = {"_GRADSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return gradscope(folder=dumps, **environment).output.split()

    assert completed("gradscope dump res") == ["resnet50"]
    assert completed("gradscope show a.npz --tensor activation/fir") == ["activation/first"]
    assert completed("gradscope show none.npz --tensor activation/fir") == []
    assert completed("gradscope show a.npz --check nonfinite,zero") == ["nonfinite,zero-grad"]
    assert completed("gradscope show a.npz --families param") == ["param", "param_grad"]
    assert completed("gradscope show a.npz --sort rm") == ["rms"]
    assert completed("gradscope explain sqnr") == ["sqnr_db"]
    assert completed("gradscope help rec") == ["recover"]


def test_completion_installs(tmp_path: Path) -> None:
    done = gradscope_process("--install-completion", "bash", folder=tmp_path, HOME=str(tmp_path), **SHELL_IS_NAMED)
    assert done.status == 0
    assert "bash completion installed" in done.output
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()


def test_several_paths_for_a_command_that_takes_one_have_a_hint(tmp_path: Path) -> None:
    done = gradscope("show", "run/alarm-000001", "run/alarm-000002", "run/alarm-000003", folder=tmp_path)
    assert done.lines == [
        "gradscope: error: got unexpected extra argument(s) (run/alarm-000002 run/alarm-000003)",
        "hint: 'gradscope show' takes one DUMP: name one at a time, or compare them with 'gradscope compare'",
    ]
    other = gradscope("verify", "a", "b", folder=tmp_path).lines[1]
    assert other == "hint: 'gradscope verify' takes one DUMP: name one at a time"
