"""What the proofs share: dumps that real commands wrote, each once in a run of the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.oracle.commands import Dumped, gradscope
from tests.oracle.zoo import ZOO


@pytest.fixture(scope="session")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dumped]:
    """Dumps a model of the zoo, by its name and options of `gradscope dump`; asked again, gives the same dump."""
    known: dict[tuple[object, ...], Dumped] = {}

    def dump(name: str, *options: object) -> Dumped:
        if (name, *options) not in known:
            case, path = ZOO[name], tmp_path_factory.mktemp("dumped") / "run.npz"
            size = ("--batch-size", case.examples)
            command = gradscope("dump", case.target, "-o", path, *size, "--json", "--quiet", *options)
            known[name, *options] = Dumped(path=path, command=command)
        return known[name, *options]

    return dump
