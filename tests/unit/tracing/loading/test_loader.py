"""Loading models: where they are found, and one clear message for everything that can be wrong with them."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from gradscope.errors import GradscopeError, MachineError, ModelError, UsageError
from gradscope.frameworks.modules.input_spec import InputSpec, parse_input
from gradscope.frameworks.modules.request import Request
from gradscope.tracing.loading.loader import load_model
from gradscope.tracing.loading.model import Model
from tests.support.permissions import forbid

FUNCTIONS = """
def init(key): raise AssertionError("init ran")
def batch(key, size=2): raise AssertionError("batch ran")
def loss(variables, batch, *, train=True): raise AssertionError("loss ran")
"""

CLASS = """
import types
class Net:
    def __init__(self, depth, width=1):
        self.depth, self.width = depth, width
    def init(self, key): ...
    def batch(self, key, size): ...
    def loss(self, variables, batch): ...
configs = types.SimpleNamespace(small=Net(2), seven=7)
def make(*, fail=False):
    if fail:
        raise KeyError("no such net")
    return Net(3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of its own, and an interpreter that forgets what a test imports from there."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in sys.modules.keys() - modules:  # a library that is forgotten in part does not work when imported again
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def refusal(text: str) -> GradscopeError:
    with pytest.raises(GradscopeError) as refused:
        load_model(text)
    return refused.value


def test_a_file_is_a_model_and_loading_runs_none_of_it() -> None:
    file = write("net.py", FUNCTIONS)
    model = load_model("net.py")
    assert (model.name, model.source) == ("net", file.resolve())
    assert model.file_sha256 == hashlib.sha256(FUNCTIONS.encode()).hexdigest()
    with pytest.raises(AssertionError, match="loss ran"):
        model.loss(None, None)


def test_a_file_that_removes_itself_has_no_hash() -> None:
    write("net.py", f"{FUNCTIONS}\nimport os\nos.remove(__file__)\n")
    model = load_model("net.py")
    assert (model.name, model.file_sha256) == ("net", None)


def test_an_object_of_a_file_is_a_model() -> None:
    write("net.py", CLASS)
    model = load_model("net.py:configs.small")
    assert model.name == "net.configs.small"
    assert model.init.__self__.depth == 2  # type: ignore[attr-defined]


def test_a_call_makes_the_model() -> None:
    write("net.py", CLASS)
    net = load_model("net.py:Net(18, width=4)").init.__self__  # type: ignore[attr-defined]
    assert (net.depth, net.width) == (18, 4)


def test_the_zoo_is_found_by_name() -> None:
    model = load_model("linear_regression")
    assert model.name == "linear_regression"
    assert model.source is not None
    assert model.source.name == "linear_regression.py"
    assert str(model.source.parent) not in sys.path


def test_a_module_is_found_from_the_working_directory() -> None:
    write("package/__init__.py", "")
    write("package/nets.py", FUNCTIONS)
    model = load_model("package.nets")
    assert model.name == "nets"
    assert model.source == Path("package/nets.py").resolve()
    assert sys.path[0] == str(Path.cwd())


def test_a_path_does_not_put_the_working_directory_on_the_search_path() -> None:
    write("nets/net.py", FUNCTIONS)
    load_model("nets/net.py")
    assert sys.path[0] == str(Path("nets").resolve())
    assert str(Path.cwd()) not in sys.path


def test_neighbours_of_a_file_can_be_imported_late() -> None:
    write("nets/neighbour_of_net.py", "SIZE = 5")
    write(
        "nets/net.py",
        FUNCTIONS.replace('raise AssertionError("init ran")', "import neighbour_of_net as n; return n.SIZE"),
    )
    assert load_model("nets/net.py").init(None) == 5


def test_a_file_beside_a_model_is_none_for_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "colorsys"
    library = Path(sysconfig.get_path("stdlib"))
    monkeypatch.delitem(sys.modules, name, raising=False)
    write(f"{name}.py", "SIZE = 5")
    write("net.py", FUNCTIONS.replace('raise AssertionError("init ran")', f"import {name} as n; return n.SIZE"))
    model = load_model("net.py")
    exec(compile(f"import {name}", str(library / "of_python.py"), "exec"), {})
    assert Path(str(sys.modules.pop(name).__file__)).parent == library
    assert model.init(None) == 5


def test_classes_of_a_file_can_be_pickled_and_be_dataclasses() -> None:
    config = "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
    config += "@dataclass\nclass Config:\n    width: int\n    _: KW_ONLY\n    depth: int = 2\nconfig = Config(3)\n"
    write("net.py", config + FUNCTIONS)
    model = load_model("net.py")
    instance = vars(sys.modules[model.init.__module__])["config"]
    assert pickle.loads(pickle.dumps(instance)) == instance


def test_files_of_one_name_in_two_folders_are_two_modules() -> None:
    for folder in ("a", "b"):
        write(f"{folder}/net.py", FUNCTIONS + f"ME = {folder!r}")
    first, second = load_model("a/net.py"), load_model("b/net.py")
    assert first.init.__globals__["ME"] == "a"  # type: ignore[attr-defined]
    assert second.init.__globals__["ME"] == "b"  # type: ignore[attr-defined]


def test_an_edit_is_seen_at_once_and_no_file_is_left_next_to_it(folder: Path) -> None:
    for value in "123":
        write("net.py", FUNCTIONS + f"VALUE = {value}")
        assert load_model("net.py").init.__globals__["VALUE"] == int(value)  # type: ignore[attr-defined]
    assert [file.name for file in folder.iterdir()] == ["net.py"]


def test_every_choice_is_reported() -> None:
    write("net.py", CLASS)
    first, second = load_model("net.py:make()").choices
    assert first == f"net.py is a path, loaded from {Path('net.py').resolve()}"
    assert second == "init, batch and loss are those of make()"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("resnet50", "resnet50"),
        ("resnet50.ResNet(depth=18, image_size=32)", "resnet50.ResNet-depth=18-image_size=32"),
        ("net.f('../x')", "net.f-..-x"),
        ("модель", "модель"),
        ("---", "model"),
        ("n" * 300, "n" * 60),
    ],
)
def test_a_models_slug_is_a_file_name(name: str, slug: str) -> None:
    assert Model(name=name, init=repr, batch=max, loss=max).slug == slug


