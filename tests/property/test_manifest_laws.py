"""Laws of what is said of a dump, whatever numbers its manifest has: those of a file from anywhere are of no tensor."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.dump.manifest.entries.packed_statistics import Packer
from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Manifest
from gradscope.dump.manifest.operation_facts.saturation import BOUNDED_NAMES, Saturation
from gradscope.dump.record import SiteFacts
from gradscope.presentation import Screen, to_csv, to_json, to_markdown, to_text
from gradscope.stats import find
from tests.support.page_samples import dump_maker
from tests.support.report_samples import report_of

SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 10_007, 2**31, 2**53 + 1, 2**62, 2**63 - 1])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
EXTREME = (0, 1, 8, 2**62, 2**63 - 1, -1, -(2**63 - 1), 0.0, 0.25, 0.5, 0.9, 1.0, -1.0, 5e-324, 1e-200, 1e200, 1.7e308)
NUMBERS = st.sampled_from(EXTREME) | st.floats() | st.sampled_from(["NaN", "Infinity", "-Infinity"])
COLUMNS = (
    "size",
    "mean",
    "std",
    "rms",
    "l2",
    "min",
    "max",
    "amax",
    "zeros",
    "nan",
    "inf",
    "subnormal",
    "dead",
    "saturated",
)
STATS = st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, NUMBERS))
RMS = st.fixed_dictionaries({}, optional=dict.fromkeys(("in", "out", "grad_in", "grad_out"), st.floats()))
PRIMITIVES = st.sampled_from([None, "tanh", "div", "exp", "max", "mul", "dot_general", "add"])
SATURATION = st.fixed_dictionaries(
    {"function": st.sampled_from(BOUNDED_NAMES), "index": st.integers(0, 9), "saturated": st.floats(),
     "noise": st.floats(), "again": st.booleans()}
)  # fmt: skip
DTYPES = st.sampled_from(["float32", "float16"])
PATHS = st.sampled_from(["block[{}]", "block{}", "a/{}/b"])
REASONS = st.sampled_from(
    ["dead units: of relu at m.py:1 is constant: input/x is 0", "masked: multiplied by exact zeros in mul at m.py:1",
     "satisfied at m.py:1 by all", "disconnected: the loss does not depend on it",
     "masked: in each row the mask leaves one entry, m.py:1"]
)  # fmt: skip


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Draws layers in a row, each with a kernel, a bias, and gradients, of any shape and with any numbers."""
    path, entries, layers = draw(PATHS), list[Entry](), list[Layer]()
    names = [path.format(number) for number in range(draw(st.integers(0, 8)))]
    for index, name in enumerate(names):
        shape, primitive = draw(SHAPES), draw(PRIMITIVES)
        params = {f"{name}/w": draw(st.just((16, 8)) | SHAPES), f"{name}/b": draw(st.just((8,)) | SHAPES)}
        values = {("activation", name): shape, ("activation_grad", name): shape}
        values |= {(family, param): own for param, own in params.items() for family in ("param", "param_grad")}
        site = SiteFacts(index=index, source="m.py:1", primitive=primitive, layer=name, iteration=(index,))
        entries += [
            Entry(family=family, name=each, shape=own, dtype=draw(DTYPES), stats=draw(STATS), site=site)
            for (family, each), own in values.items()
        ]
        parent = names[index - draw(st.integers(0, 8)) % len(names)] if draw(st.booleans()) else None
        inputs = tuple(names[at % len(names)] for at in draw(st.lists(st.integers(0, 8), max_size=2)))
        layers.append(
            Layer(
                path=name, index=index, parent=parent, primitive=primitive, rms=draw(RMS),
                params=tuple(params), inputs=inputs, outputs=(name,),
            )
        )  # fmt: skip
    gradients = [each for each in entries if each.family.endswith("_grad")]
    return Manifest(
        entries=tuple(entries),
        layers=tuple(layers),
        causes=tuple(
            Cause(family=each.family, name=each.name, why=draw(REASONS)) for each in gradients if draw(st.booleans())
        ),
        saturations=tuple(
            Saturation(layer=names[at] if at < len(names) else None, **draw(SATURATION))
            for at in draw(st.lists(st.integers(0, 8), max_size=2))
        ),
        loss=draw(st.none() | st.floats()),
    )


def packed(manifest: Manifest) -> Manifest:
    """Returns the manifest with its statistics packed, as those of a long manifest are."""
    statistics = Packer().pack([entry.stats for entry in manifest.entries])
    entries = zip(manifest.entries, statistics, strict=True)
    return replace(manifest, entries=tuple(replace(entry, stats=stats) for entry, stats in entries))


@settings(max_examples=15)
@given(manifests(), st.booleans())
def test_whatever_the_numbers_a_dump_is_judged_and_shown(drawn: Manifest, pack: bool) -> None:
    manifest = packed(drawn) if pack else drawn
    assert all(each.why for each in find(manifest))
    for fold in (True, False):
        assert to_text(report_of(manifest, fold=fold), Screen())
    assert to_text(report_of(manifest), Screen(width=80))
    assert to_markdown(report_of(manifest))
    assert to_json(report_of(manifest))
    assert to_csv(report_of(manifest)) is not None
    assert dump_maker(manifest)(0)
