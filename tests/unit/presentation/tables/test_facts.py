"""The lines below a dump's tables: what the self-check found, and what the loss counts."""

from __future__ import annotations

from dataclasses import replace

from gradscope.dump.manifest.manifest import Cause
from gradscope.presentation.tables.facts import facts, parameters_of_parts
from tests.support.report_samples import small_network


def test_the_self_check_names_the_largest_difference_and_what_is_zero_but_for_rounding() -> None:
    checked = {
        "total": 4, "bit_equal": 2, "max_rel_l2": 3.2e-7, "largest": "head/kernel", "zero_but_rounding": ["key/b"],
    }  # fmt: skip
    manifest = replace(small_network(), self_check=checked)
    assert dict(facts("run.npz", manifest))["self-check"] == (
        "2 of 4 parameter gradients are bit for bit those of the plain program; "
        "the largest rel_l2 is 3.20e-07, of head/kernel; zero but for rounding: key/b"
    )


def test_what_the_loss_counts_is_said_beside_it() -> None:
    manifest = replace(small_network(), loss=1.5, provenance={"counted": "mse of logits; not counted: aux"})
    assert dict(facts("run.npz", manifest))["loss"] == "1.5, mse of logits; not counted: aux"


def test_what_gradients_are_of_is_said_where_it_is_not_the_loss() -> None:
    asked = {"of": ["hidden", "out"], "stop_gradient": ["x"], "feed": ["mid"]}
    shown = dict(facts("run.npz", replace(small_network(), provenance=asked)))
    assert shown["gradients"] == "of hidden, out in place of the loss; with x as constant"
    assert shown["fed"] == "mid"
    assert not {"gradients", "fed"} & dict(facts("run.npz", small_network())).keys()


def test_the_command_that_made_a_dump_is_one_to_paste() -> None:
    made = {"argv": ["gradscope", "dump", "model.py", "--select", "block[0]/*"]}
    shown = dict(facts("run.npz", replace(small_network(), provenance=made)))
    assert shown["command"] == "gradscope dump model.py --select 'block[0]/*'"
    assert "command" not in dict(facts("run.npz", small_network()))


def test_parameters_that_the_loss_takes_out_are_said_and_those_that_attention_does_are_not() -> None:
    def said(by: str, *, rounding: bool = True) -> str | None:
        why = f"is zero but for rounding: the loss does not change with it; {by} out what it adds"
        cause = Cause(family="param_grad", name="head/bias", why=why, rounding=rounding)
        return dict(facts("run.npz", replace(small_network(), causes=(cause,)))).get("no effect")

    own = "log_softmax at net.py:7 takes"
    optax = "logsumexp at net.py:8 and softmax_cross_entropy_with_integer_labels at net.py:8 take"
    assert said(own) == f"head/bias: {own} out what it adds"
    assert said(optax) == f"head/bias: {optax} out what it adds"
    assert said("softmax at net.py:6 takes") is None
    assert said(own, rounding=False) is None


def test_parameters_that_wait_for_others_to_move_from_zero_are_said_and_those_that_a_mask_hides_are_not() -> None:
    def said(*whys: str) -> str | None:
        causes = tuple(Cause(family="param_grad", name=f"block{at}/up/kernel", why=why) for at, why in enumerate(whys))
        return dict(facts("run.npz", replace(small_network(), causes=causes))).get("at zero")

    gate = "masked: multiplied by exact zeros in mul at net.py:7: {} is 0".format
    one, other = gate("param/gate"), gate("the product of param/ada/kernel")
    assert said(one) == "block0/up/kernel: no gradient while param/gate is zero"
    assert said(one, f"{one}; {other}") == (
        "block0/up/kernel, block1/up/kernel: no gradient while param/gate and 1 more are zero"
    )
    assert said(gate("input/mask"), f"{one}; {gate('input/mask')}", "masked: multiplied by exact zeros in mul") is None


def test_parameters_are_of_the_innermost_parts_that_have_them_all() -> None:
    block = [f"blocks/1/{name}" for name in ("attn/query/kernel", "attn/query/bias", "mlp/kernel")]
    assert parameters_of_parts([*block, "head/bias", "scale"]) == "5 parameters of blocks/1, head, scale"
    assert parameters_of_parts([*block, "blocks/2/mlp/kernel"]) == "4 parameters of blocks"
    assert parameters_of_parts(["a/b/kernel", "a/b/bias"]) == "a/b/kernel, a/b/bias"
    long = [f"encoder/layers/0/attention/{name}" for name in ("query", "key", "value")]
    assert parameters_of_parts(long) == "3 parameters of encoder/layers/0/attention"
    assert parameters_of_parts([f"{long[0]}/of/a/long/name/projection/kernel"]).endswith("/kernel")