def test_a_missing_file_is_answered_with_its_nearest_neighbour() -> None:
    write("nets/resnet.py", FUNCTIONS)
    error = refusal("nets/resnet_.py")
    assert isinstance(error, UsageError)
    assert (error.message, error.hint) == ("there is no file nets/resnet_.py", "did you mean nets/resnet.py?")
    assert refusal("nowhere/net.py").hint == "nowhere has no Python file"
    assert refusal("nets/mixer.py").hint == "nets has resnet.py"  # and is not near to it


def test_a_folder_a_fifo_and_a_dump_are_no_model_files() -> None:
    os.mkfifo("fifo.py")
    assert refusal("fifo.py").message == "fifo.py is not a regular file"
    write("nets/x.py", "")
    write("run.npz", "")
    assert refusal("./nets").message == "nets is a folder"
    assert "gradscope show" in str(refusal("run.npz").hint)


def test_a_missing_module_is_distinguished_from_one_that_its_imports_miss() -> None:
    write("package/__init__.py", "")
    write("package/broken.py", "import no_such_dependency\n")
    missing = refusal("package.nets:model")
    assert isinstance(missing, UsageError)
    assert missing.message == "there is no module 'package.nets'"
    inside = refusal("package.broken")
    assert isinstance(inside, ModelError)
    assert inside.message.startswith("importing package.broken: ModuleNotFoundError: No module named 'no_such_dep")
    assert 'File "package/broken.py", line 1, in <module>' in inside.user_frames


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def init(key:\n", "importing net.py: SyntaxError: '(' was never closed (net.py, line 1)"),
        ("x = 1\ny = {}['a']\n", "importing net.py: KeyError: 'a'"),
        ("import sys\nsys.exit(3)\n", "importing net.py: SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_import_shows_the_users_line(text: str, message: str) -> None:
    write("net.py", text)
    error = refusal("net.py")
    assert isinstance(error, ModelError)
    assert error.message == message
    last = text.splitlines()[-1]
    assert error.user_frames.endswith(f"\n    {last}")
    assert len(error.user_frames.splitlines()) == 2


def test_a_script_without_a_guard_is_named_as_one() -> None:
    write("net.py", "raise SystemExit")
    assert "__main__" in str(refusal("net.py").hint)


def test_a_missing_name_is_answered_with_the_nearest() -> None:
    write("net.py", CLASS)
    error = refusal("net.py:mak()")
    assert isinstance(error, UsageError)
    assert (error.message, error.hint) == ("net.py has no 'mak'", "did you mean make?")
    inner = refusal("net.py:configs.smal")
    assert (inner.message, inner.hint) == ("net.py:configs has no 'smal'", "did you mean small?")


def test_a_file_without_the_functions_is_refused_with_those_it_has() -> None:
    write("net.py", "import math\ndef init(key): ...\ndef los(a, b): ...\n")
    error = refusal("net.py")
    assert isinstance(error, ModelError)
    assert error.message == (
        "net has no batch and no loss: a model has init(key), batch(key, size), loss(variables, batch); found init, los"
    )


def test_a_file_without_a_batch_takes_one_that_is_like_the_data() -> None:
    write("net.py", "def init(key): ...\ndef loss(variables, batch): ...\n")
    assert refusal("net.py").hint == "define it, or give a real batch: --data FILE"
    data = {"image": InputSpec.of("float64", (3, 8)), "text/mask": InputSpec.of("bool", (3, 2))}
    batch = load_model("net.py", Request(data=data | {"scale": InputSpec.of("float32", ())})).batch(None, 5)
    shapes = jax.tree_util.tree_map(lambda leaf: (leaf.dtype.name, leaf.shape), batch)
    assert shapes == {"image": ("float32", (5, 8)), "text": {"mask": ("bool", (5, 2))}, "scale": ("float32", ())}
    pair = {"0": data["image"], "1": data["text/mask"]}
    assert [leaf.shape for leaf in load_model("net.py", Request(data=pair)).batch(None, 5)] == [(5, 8), (5, 2)]
    alone = Request(data={"file": data["image"]}, data_is_array=True)
    assert load_model("net.py", alone).batch(None, 5).shape == (5, 8)


def test_a_batch_of_random_keys_is_the_files_to_define() -> None:
    write("net.py", "def init(key): ...\ndef loss(variables, batch): ...\n")
    with pytest.raises(ModelError, match="net has no batch"):
        load_model("net.py", Request(data={"key": InputSpec.of("key<fry>", ())}))


def test_all_that_is_wrong_with_the_functions_is_reported_at_once() -> None:
    write("net.py", "init = 3\ndef batch(key): ...\ndef loss(variables, batch, labels): ...\n")
    assert refusal("net.py").message == (
        "net is not a model: init is of type int, not a function; batch takes (key), expected batch(key, size); "
        "loss takes (variables, batch, labels), expected loss(variables, batch)"
    )


def test_a_function_without_its_argument_is_to_take_it() -> None:
    write("net.py", "def init(): ...\ndef batch(key, size): ...\ndef loss(variables, batch): ...\n")
    refused = refusal("net.py")
    assert refused.message == "net is not a model: init takes (), expected init(key)"
    assert refused.hint is not None
    assert refused.hint.startswith("a model has init(key), ")
    assert refused.hint.endswith("a function takes each of its arguments, also one that it does not use")


@pytest.mark.parametrize("call", ["Net(depth=...)", "make()"])
def test_a_class_or_factory_that_was_not_called_is_refused_with_how_to_call_it(call: str) -> None:
    write("net.py", CLASS)
    hint = refusal(f"net.py:{call.partition('(')[0]}").hint
    assert hint is not None
    assert hint.startswith(f"to call it, write {call} in the target")


def test_a_factory_that_needs_a_value_is_refused_with_the_call_it_needs() -> None:
    write("net.py", CLASS + "\ndef of_rate(rate, *, depth, width=3): ...\n")
    hint = refusal("net.py:of_rate").hint
    assert hint is not None
    assert hint.startswith(
        "to call it, write of_rate(rate=..., depth=...) in the target, with literals; where one is none"
    )
    assert hint.endswith("def build(): return of_rate(rate=..., depth=...)")


def test_one_function_of_a_model_is_refused_with_the_file_to_name() -> None:
    write("net.py", "def init(key): ...\ndef batch(key, size): ...\ndef loss(variables, batch): ...\n")
    assert (refusal("net.py:loss").hint or "").endswith("loss(variables, batch): name the file alone")


def test_the_functions_of_a_file_are_named_before_its_constants() -> None:
    write("net.py", "".join(f"{name} = 1\n" for name in "ABCDEFGHI") + "def loss_fn(a, b): ...\n")
    assert refusal("net.py").message.endswith("found loss_fn, A, B, C, D, E, F, G and 2 more")


def test_a_module_that_is_called_with_an_unknown_keyword_shows_no_address() -> None:
    pytest.importorskip("flax", reason="the package flax is not installed")
    write(
        "linen.py",
        "import flax.linen as nn\nclass Net(nn.Module):\n    act: object = nn.relu\n    def __call__(self, x):\n"
        "        return nn.Dense(3)(x)\n",
    )
    message = "Net(hidden=3) does not fit its signature (act=relu, parent=..., name=None)"
    assert refusal("linen.py:Net(hidden=3)").message == message


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("net.py:configs.seven()", UsageError, "configs.seven() calls an object of type int"),
        ("net.py:Net(color=1)", UsageError, "Net(color=1) does not fit its signature (depth, width=1)"),
        ("net.py:make(fail=True)", ModelError, "calling make(fail=True): KeyError: 'no such net'"),
    ],
)
def test_a_call_that_fails_is_reported_with_the_reason(text: str, kind: type[GradscopeError], message: str) -> None:
    write("net.py", CLASS)
    error = refusal(text)
    assert type(error) is kind
    assert error.message == message


