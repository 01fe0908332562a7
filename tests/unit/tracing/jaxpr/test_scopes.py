"""Scope paths: how scopes, iterations and calls make a name."""

from __future__ import annotations

import pytest

from gradscope.tracing.jaxpr.scopes import ScopePath


def test_scopes_are_joined_from_the_outermost_inwards() -> None:
    assert ScopePath().scope("encoder").scope("dense").template == "encoder/dense"


def test_a_loop_adds_a_iteration_to_the_scope_it_runs_in() -> None:
    path = ScopePath().scope("blocks").loop().scope("attn")
    assert path.template == "blocks[*]/attn"
    assert str(path.at([3])) == "blocks[3]/attn"


def test_nested_loops_add_up_on_the_scope_they_share_and_apart_on_their_own() -> None:
    shared = ScopePath().scope("blocks").loop().loop().scope("attn")
    apart = ScopePath().scope("outer").loop().scope("inner").loop()
    assert str(shared.at([3, 0])) == "blocks[3][0]/attn"
    assert str(apart.at([3, 0])) == "outer[3]/inner[0]"


def test_a_loop_that_no_scope_encloses_marks_the_first_scope_inside() -> None:
    path = ScopePath().loop().loop().scope("attn").scope("query")
    assert str(path.at([1, 2])) == "attn[1][2]/query"


def test_the_occurrence_stands_at_the_end_and_the_output_behind_it() -> None:
    path = ScopePath().scope("lstm").loop().occurring(2)
    assert path.template == "lstm[*]#2"
    assert str(path.at([0]).with_output(1)) == "lstm[0]#2.1"


def test_slashes_divide_a_name_and_make_no_empty_scopes() -> None:
    assert ScopePath().scope("/a//b/") == ScopePath().scope("a").scope("b")


def test_a_new_scope_is_entered_for_the_first_time() -> None:
    assert ScopePath().scope("a").occurring(3).scope("b").occurrence == 1


def test_a_module_that_another_calls_has_its_own_path_and_the_iterations_of_the_call() -> None:
    student = ScopePath().scope("student").scope("Net")
    decoder = student.scope("decoder")
    assert decoder.scope("//gradscope/1/Net/encoder/embed").template == "student/Net/encoder/embed"
    assert decoder.loop().scope("//gradscope/1/Net/encoder/embed").template == "student/Net/encoder/embed[*]"
    assert student.loop().scope("decoder").scope("//gradscope/1/Net/encoder").template == "student/Net[*]/encoder"
    assert student.loop_within().scope("//gradscope/1/Net/cell").template == "student/Net/cell[*]"


def test_what_a_method_calls_is_its_modules() -> None:
    method = ScopePath().scope("Net").scope("vae.encode")
    assert method.scope("//gradscope/2/Net/vae/fc").template == "Net/vae/fc"
    assert method.loop().scope("//gradscope/2/Net/vae/fc").template == "Net/vae[*]/fc"
    assert ScopePath().scope("Net.encode").scope("vae").scope("//gradscope/1/Net/fc").template == "Net.encode/fc"


def test_scopes_of_the_users_own_stay_between_modules_that_are_shared() -> None:
    coder = ScopePath().scope("Net").scope("mine").scope("coder")
    assert coder.scope("//gradscope/2/Net/coder.encode").template == "Net/mine/coder.encode"
    assert coder.scope("//gradscope/2/Net/coder/fc").template == "Net/mine/coder/fc"
    assert coder.scope("encoder").scope("//gradscope/1/Net/encoder/fc").template == "Net/encoder/fc"


def test_a_path_from_a_root_that_is_not_there_is_relative() -> None:
    assert ScopePath().scope("solver").scope("//gradscope/2/Net/vae/fc").template == "solver/vae/fc"


@pytest.mark.parametrize(
    "name", ["//x", "//3", "//1/a", "//2/Net/b", "//gradscope", "//gradscope/1", "//gradscope/1/a"]
)
def test_a_scope_of_the_users_own_may_begin_with_slashes(name: str) -> None:
    assert ScopePath().scope("Net").scope(name).template == f"Net/{name.lstrip('/')}"
