"""What the user's code raises: one line that says what and where, frames of their own files alone."""

from __future__ import annotations

import csv  # noqa: F401 - it is loaded before a model
import errno
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import DumpError, MachineError, ModelError
from gradscope.tracing.jaxpr import frames as one_of_our_modules
from gradscope.tracing.user_frames import failure_of_user, user_code, user_frames
from tests.support.sampled import sampled

MODEL = """
import jax, jax.numpy as jnp

def mismatched(w):
    def body(carry, x):
        return jnp.dot(carry, x), None          # line 6
    return jax.lax.scan(body, w, jnp.ones((3, 5)))[0].sum()

def branching(w):
    return w.sum() if w.sum() > 0 else w.mean()  # line 10

def looping(w):
    return jax.lax.while_loop(lambda c: c < 3, lambda c: 2 * c, w.sum())  # line 13

@jax.custom_vjp
def tapped(x):
    return x

def forward(x):
    return x, None

def backward(_, cotangent):
    raise KeyError("no residual")  # line 23

tapped.defvjp(forward, backward)

def custom(w):
    return tapped(w).sum()  # line 28

def calling_back(w):
    def on_host(x):
        raise ValueError("host says no")
    jax.debug.callback(on_host, w.sum())
    return w.sum()

def endless(w):
    return endless(w)

def wordy(w):
    raise RuntimeError("\\n\\n".join(f"line {n}" for n in range(100)))

def leaving(w):
    raise SystemExit(2)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The functions above, in a real file of the working directory."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    namespace: dict[str, Any] = {}
    exec(compile(MODEL, str(file), "exec"), namespace)
    return SimpleNamespace(**namespace)


def failure(function: Callable[..., Any], *args: Any) -> ModelError:
    with pytest.raises(ModelError) as failed, user_code("loss of model"):
        jax.block_until_ready(jax.jit(jax.value_and_grad(function))(*args))
    return failed.value


def lines_shown(error: ModelError) -> list[str]:
    """The frames of the model's file; the others are the test's own."""
    return [line.strip() for line in error.user_frames.splitlines() if '"model.py"' in line]


def test_an_error_inside_a_scan_of_a_jitted_function_keeps_the_users_way_there(model: SimpleNamespace) -> None:
    error = failure(model.mismatched, jnp.ones(4))
    complaint = "dot_general requires contracting dimensions to have the same shape, got (4,) and (5,)."
    assert error.message == f"loss of model: TypeError: {complaint}"
    assert lines_shown(error) == [
        'File "model.py", line 7, in mismatched',
        'File "model.py", line 6, in body',
    ]
    assert error.user_frames.endswith("return jnp.dot(carry, x), None          # line 6")


def test_jaxs_own_explanation_and_link_are_kept(model: SimpleNamespace) -> None:
    error = failure(model.branching, jnp.ones(4))
    assert "TracerBoolConversionError: Attempted boolean conversion" in error.message
    assert "See https://docs.jax.dev" in error.message
    assert "JAX has removed its internal frames" not in error.message
    assert lines_shown(error) == ['File "model.py", line 10, in branching']


def test_an_error_found_by_a_transformation_names_the_operation_it_concerns(model: SimpleNamespace) -> None:
    error = failure(model.looping, jnp.ones(4))
    assert "Reverse-mode differentiation does not work for lax.while_loop" in error.message
    assert lines_shown(error) == ['File "model.py", line 13, in looping']


def test_an_error_in_a_backward_rule_names_the_rule_and_the_operation(model: SimpleNamespace) -> None:
    error = failure(model.custom, jnp.ones(4))
    assert error.message == "loss of model: KeyError: 'no residual'"
    assert lines_shown(error) == ['File "model.py", line 28, in custom', 'File "model.py", line 23, in backward']


def test_a_traceback_inside_an_errors_text_gives_way_to_its_last_line_and_its_frames_are_shown(
    model: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    error = failure(model.calling_back, jnp.ones(4))
    assert "ValueError: host says no" in error.message
    assert "Traceback" not in error.message
    assert lines_shown(error) == ['File "model.py", line 32, in on_host']
    capfd.readouterr()  # JAX tells of it, too


def test_the_script_that_started_the_program_is_no_line_of_the_users() -> None:
    script = f"{sysconfig.get_path('scripts')}/gradscope"
    text = f'Traceback (most recent call last):\n  File "{script}", line 8, in <module>\n  File "m.py", line 1, in f\n'
    with pytest.raises(ModelError) as failed, user_code("running"):
        raise RuntimeError(text)
    assert "m.py" in failed.value.user_frames
    assert script not in failed.value.user_frames


@pytest.mark.slow
def test_endless_recursion_is_shown_in_a_few_lines(model: SimpleNamespace) -> None:
    error = failure(model.endless, jnp.ones(4))
    assert "RecursionError" in error.message
    assert len(error.user_frames.splitlines()) < 10


def test_an_error_that_is_its_own_cause_is_shown() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(ModelError, match="ValueError: first"), user_code("loss"):
        raise first


def test_a_long_text_is_cut_to_its_first_lines(model: SimpleNamespace) -> None:
    error = failure(model.wordy, jnp.ones(4))
    assert error.message == "loss of model: RuntimeError: line 0\nline 1\nline 2\nline 3\nline 4"


def test_an_attempt_to_end_the_process_is_an_error_of_the_model(model: SimpleNamespace) -> None:
    assert failure(model.leaving, jnp.ones(4)).message == "loss of model: SystemExit: 2"


def test_the_frames_of_libraries_are_shown_only_where_there_are_no_others() -> None:
    with pytest.raises(ModelError) as failed, user_code("reading"):
        __import__("json").loads("{")
    assert "test_user_frames.py" in failed.value.user_frames
    assert "json" not in failed.value.user_frames.replace('__import__("json")', "")


def _branching(x: Any) -> Any:
    return x if x > 0 else -x


def _in_two_types(x: Any) -> Any:
    return jax.lax.scan(lambda _, each: (each, None), jnp.zeros(()), x.astype(jnp.bfloat16))[0]


def test_a_loop_that_begins_in_another_dtype_is_told_how_to_begin() -> None:
    with pytest.raises(ModelError) as failed, user_code("loss"):
        _in_two_types(jnp.zeros(3))
    assert "carry" in failed.value.message
    assert "begin the loop in the dtype that its body returns" in str(failed.value.hint)


@pytest.mark.parametrize("program", [_branching, np.asarray, lambda x: x * [1, 2][x.astype(int)], lambda x: x[x > 0]])
def test_a_program_that_cannot_be_compiled_is_said_to_be_that(program: Callable[[Any], Any]) -> None:
    with pytest.raises(ModelError) as failed, user_code("loss"):
        jax.eval_shape(program, 1.0)
    assert "jax.jit of it fails" in str(failed.value.hint)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_file_that_the_compiler_cannot_write_is_an_error_of_the_machine(number: int) -> None:
    text = f"OUT_OF_RANGE: /tmp/x; {os.strerror(number)}\n\tUnable to write PTX contents to: /tmp/x"
    with pytest.raises(MachineError, match="compiling model"), user_code("compiling model"):
        raise jax.errors.JaxRuntimeError(text)
    with pytest.raises(ModelError), user_code("running model"):
        raise jax.errors.JaxRuntimeError(f"INTERNAL: CpuCallback error: OSError: {os.strerror(number)}")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")])
def test_running_out_of_memory_is_the_machines_failure(error: Exception) -> None:
    with pytest.raises(MachineError, match="running model: out of memory") as failed, user_code("running model"):
        raise error
    assert "--batch-size" in str(failed.value.hint)


def test_memory_that_the_device_does_not_have_is_the_machines_failure() -> None:
    with pytest.raises(MachineError, match="out of memory"), user_code("running model"):
        jax.block_until_ready(jnp.zeros(1 << 45, jnp.float32))


@pytest.mark.parametrize(
    "text",
    [
        "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out",
        "UNAVAILABLE: Task 1 heartbeat timeout. This indicates that the remote task has failed",
        "INTERNAL: Connection closed by peer [127.0.0.1]:1234",
    ],
)
def test_another_process_that_is_gone_is_the_machines_failure(text: str) -> None:
    with pytest.raises(MachineError, match="another process of the run has ended") as failed, user_code("loss"):
        raise jax.errors.JaxRuntimeError(text)
    assert text in failed.value.message


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DumpError("refused")])
def test_interrupts_and_our_own_errors_pass_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, user_code("loss"):
        raise error
    assert raised.value is error


def test_an_error_of_our_own_making_is_not_blamed_on_the_user() -> None:
    with pytest.raises(AttributeError), user_code("loss"):
        one_of_our_modules.frame_tree(None)  # type: ignore[arg-type]


def test_an_error_of_jax_that_gradscope_ran_into_is_the_models_also_where_jax_removes_its_frames() -> None:
    before: Any = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009 - its flags are not typed
    jax.config.update("jax_traceback_filtering", "quiet_remove_frames")
    try:
        with pytest.raises(ModelError, match="loss of <lambda>: NotImplementedError: scatter_apply JVP"):
            gs.capture(lambda w: w.at[1].apply(jnp.sin).sum(), jnp.ones(3))
        assert getattr(jax.config, "jax_traceback_filtering") == "quiet_remove_frames"  # noqa: B009 - likewise
    finally:
        jax.config.update("jax_traceback_filtering", before)


def test_what_does_not_fail_is_left_alone() -> None:
    with user_code("loss"):
        pass


def test_a_rule_that_fails_where_the_program_runs_is_one_of_those_in_the_loss() -> None:
    with (
        pytest.raises(ModelError, match=r"the derivative rule of solver \(implicit\.py:3\) uses a value") as refused,
        user_code("running loss", lambda: ["solver (implicit.py:3)"]),
    ):
        raise TypeError("Computation compiled for 7 inputs but called with 4")
    assert refused.value.hint is not None


def test_a_pytree_of_the_model_that_raises_is_no_signal_handler(tmp_path: Path) -> None:
    file = tmp_path / "tree.py"
    file.write_text("def flatten(tree): raise AssertionError('mine')\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    kind = type("Tree", (), {})
    jax.tree_util.register_pytree_node(kind, names["flatten"], lambda _, children: kind(*children))
    with pytest.raises(AssertionError) as raised:
        jax.tree_util.tree_leaves(kind())
    failure = failure_of_user(raised.value)
    assert failure is not None
    assert "where its variables or its batch are taken apart: AssertionError: mine" in failure.message


@sampled("line", ["from csv import MINE", "import csv; csv.MINE"])
def test_a_file_beside_the_model_that_another_module_hides_is_named(line: str, tmp_path: Path) -> None:
    assert "csv" in sys.modules
    file = tmp_path / "model.py"
    file.write_text(f"{line}\n")
    for exists in (False, True):
        with pytest.raises(ModelError) as failed, user_code("importing model.py"):
            exec(compile(file.read_text(), str(file), "exec"), {})
        assert ("csv.py beside the model is not it" in str(failed.value.hint)) is exists
        (tmp_path / "csv.py").write_text("MINE = 1\n")


def test_what_leads_to_us_is_no_frame_of_a_model_whose_host_callback_fails() -> None:
    """A command's own stack, of the libraries that it is started by, is a part of what JAX says of a callback."""

    def stack(*files: str) -> str:
        return "".join(f'  File "{file}", line 3, in run\n    run()\n' for file in files)

    launcher = str(Path(sysconfig.get_path("purelib"), "typer", "main.py"))
    in_package = str(Path(sysconfig.get_path("purelib"), "vision", "model.py"))

    def shown(*files: str) -> str:
        return user_frames(RuntimeError(f"callback failed:\nTraceback (most recent call last):\n{stack(*files)}no"))

    ours = str(one_of_our_modules.__file__)
    assert shown(launcher, ours) == ""
    assert "vision" in shown(launcher, ours, in_package)
    assert "typer" not in shown(launcher, ours, in_package)
