"""What two parameters' layers have in common is counted, in work that grows with the layers and not with its square."""

from __future__ import annotations

import pytest

from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values import same_use
from gradscope.comparison.pairing.values.same_use import SameUse
from gradscope.dump.manifest.manifest import Layer, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.work import steps


def dumps_of(count: int) -> Dumps:
    """Two dumps of one layer that uses so many parameters, under other names."""
    ref, cand = (
        MemoryDump(
            Manifest(
                entries=(),
                layers=(Layer(path=name, index=0, params=tuple(f"{name}{n}" for n in range(count)), outputs=(name,)),),
            ),
            {},
        )
        for name in "ab"
    )
    return Dumps(ref=ref, cand=cand)


def test_a_layer_of_some_parameters_is_known_completely() -> None:
    use = SameUse(
        dumps_of(100), [Match.of("activation/a", "activation/b", "name"), Match.of("param/a1", "param/b1", "name")]
    )
    assert use.likely("param/a2") == {f"param/b{n}" for n in range(100)}
    assert use.shared(Match.of("param/a2", "param/b2", "name")) == 2
    assert use.shared(Match.of("param/a2", "param/b1", "name")) == 1


def test_work_grows_with_the_parameters_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_use, "_MOST_AROUND", 100)
    monkeypatch.setattr(same_use, "_MOST_USERS", 100)

    def counted(count: int) -> int:
        dumps, found = dumps_of(count), [0]

        def count_all() -> None:
            use = SameUse(dumps, [Match.of("activation/a", "activation/b", "name")])
            found[0] = sum(len(use.likely(f"param/a{n}")) for n in range(count))

        made = steps(count_all)
        return made + found[0]

    assert counted(240) < 5 * counted(60)
