"""Pairing: what each pass matches, what it does not, and that layouts are inferred from values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.comparison import CompareOptions, Comparison, ComparisonRow, compare
from gradscope.comparison.pairing.map_file import read_map, write_map
from gradscope.comparison.pairing.normal_forms import spelt, tokens_of
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.errors import DumpError, UsageError
from gradscope.naming import Selection, split_key
from gradscope.stats.tensor_stats import tensor_stats

Array = np.ndarray[Any, Any]
JAX = {"versions": {"jax": "0.10.2"}}


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def dump(tensors: Mapping[str, Array], *, operation: str | None = None, **fields: Any) -> MemoryDump:
    entries = [
        Entry(
            family=split_key(key)[0], name=split_key(key)[1], shape=array.shape, dtype=array.dtype.name,
            stats=tensor_stats(array).to_json(), site=SiteFacts(index=index, primitive=operation),
        )
        for index, (key, array) in enumerate(tensors.items())
    ]  # fmt: skip
    return MemoryDump(Manifest(entries=tuple(entries), **fields), dict(tensors))


def foreign(tensors: Mapping[str, Array]) -> MemoryDump:
    """The same as a file that gradscope did not write has them: without statistics and families."""
    known = dump({f"tensor/{name}": array for name, array in tensors.items()})
    bare = tuple(replace(entry, stats={}) for entry in known.manifest.entries)
    return MemoryDump(Manifest(entries=bare), {f"tensor/{name}": array for name, array in tensors.items()})


def rows(found: Comparison) -> dict[str, ComparisonRow]:
    return {f"{row.family}/{row.name}": row for row in found.rows}


def only(found: Comparison) -> ComparisonRow:
    (row,) = found.rows
    return row


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("layers[3]/attn", "layers.3.attn"), ("layers_3/attn", "layers[3]/attn"), ("layers3/attn", "layers/3/attn"),
        ("Encoder/SelfAttention", "encoder.self_attention"), ("module.conv1/weight", "conv1.kernel"),
        ("_orig_mod.module.fc.bias", "fc/b"), ("params/bn/scale", "bn.weight"),
        ("bn/mean", "bn.running_mean"), ("batch_stats/bn/var", "bn.running_var"), ("embed#2", "embed.2"),
    ],
)  # fmt: skip
def test_names_that_are_one_name(one: str, other: str) -> None:
    assert spelt(tokens_of(one)) == spelt(tokens_of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("layers.1.2", "layers.12"), ("conv1", "conv2"), ("encoder/w", "decoder/w"), ("model", ""), ("w", "weight/w")],
)
def test_names_that_are_two_names(one: str, other: str) -> None:
    assert spelt(tokens_of(one)) != spelt(tokens_of(other))


def test_each_row_has_the_pass_that_matched_it() -> None:
    a, b = values(3, 4), values(5)
    found = compare(dump({"param/layers[0]/w": a, "param/b": b}), dump({"param/layers.0.weight": a, "param/b": b}))
    assert found.verdict == "same"
    assert {key: (row.matched_by, row.counterpart) for key, row in rows(found).items()} == {
        "param/layers[0]/w": ("path", "layers.0.weight"), "param/b": ("name", ""),
    }  # fmt: skip


def test_a_scope_around_everything_on_one_side_is_a_wrapper() -> None:
    tensors = {"a/w": values(3, 2), "b/w": values(4, 2)}
    wrapped = {f"param/resnet/{name}": array for name, array in tensors.items()}
    bare = {f"param/{name}": array for name, array in tensors.items()}
    for ref, cand in ((wrapped, bare), (bare, wrapped)):
        assert {row.matched_by for row in compare(dump(ref), dump(cand)).rows} == {"path"}


@pytest.mark.parametrize("wrapper", ["FlaxBert", "Model_0"])
def test_a_wrapper_has_an_output_of_its_own_and_a_loss_is_outside_of_it(wrapper: str) -> None:
    tensors = {"bert/pooler": values(3, 2), "bert/embed": values(4, 2), "classifier": values(5, 2)}
    wrapped = {f"activation/{wrapper}/{name}": array for name, array in tensors.items()}
    wrapped |= {f"activation/{wrapper}": values(6), "activation/loss": values(7)}
    # Other values: what has the same would be found by those.
    bare = {f"activation/{name}": array + 1 for name, array in tensors.items()}
    found = rows(compare(dump(wrapped), dump(bare)))
    assert {name: found[f"activation/{wrapper}/{name}"].counterpart for name in tensors} == {
        name: name for name in tensors
    }
    assert {found[key].status for key in (f"activation/{wrapper}", "activation/loss")} == {"missing"}


def test_two_tensors_of_one_normal_form_are_not_guessed_at() -> None:
    ref = dump({"param/a.1": values(3), "param/a_1": values(4)})
    found = compare(ref, dump({"param/a[1]": values(5)}))
    assert {row.status for row in found.rows} == {"missing", "extra"}


def test_a_difference_under_another_spelling_is_a_difference() -> None:
    found = only(compare(dump({"param/a/w": values(3, 2)}), dump({"param/A.weight": values(3, 2) + 1})))
    assert (found.status, found.matched_by, found.made_by) == ("different", "path", "")


@pytest.mark.parametrize(
    ("shape", "axes", "made_by"),
    [
        ((4, 6), (1, 0), "transpose [1, 0]"), ((5, 5), (1, 0), "transpose [1, 0]"),
        ((3, 3, 4, 8), (3, 2, 0, 1), "transpose [2, 3, 1, 0]"), ((2, 8, 8, 4), (0, 3, 1, 2), "transpose [0, 2, 3, 1]"),
    ],
)  # fmt: skip
def test_a_layout_is_inferred_from_values(shape: tuple[int, ...], axes: tuple[int, ...], made_by: str) -> None:
    kernel = values(*shape)
    found = only(compare(dump({"param/conv/kernel": kernel}), foreign({"conv.weight": kernel.transpose(axes)})))
    assert (found.status, found.matched_by, found.counterpart) == ("same", "path", "tensor/conv.weight")
    assert (found.made_by, found.metrics["bit_equal"]) == (made_by, True)


def test_heads_that_are_merged_are_found_by_the_values() -> None:
    kernel = values(6, 2, 3)
    found = only(compare(dump({"param/query/kernel": kernel}), foreign({"query.weight": kernel.reshape(6, 6).T})))
    assert (found.status, found.made_by) == ("same", "reshape [2, 3, 6], transpose [2, 0, 1]")


def test_no_layout_is_inferred_from_shapes() -> None:
    found = only(compare(dump({"param/a/kernel": values(4, 6)}), foreign({"a.weight": values(6, 4, seed=1)})))
    assert (found.status, found.made_by) == ("different", "")
    assert found.why == "the shape is (4, 6) in the reference and (6, 4) in the candidate"


def test_a_transposed_kernel_of_square_shape_is_a_fault_under_its_own_name() -> None:
    kernel = values(5, 5)
    found = only(compare(dump({"param/a/kernel": kernel}), dump({"param/a/kernel": kernel.T.copy()})))
    assert (found.status, found.made_by) == ("different", "")


def test_shapes_may_differ_by_layout_between_frameworks_only() -> None:
    image = values(2, 6, 4, 3)
    ref, names = {"activation/conv": image}, {"activation/conv": image.transpose(0, 3, 1, 2).copy()}
    other = compare(dump(ref, provenance=JAX), dump(names, provenance={"versions": {"torch": "2.13"}}))
    assert (only(other).status, only(other).made_by) == ("same", "transpose [0, 2, 3, 1]")
    assert only(compare(dump(ref, provenance=JAX), dump(names, provenance=JAX))).status == "different"


def test_a_gradient_has_the_layout_of_its_parameter_even_where_its_values_are_wrong() -> None:
    kernel, gradient = values(4, 6), values(4, 6, seed=1)
    ref = dump({"param/a/kernel": kernel, "param_grad/a/kernel": gradient})
    found = rows(compare(ref, dump({"param/a.weight": kernel.T, "param_grad/a.weight": values(6, 4, seed=2)})))
    wrong = found["param_grad/a/kernel"]
    assert (wrong.status, wrong.made_by) == ("different", "transpose [1, 0]")
    assert wrong.needed is not None
    assert 1 < wrong.needed < 2


def test_the_layout_of_the_rest_of_the_family_is_used_where_values_do_not_decide() -> None:
    image = values(2, 6, 4, 3)
    ref = dump({"activation/a": image, "activation/b": image + 1})
    cand = dump({"activation/A": image.transpose(0, 3, 1, 2), "activation/B": values(2, 3, 6, 4, seed=9)})
    assert {row.made_by for row in compare(ref, cand).rows} == {"transpose [0, 2, 3, 1]"}


@pytest.mark.parametrize("stacked_first", [True, False])
def test_a_stack_is_matched_with_the_tensors_in_it(stacked_first: bool) -> None:
    layers = [values(3, 4, seed=seed) for seed in range(11)]
    stacked = dump({"param/block/w": np.stack(layers)})
    unrolled = dump({f"param/block/{number}/w": array for number, array in enumerate(layers)})
    found = compare(stacked, unrolled) if stacked_first else compare(unrolled, stacked)
    assert found.verdict == "same"
    assert {row.matched_by for row in found.rows} == {"path"}
    assert {row.made_by for row in found.rows} == ({"stack 0"} if stacked_first else {"unstack 0"})
    swapped = dump({"param/block/w": np.stack(layers[::-1])})
    assert compare(swapped, unrolled).verdict == "different"


@pytest.mark.parametrize("name", ["block/{}/w", "block[{}]/w", "block#{}/w", "block{}/w"])
def test_a_run_of_digits_without_end_is_a_word(name: str) -> None:
    digits = "9" * 5000
    ref = dump({f"param/{name.format(digits)}": values(3, 4), "param/block[0]/w": values(5)}, operation="add")
    cand = dump({f"param/Block.{digits}.weight": values(3, 4), "param/block/w": values(5)}, operation="add")
    found = rows(compare(ref, cand))
    assert found[f"param/{name.format(digits)}"].status == "same"


def test_a_stack_of_another_length_is_not_matched() -> None:
    unrolled = dump({f"param/block/{number}/w": values(3, seed=number) for number in range(3)})
    found = compare(dump({"param/block/w": values(4, 3)}), unrolled)
    assert {row.status for row in found.rows} == {"missing", "extra"}


def test_execution_order_matches_what_one_operation_made_in_one_shape() -> None:
    one, other, third = values(2, 3), values(2, 3, seed=1), values(4)
    ref = dump({"activation/a": one, "activation/b": other, "activation/c": third}, operation="dot_general")
    cand = dump({"activation/x": one, "activation/y": other, "activation/z": third}, operation="dot_general")
    found = rows(compare(ref, cand))
    assert [(row.counterpart, row.matched_by) for row in found.values()] == [
        ("x", "order"),
        ("y", "order"),
        ("z", "order"),
    ]
    conv = dump({"activation/x": one + 1, "activation/y": other + 1, "activation/z": third + 1}, operation="conv")
    assert {row.status for row in compare(ref, conv).rows} == {"missing", "extra"}


def test_execution_order_does_not_guess_with_one_more_on_a_side() -> None:
    ref = dump({"activation/a": values(2, 3)}, operation="add")
    cand = dump({"activation/x": values(2, 3) + 1, "activation/y": values(2, 3) + 2}, operation="add")
    assert {row.status for row in compare(ref, cand).rows} == {"missing", "extra"}


def test_a_fingerprint_is_verified_by_the_values_in_any_layout() -> None:
    kernel, dense = values(3, 3, 4, 8), values(7, 9)
    noisy, other = dense.T + np.float32(1e-7), values(7, 9, seed=1)
    cand = foreign({"f.12": noisy, "f.0": kernel.transpose(3, 2, 0, 1), "f.1": other})
    found = rows(compare(dump({"param/stem": kernel, "param/head": dense}), cand))
    stem, head = found["param/stem"], found["param/head"]
    assert (stem.matched_by, stem.counterpart, stem.made_by) == ("fingerprint", "tensor/f.0", "transpose [2, 3, 1, 0]")
    assert (head.matched_by, head.counterpart, head.status) == ("fingerprint", "tensor/f.12", "same")
    assert found["tensor/f.1"].status == "extra"


def test_the_same_statistics_are_no_proof() -> None:
    tensor = values(64)
    found = compare(dump({"param/a": tensor}), foreign({"b": np.random.default_rng(1).permutation(tensor)}))
    assert {row.status for row in found.rows} == {"missing", "extra"}


def test_equal_tensors_are_paired_by_the_names_of_their_neighbours() -> None:
    zeros, kernels = np.zeros(4, np.float32), [values(3, 4, seed=seed) for seed in range(3)]
    names = ["stem", "middle", "last"]
    ref = {f"param/{name}/w": kernel for name, kernel in zip(names, kernels, strict=True)}
    ref |= {f"param/{name}/offset": zeros for name in names}
    cand = {f"f.{2 - number}.offset": zeros for number in range(3)}
    cand |= {f"f.{number}.matrix": kernel.T for number, kernel in enumerate(kernels)}
    found = rows(compare(dump(ref), foreign(cand)))
    for number, name in enumerate(names):
        assert found[f"param/{name}/w"].counterpart == f"tensor/f.{number}.matrix"
        assert found[f"param/{name}/offset"].counterpart == f"tensor/f.{number}.offset"


@pytest.mark.slow
def test_a_port_of_a_residual_network_is_paired_by_its_weights() -> None:
    """The names of Flax and of torchvision, fresh normalisations that are all equal, HWIO and OIHW."""
    ref: dict[str, Array] = {"param/head/kernel": values(8, 10)}
    cand: dict[str, Array] = {"fc.weight": values(8, 10).T}
    expected = {"param/head/kernel": "tensor/fc.weight"}
    for stage, block, layer in np.ndindex(2, 3, 2):
        ours, theirs = f"stage{stage + 1}_block{block + 1}", f"layer{stage + 1}.{block}"
        kernel = values(3, 3, 8, 8, seed=100 * stage + 10 * block + layer)
        for family, name, other, array in (
            ("param", f"conv{layer + 1}/kernel", f"conv{layer + 1}.weight", kernel),
            ("param", f"bn{layer + 1}/scale", f"bn{layer + 1}.weight", np.ones(8, np.float32)),
            ("param", f"bn{layer + 1}/bias", f"bn{layer + 1}.bias", np.zeros(8, np.float32)),
            ("state", f"bn{layer + 1}/mean", f"bn{layer + 1}.running_mean", np.zeros(8, np.float32)),
            ("state", f"bn{layer + 1}/var", f"bn{layer + 1}.running_var", np.ones(8, np.float32)),
        ):
            ref[f"{family}/{ours}/{name}"] = array
            cand[f"{theirs}.{other}"] = array.transpose(3, 2, 0, 1) if array is kernel else array
            expected[f"{family}/{ours}/{name}"] = f"tensor/{theirs}.{other}"
    shuffled = dict(sorted(cand.items(), key=lambda item: item[0][::-1]))
    found = compare(dump(ref), foreign(shuffled))
    assert found.verdict == "same"
    assert {key: row.counterpart for key, row in rows(found).items()} == expected


def test_a_gradient_follows_the_fingerprint_of_its_parameter() -> None:
    kernel = values(4, 6)
    ref = dump({"param/head": kernel, "param_grad/head": kernel * 2})
    found = rows(compare(ref, dump({"param/out": kernel.T, "param_grad/out": values(6, 4, seed=3)})))
    wrong = found["param_grad/head"]
    assert (wrong.status, wrong.matched_by, wrong.counterpart) == ("different", "fingerprint", "out")


def test_a_single_number_is_no_fingerprint() -> None:
    found = compare(dump({"param/a": values(1)}), foreign({"b": values(1)}))
    assert {row.status for row in found.rows} == {"missing", "extra"}


def test_a_foreign_gradient_is_recognised_by_its_name() -> None:
    weight, gradient = values(3, 4), values(3, 4, seed=1)
    found = rows(
        compare(
            dump({"param/a/w": weight, "param_grad/a/w": gradient}),
            foreign({"a.weight": weight, "a.weight.grad": gradient}),
        )
    )
    assert {key: row.counterpart for key, row in found.items()} == {
        "param/a/w": "tensor/a.weight", "param_grad/a/w": "tensor/a.weight.grad",
    }  # fmt: skip


def test_an_entry_without_a_tensor_on_either_side_is_not_missing() -> None:
    label = Entry(
        family="input_grad", name="label", shape=(8,), dtype="float0", stats={}, site=SiteFacts(index=0),
        absent="non-differentiable",
    )  # fmt: skip
    known = dump({"param/w": values(3)})
    ref = MemoryDump(Manifest(entries=(*known.manifest.entries, label)), {"param/w": values(3)})
    found = compare(ref, foreign({"w": values(3)}))
    assert found.verdict == "same"
    left = rows(found)["input_grad/label"]
    assert (left.status, left.counts) == ("missing", False)
    assert left.why == "only listed, without a tensor (non-differentiable)"


def test_another_name_of_a_compared_tensor_is_not_missing_in_a_file_without_layers() -> None:
    known = dump({"activation/block/relu": values(3, 2)})
    alias = replace(known.manifest.entries[0], name="block", alias_of="activation/block/relu", stats={})
    manifest = Manifest(entries=(*known.manifest.entries, alias), layers=(Layer(path="block", index=0),))
    ref = MemoryDump(manifest, {"activation/block/relu": values(3, 2)})
    assert compare(ref, foreign({"block.relu": values(3, 2)})).verdict == "same"
    assert compare(ref, dump({"activation/block/relu": values(3, 2)}, layers=manifest.layers)).verdict == "different"


def map_of(tmp_path: Path, text: str) -> CompareOptions:
    path = tmp_path / "map.toml"
    path.write_text(text)
    return CompareOptions(map_rules=read_map(path))


def test_a_fused_weight_is_split_by_a_rule(tmp_path: Path) -> None:
    parts = {name: values(6, 2, 3, seed=seed) for seed, name in enumerate(("q", "k", "v"))}
    fused = np.concatenate([part.reshape(6, 6).T for part in parts.values()])
    options = map_of(
        tmp_path,
        r"""
        [[rule]]
        candidate = 'h\.(?P<layer>\d+)\.c_attn\.weight'
        reference = ['param/block[{layer}]/q', 'param/block[{1}]/k', 'param/block[{1}]/v']
        steps = [{ split = 0 }, { transpose = [1, 0] }, { reshape = [6, 2, -1] }]
        """,
    )
    ref = dump({f"param/block[7]/{name}": part for name, part in parts.items()})
    found = compare(ref, foreign({"h.7.c_attn.weight": fused}), options=options)
    assert found.verdict == "same"
    assert {row.matched_by for row in found.rows} == {"map"}
    assert found.rows[2].made_by == "split 0 into 3, transpose [1, 0], reshape [6, 2, -1]"


def test_many_tensors_become_one_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    layers = [values(2, 3, seed=seed) for seed in range(12)]
    cand = foreign({f"h.{number}.w": layers[number] for number in sorted(range(12), key=str)})
    weights = list(range(1, 13))
    mean = np.average(np.stack(layers), axis=0, weights=weights)[None].astype(np.float32)
    for steps, joined in (
        ("{ stack = 0 }", np.stack(layers)),
        ("{ concatenate = 0 }", np.concatenate(layers)),
        (f"{{ stack = 0 }}, {{ mean = 0, weights = {weights} }}", mean),
    ):
        rule = f"[[rule]]\ncandidate = 'h\\.\\d+\\.w'\nreference = 'param/blocks'\nsteps = [{steps}]"
        assert compare(dump({"param/blocks": joined}), cand, options=map_of(tmp_path, rule)).verdict == "same"


def test_one_tensor_becomes_many_that_are_counted(tmp_path: Path) -> None:
    layers = [values(2, 3, seed=seed) for seed in range(3)]
    rule = "[[rule]]\ncandidate = 'all'\nreference = 'param/block[{i}]/w{{x}}'\nsteps = [{ unstack = 1 }]"
    ref = dump({f"param/block[{number}]/w{{x}}": array for number, array in enumerate(layers)})
    found = compare(ref, foreign({"all": np.stack(layers, axis=1)}), options=map_of(tmp_path, rule))
    assert [row.matched_by for row in found.rows] == ["map"] * 3
    assert found.verdict == "same"


def test_a_rule_for_names_is_for_every_family_and_goes_before_exact_names(tmp_path: Path) -> None:
    kernel = values(5, 5)
    ref = {"param/a/w": kernel, "param_grad/a/w": kernel * 2}
    cand = {key: array.T for key, array in ref.items()}
    rule = "[[rule]]\ncandidate = '(.*)/w'\nreference = '{1}/w'\nsteps = [{ transpose = [1, 0] }]"
    assert compare(dump(ref), dump(cand)).verdict == "different"
    assert compare(dump(ref), dump(cand), options=map_of(tmp_path, rule)).verdict == "same"


@pytest.mark.parametrize(
    "step",
    [
        "{ reshape = [7, 7] }", "{ transpose = [0, 1, 2] }", "{ split = 5 }", "{ split = 0, into = [1, 1] }",
        "{ mean = 0, weights = [1, 1] }",
    ],
)  # fmt: skip
def test_steps_that_do_not_fit_are_reported_with_the_shapes(tmp_path: Path, step: str) -> None:
    options = map_of(tmp_path, f"[[rule]]\ncandidate = 'w'\nreference = 'param/a'\nsteps = [{step}]")
    said = r"cannot apply \{ (reshape|transpose|split|mean) = .* to 1 tensor of shape \(3, 4\), made of tensor/w: "
    with pytest.raises(UsageError, match=said):
        compare(dump({"param/a": values(3, 4)}), foreign({"w": values(3, 4)}), options=options)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense", "other = 1", "rule = 1", "[[rule]]\ncandidate = 'a'", "[[rule]]\ncandidate = '('\nreference = 'a'",
        "[[rule]]\ncandidate = 1\nreference = 'a'", "[[rule]]\ncandidate = 'a'\nreference = []",
        *(
            f"[[rule]]\ncandidate = 'a'\nreference = 'b'\nsteps = [{step}]"
            for step in ("1", "{}", "{ flip = 0 }", "{ stack = 'x' }", "{ stack = 0, into = 2 }", "{ transpose = 1 }",
                         "{ split = 0, into = 0 }", "{ split = 0, into = [] }", "{ split = true }")
        ),
    ],
)  # fmt: skip
def test_an_invalid_map_is_refused_with_its_position(tmp_path: Path, text: str) -> None:
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_map(path)


def test_a_map_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.toml", tmp_path / "binary.toml", tmp_path):
        with pytest.raises(DumpError, match="cannot read the map file"):
            read_map(path)


def test_a_template_with_an_unknown_group_is_refused(tmp_path: Path) -> None:
    options = map_of(tmp_path, "[[rule]]\ncandidate = 'w'\nreference = 'a{2}'")
    with pytest.raises(UsageError, match=r"has a group \{2\} that"):
        compare(dump({"param/a": values(3)}), foreign({"w": values(3)}), options=options)


def test_the_map_that_was_written_finds_the_same_pairs_again(tmp_path: Path) -> None:
    layers = [values(3, 4, seed=seed) for seed in range(3)]
    ref = {"param/conv{1}/kernel": values(3, 3, 2, 5), "param/blocks/w": np.stack(layers), "param/head": values(7, 9)}
    ref |= {f"param/tail/{number}/w": array for number, array in enumerate(layers)} | {"param/same": values(2)}
    cand = {"conv{1}.weight": values(3, 3, 2, 5).transpose(3, 2, 0, 1), "x": values(7, 9).T, "tail.w": np.stack(layers)}
    cand |= {f"blocks.{number}.w": array for number, array in enumerate(layers)}
    other = MemoryDump(
        Manifest(entries=(*foreign(cand).manifest.entries, *dump({"param/same": values(2)}).manifest.entries)),
        {f"tensor/{name}": array for name, array in cand.items()} | {"param/same": values(2)},
    )
    found = compare(dump(ref), other)
    assert found.verdict == "same"
    write_map(tmp_path / "map.toml", found.matches)
    again = compare(dump(ref), other, options=CompareOptions(map_rules=read_map(tmp_path / "map.toml")))
    assert again.verdict == "same"
    assert {row.matched_by for row in again.rows} == {"map", "name"}
    assert [(row.counterpart, row.made_by) for row in again.rows] == [
        (row.counterpart, row.made_by) for row in found.rows
    ]


def test_a_selection_may_use_the_names_of_either_dump() -> None:
    ref, cand = dump({"param/a/w": values(3), "param/b": values(4)}), foreign({"A.weight": values(3), "c": values(5)})
    for pattern in ("param/a/w", "A.weight"):
        found = compare(ref, cand, options=CompareOptions(selection=Selection.parse([pattern])))
        assert [row.name for row in found.rows] == ["a/w"]
    found = compare(ref, cand, options=CompareOptions(selection=Selection.parse(exclude=["A.*", "c"])))
    assert [row.name for row in found.rows] == ["b"]


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_statistics_alone_are_those_of_every_order_of_axes(factor: float) -> None:
    ref = dump({"param/a/kernel": values(4, 6)})
    cand = MemoryDump(dump({"param/a/weight": factor * values(4, 6).T}).manifest, {})
    row = only(compare(ref, cand))
    assert row.status == ("same" if factor == 1 else "different")
    assert row.why.startswith("judged by its statistics") or factor != 1, row.why
