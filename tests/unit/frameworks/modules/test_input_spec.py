"""Input specs: what can be said about an input, and every way to say it wrong."""

from __future__ import annotations

import pytest

from gradscope.errors import UsageError
from gradscope.frameworks.modules.input_spec import InputSpec, InputValues, examples, parse_input, with_batch_size

NORMAL = InputValues(kind="normal", numbers=(0, 1))


@pytest.mark.parametrize(
    ("text", "name", "dtype", "shape", "values"),
    [
        ("float32[8,224,224,3]", None, "float32", (8, 224, 224, 3), NORMAL),
        ("bfloat16[]", None, "bfloat16", (), NORMAL),
        ("x=float32[2, 3]", "x", "float32", (2, 3), NORMAL),
        ("complex64[2]", None, "complex64", (2,), NORMAL),
        ("bool[4]", None, "bool", (4,), InputValues(kind="uniform", numbers=(0, 2))),
        ("graph/nodes=int32[4]", "graph/nodes", "int32", (4,), InputValues(kind="uniform", numbers=(0, 2))),
        ("int32[8,128]:0..30522", None, "int32", (8, 128), InputValues(kind="uniform", numbers=(0, 30522))),
        ("float32[1]:-1.5..2e3", None, "float32", (1,), InputValues(kind="uniform", numbers=(-1.5, 2000))),
        ("float32[1]:uniform(-1, 1)", None, "float32", (1,), InputValues(kind="uniform", numbers=(-1, 1))),
        ("float32[1]:normal", None, "float32", (1,), NORMAL),
        ("float32[1]:normal(0.1,.3)", None, "float32", (1,), InputValues(kind="normal", numbers=(0.1, 0.3))),
        ("mask=int32[8]:1", "mask", "int32", (8,), InputValues(kind="constant", numbers=(1,))),
        ("uint8[8]:0..256", None, "uint8", (8,), InputValues(kind="uniform", numbers=(0, 256))),
    ],
)
def test_a_spec_has_name_dtype_shape_and_values(
    text: str, name: str | None, dtype: str, shape: tuple[int, ...], values: InputValues
) -> None:
    assert parse_input(text) == InputSpec(name=name, dtype=dtype, shape=shape, values=values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' does not describe an input"),
        ("float32", "'float32' does not describe an input"),
        ("float32[8,-1]", "'float32[8,-1]' does not describe an input"),
        ("=float32[8]", "'=float32[8]' does not describe an input"),
        ("f32[8]", "'f32[8]': there is no dtype 'f32'"),
        ("object[8]", "'object[8]': there is no dtype 'object'"),
        ("float32[8]:", "'float32[8]:' does not describe an input"),
        ("float32[8]:ones", "'float32[8]:ones' does not describe the input's values: 'ones'"),
        ("float32[8]:2..1", "'float32[8]:2..1': the range is empty"),
        ("complex64[8]:0..1", "'complex64[8]:0..1': complex numbers have no range"),
        ("int32[8]:normal", "'int32[8]:normal': int32 has no normal distribution"),
        ("int32[8]:0.5", "'int32[8]:0.5': int32 cannot represent these values"),
        ("uint8[8]:0..257", "'uint8[8]:0..257': uint8 cannot represent these values"),
        ("bool[8]:2", "'bool[8]:2': bool cannot represent these values"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_input(text)
    assert refused.value.message == says
    assert refused.value.hint


def test_another_batch_size_is_that_of_every_input_that_shares_it() -> None:
    specs = [parse_input(text) for text in ("float32[8,3]", "int32[8]", "float32[3,8]", "float32[]")]
    assert examples(specs) == 8
    assert [spec.shape for spec in with_batch_size(specs, 2)] == [(2, 3), (2,), (3, 8), ()]
    assert with_batch_size(specs, None) == tuple(specs)
    assert with_batch_size(specs[3:], 2) == tuple(specs[3:])