def test_functions_whose_signature_cannot_be_known_are_taken_at_their_word() -> None:
    write("net.py", "init = batch = loss = max\n")
    assert load_model("net.py").loss(1, 2) == 2


@pytest.mark.parametrize("train", [None, True, False])
def test_a_loss_that_takes_its_mode_as_a_third_argument_is_told_how_it_has_one(*, train: bool | None) -> None:
    write("net.py", "def init(key): ...\ndef batch(key, size): ...\ndef loss(variables, batch, train): return train")
    with pytest.raises(ModelError, match=r"loss takes \(variables, batch, train\)") as refused:
        load_model("net.py", Request(train=train))
    assert refused.value.hint == (
        "--train and --eval set a parameter with a default: loss(variables, batch, *, train=True)"
    )


def test_a_loss_with_modes_runs_in_the_requested_one() -> None:
    write(
        "net.py",
        "def init(key): ...\ndef batch(key, size): ...\ndef loss(variables, batch, *, train=True): return train",
    )
    modes = {train: load_model("net.py", Request(train=train)).loss(1, 2) for train in (None, True, False)}
    assert modes == {None: True, True: True, False: False}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(train=False), "the loss of net does not distinguish training from evaluation"),
        (Request(loss="mse"), "a framework's module takes --loss, and net has its own batch and loss"),
        (Request(loss="sum", inputs=(parse_input("int8[1]"),)), "a framework's module takes --input and --loss, "),
    ],
)
def test_what_only_modules_take_is_refused_for_functions(request_: Request, message: str) -> None:
    write("net.py", "def init(key): ...\ndef batch(key, size): ...\ndef loss(variables, batch): ...")
    with pytest.raises(UsageError) as refused:
        load_model("net.py", request_)
    assert refused.value.message.startswith(message)


def test_a_file_that_draws_while_it_is_imported_is_seeded() -> None:
    write("net.py", "import random, numpy\nDRAWN = random.random(), numpy.random.rand()\n" + FUNCTIONS)
    drawn = [load_model("net.py", Request(seed=seed)).init.__globals__["DRAWN"] for seed in (1, 1, 2)]  # type: ignore[attr-defined]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_a_module_of_penzai_is_refused_with_what_to_do_with_its_variables(tmp_path: Path) -> None:
    # Its class is all that is looked at, so that Penzai need not be installed.
    (tmp_path / "net.py").write_text("net = type('Layer', (), {'__module__': 'penzai.core.layer'})()\n")
    with pytest.raises(ModelError) as refused:
        load_model(f"{tmp_path / 'net.py'}:net")
    assert "pz.unbind_params(model)" in str(refused.value.hint)


@pytest.mark.parametrize("forbidden", ["inner", "inner/net.py"])
def test_a_file_that_may_not_be_read_is_no_failure_of_the_model(
    forbidden: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("inner/net.py", FUNCTIONS)
    forbid(monkeypatch, folder / forbidden)
    with pytest.raises(MachineError, match=r"cannot open inner/net.py: Permission denied"):
        load_model("inner/net.py")
