"""The tables as people see them, character by character."""

from __future__ import annotations

from gradscope.presentation import (
    ComparisonReport,
    LedgerReport,
    ProofReport,
    Screen,
    tensor_report,
    to_markdown,
    to_text,
)
from tests.support.report_samples import (
    TERMINAL,
    different_runs,
    one_tensor,
    same_runs,
    scanned_network,
    small_network,
    text_of,
)

# Expected tables keep the blanks that a terminal shows, and are as wide as it is.
# ruff: noqa: E501


def test_a_dump_at_eighty_columns() -> None:
    assert (
        text_of(small_network())
        == """\
Inputs (2)
                                                              gradient ─────────
name   shape        dtype    mean    std    min   max  zeros       rms      amax
image  [8,32,32,3]         0.0100  0.990  -4.10  3.90     0%  3.20e-05  4.40e-04
label  [8]          int32                  0     9     12.5%

Layers (8)
                           activation ───────  gradient ──────────
name         shape            rms   dead  nan       rms  bwd_total  notes
stem         [8,16,16,16]   0.610   6.2%    0  2.10e-03   2.31e-03
  conv       [8,16,16,16]   1.020     0%    0  2.00e-03   2.20e-03
  relu       [8,16,16,16]   0.610   6.2%    0  2.10e-03   2.31e-03
block1       [8,8,8,32]     0.220  87.5%    0  9.10e-05             dead
  conv       [8,8,8,32]     1.310     0%    0  8.40e-04   9.24e-04
  relu       [8,8,8,32]     0.220  87.5%    0  9.10e-05   1.00e-04  dead
block2/conv  [8,8,8,32]    12.700     0%    3  5.50e-09   6.05e-09
loss         []             2.310     0%    0  1.00e+00   1.10e+00
hidden at this width: dtype, activation mean, activation std, activation zeros,
activation fwd_gain, gradient amax, gradient zeros, gradient bwd_gain, source,
alias_of (--format json has all numbers)

Parameters (4)
                    param  gradient ────────
name                   l2       l2       g/w  notes
spare/kernel         2.00                     unused-param, disconnected
stem/conv/kernel     5.61  0.41300  7.36e-02
stem/conv/bias       0     0.00210
block1/conv/kernel  11.90  0.00102  8.57e-05
hidden at this width: shape, param mean, param std, param amax, gradient rms,
gradient amax, gradient zeros, source (--format json has all numbers)

Findings (2)
dead          activation/block1/relu has 87.5% dead units: 28 of 32 are zero at
              all 512 positions (net.py:14)
unused-param  param/spare/kernel does not reach the loss

verdict     dead: activation/block1/relu has 87.5% dead units: 28 of 32 are zero
            at all 512 positions (net.py:14)
repair      lower the learning rate or warm it up, look at the biases before the
            rectifier, or use one that passes a gradient below zero
explain     gradscope explain dead
loss        2.30714
tensors     24 captured, 1 non-differentiable (of a dtype without gradients), 1
            disconnected (the loss does not depend on them)
self-check  2 of 3 parameter gradients are bit for bit those of the plain
            program; the largest rel_l2 is 3.20e-07
seconds     compile 1.290, run 0.031
run         jax 0.10.2, backend cpu, seed 0
dump        run.npz
"""
    )


def test_a_dump_at_a_hundred_and_sixty_columns() -> None:
    assert (
        text_of(small_network(), Screen(width=160))
        == """\
Inputs (2)
                                                              gradient ─────────
name   shape        dtype    mean    std    min   max  zeros       rms      amax
image  [8,32,32,3]         0.0100  0.990  -4.10  3.90     0%  3.20e-05  4.40e-04
label  [8]          int32                  0     9     12.5%

Layers (8)
                                     activation ──────────────────────────────────────────  gradient ─────────────────────────────────────
name         shape         dtype         mean     std     rms  zeros   dead  nan  fwd_gain       rms      amax  zeros  bwd_gain  bwd_total  notes  source
stem         [8,16,16,16]             0.25000   0.610   0.610  49.1%   6.2%    0     0.610  2.10e-03  1.05e-02     0%      1.10   2.31e-03         net.py:11
  conv       [8,16,16,16]            -0.00400   1.020   1.020     0%     0%    0     1.020  2.00e-03  1.00e-02     0%      1.10   2.20e-03         net.py:11
  relu       [8,16,16,16]             0.25000   0.610   0.610  49.1%   6.2%    0     0.610  2.10e-03  1.05e-02     0%      1.10   2.31e-03         net.py:12
block1       [8,8,8,32]               0.25000   0.220   0.220  93.8%  87.5%    0            9.10e-05  4.55e-04     0%                       dead   net.py:13
  conv       [8,8,8,32]    bfloat16   0.25000   1.310   1.310     0%     0%    0     1.310  8.40e-04  4.20e-03     0%      1.10   9.24e-04         net.py:13
  relu       [8,8,8,32]               0.25000   0.220   0.220  93.8%  87.5%    0     0.220  9.10e-05  4.55e-04     0%      1.10   1.00e-04  dead   net.py:14
block2/conv  [8,8,8,32]               0.25000  12.700  12.700     0%     0%    3    12.700  5.50e-09  2.75e-08     0%      1.10   6.05e-09         net.py:15
loss         []                       0.25000   2.310   2.310     0%     0%    0     2.310  1.00e+00  5.00e+00     0%      1.10   1.10e+00         net.py:16
hidden at this width: alias_of (--format json has all numbers)

Parameters (4)
                                 param ────────────────────  gradient ───────────────────────────────────
name                shape         mean    std     l2   amax       l2       rms      amax  zeros       g/w  notes                       source
spare/kernel        [4,4]        0.100  0.500   2.00  1.000                                                unused-param, disconnected
stem/conv/kernel    [3,3,3,16]   0      0.270   5.61  0.810  0.41300  1.99e-02  2.06e-01     0%  7.36e-02                              net.py:3
stem/conv/bias      [16]         0      0       0     0      0.00210  5.25e-04  1.05e-03     0%                                        net.py:3
block1/conv/kernel  [3,3,16,32]  0      0.175  11.90  0.526  0.00102  1.50e-05  5.10e-04     0%  8.57e-05                              net.py:3

Findings (2)
dead          activation/block1/relu has 87.5% dead units: 28 of 32 are zero at all 512 positions (net.py:14)
unused-param  param/spare/kernel does not reach the loss

verdict     dead: activation/block1/relu has 87.5% dead units: 28 of 32 are zero at all 512 positions (net.py:14)
repair      lower the learning rate or warm it up, look at the biases before the rectifier, or use one that passes a gradient below zero
explain     gradscope explain dead
loss        2.30714
tensors     24 captured, 1 non-differentiable (of a dtype without gradients), 1 disconnected (the loss does not depend on them)
self-check  2 of 3 parameter gradients are bit for bit those of the plain program; the largest rel_l2 is 3.20e-07
seconds     compile 1.290, run 0.031
run         jax 0.10.2, backend cpu, seed 0
dump        run.npz
"""
    )


def test_the_iterations_of_a_loop_fold_on_a_terminal_with_a_note() -> None:
    assert (
        text_of(scanned_network())
        == """\
Layers (10)
                                activation ──────────────────  gradient ───────
name               shape               std         rms  zeros               rms
embed              [4,128,512]  1.00        1.00           0%  0.00100
block[0..2]
  attention/query  [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
  attention/out    [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
  mlp              [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
10 lines folded to 4: name[a..b] stands for iterations a to b, low..high for the
extremes over them; --no-fold shows each
hidden at this width: gradient zeros (--format json has all numbers)

verdict  nothing looks wrong
loss     5
dump     run.npz
"""
    )


def test_an_ascii_terminal_gets_ascii() -> None:
    assert (
        text_of(scanned_network(), Screen(width=80, unicode=False))
        == """\
Layers (10)
                                activation ------------------  gradient -------
name               shape               std         rms  zeros               rms
embed              [4,128,512]  1.00        1.00           0%  0.00100
block[0..2]
  attention/query  [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
  attention/out    [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
  mlp              [4,128,512]  1.00..3.00  1.00..3.00     0%  0.00100..0.00300
10 lines folded to 4: name[a..b] stands for iterations a to b, low..high for the
extremes over them; --no-fold shows each
hidden at this width: gradient zeros (--format json has all numbers)

verdict  nothing looks wrong
loss     5
dump     run.npz
"""
    )


def test_a_comparison_shows_what_differs_and_what_would_pass() -> None:
    assert (
        to_text(ComparisonReport(comparison=different_runs()), TERMINAL).plain
        == """\
different  Forward first differs at `block1/conv` (rel_l2 2.4e-3). Backward
           first differs at `block1` (rel_l2 3.1e-2); 1 tensor only in the
           reference, of `head/bias`.

The runs differ in
versions.jax  0.10.2 -> 0.12.0
seed          0 -> (unknown)

activation (4 of 5)
name    status       rel_l2  tolerance  norm_ratio  max_abs  mismatch  bit_equal
block1  different  9.70e-04   1.00e-04        1.00  0.00291     25.0%  no
  conv  different  2.40e-03   1.00e-04        1.00  0.00720     25.0%  no
  bn    different  1.10e-03   1.00e-04        1.00  0.00330     25.0%  no
  relu  different  9.70e-04   1.00e-04        1.00  0.00291     25.0%  no

param (1 of 2)
name       status
head/bias  missing

activation_grad (1 of 1)
name    status     rel_l2  tolerance  norm_ratio  max_abs  mismatch  bit_equal
block1  different  0.0310   5.00e-04        1.03   0.0930     25.0%  no

Reasons
missing  param/head/bias: not in the candidate

same           1 input, 1 activation, 1 param (--all shows them)
would pass     --tol 3.1e-2 is the smallest tolerance on rel_l2 for all rows
               that both dumps have
one side only  --allow-missing REGEX lets pass what one dump lacks, here 1
"""
    )


def test_a_comparison_worst_first_with_everything() -> None:
    assert (
        to_text(ComparisonReport(comparison=different_runs(), everything=True, worst_first=True), TERMINAL).plain
        == """\
different  Forward first differs at `block1/conv` (rel_l2 2.4e-3). Backward
           first differs at `block1` (rel_l2 3.1e-2); 1 tensor only in the
           reference, of `head/bias`.

The runs differ in
versions.jax  0.10.2 -> 0.12.0
seed          0 -> (unknown)

input (1 of 1)
name   status  rel_l2  tolerance  norm_ratio  max_abs  mismatch  bit_equal
image  same         0   1.00e-04        1.00        0        0%  yes

activation (5 of 5)
name         status       rel_l2  tolerance  norm_ratio   max_abs  mismatch
block1/conv  different  2.40e-03   1.00e-04        1.00  7.20e-03     25.0%
block1/bn    different  1.10e-03   1.00e-04        1.00  3.30e-03     25.0%
block1/relu  different  9.70e-04   1.00e-04        1.00  2.91e-03     25.0%
block1       different  9.70e-04   1.00e-04        1.00  2.91e-03     25.0%
stem         same       3.10e-07   1.00e-04        1.00  9.30e-07     25.0%
hidden at this width: bit_equal (--format json has all numbers)

param (2 of 2)
name              status   rel_l2  tolerance  norm_ratio  max_abs  mismatch
head/bias         missing
stem/conv/kernel  same          0   1.00e-04        1.00        0        0%
hidden at this width: bit_equal (--format json has all numbers)

activation_grad (1 of 1)
name    status     rel_l2  tolerance  norm_ratio  max_abs  mismatch  bit_equal
block1  different  0.0310   5.00e-04        1.03   0.0930     25.0%  no

Reasons
missing  param/head/bias: not in the candidate

would pass     --tol 3.1e-2 is the smallest tolerance on rel_l2 for all rows
               that both dumps have
one side only  --allow-missing REGEX lets pass what one dump lacks, here 1
"""
    )


def test_a_comparison_of_equal_runs_is_short() -> None:
    assert (
        to_text(ComparisonReport(comparison=same_runs()), TERMINAL).plain
        == """\
same  Same within tolerance: 2 tensors, largest rel_l2 3.1e-7 at `stem`,
      bit-equal 1.

same  1 activation, 1 param (--all shows them)
"""
    )


def test_a_comparison_in_markdown() -> None:
    assert (
        to_markdown(ComparisonReport(comparison=different_runs()))
        == """\
- **different** Forward first differs at \\`block1/conv\\` (rel\\_l2 2.4e-3). Backward first differs at \\`block1\\` (rel\\_l2 3.1e-2); 1 tensor only in the reference, of \\`head/bias\\`.

### The runs differ in

- **versions.jax** 0.10.2 -\\> 0.12.0
- **seed** 0 -\\> (unknown)

### activation (4 of 5)

| name | status | rel\\_l2 | tolerance | norm\\_ratio | max\\_abs | mismatch | bit\\_equal |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
| `block1` | `different` | 9.70e-04 | 1.00e-04 | 1.00 | 0.00291 | 25.0% | `no` |
| `block1/conv` | `different` | 2.40e-03 | 1.00e-04 | 1.00 | 0.00720 | 25.0% | `no` |
| `block1/bn` | `different` | 1.10e-03 | 1.00e-04 | 1.00 | 0.00330 | 25.0% | `no` |
| `block1/relu` | `different` | 9.70e-04 | 1.00e-04 | 1.00 | 0.00291 | 25.0% | `no` |

### param (1 of 2)

| name | status |
| --- | --- |
| `head/bias` | `missing` |

### activation\\_grad (1 of 1)

| name | status | rel\\_l2 | tolerance | norm\\_ratio | max\\_abs | mismatch | bit\\_equal |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
| `block1` | `different` | 0.0310 | 5.00e-04 | 1.03 | 0.0930 | 25.0% | `no` |

### Reasons

- **missing** param/head/bias: not in the candidate

<!-- -->

- **same** 1 input, 1 activation, 1 param (--all shows them)
- **would pass** --tol 3.1e-2 is the smallest tolerance on rel\\_l2 for all rows that both dumps have
- **one side only** --allow-missing REGEX lets pass what one dump lacks, here 1
"""
    )


def test_what_is_not_in_a_dump() -> None:
    assert (
        to_text(LedgerReport(path="run.npz", manifest=small_network()), TERMINAL).plain
        == """\
Not in the dump (2)
name          family      reason              detail
label         input_grad  non-differentiable  int32
spare/kernel  param_grad  disconnected

tensors  24 captured, 1 non-differentiable (of a dtype without gradients), 1
         disconnected (the loss does not depend on them)
dump     run.npz
"""
    )


def test_one_tensor_in_detail() -> None:
    assert (
        to_text(tensor_report("run.npz", one_tensor(), "relu", ()), TERMINAL).plain
        == """\
activation/relu
shape      [9]
dtype      float32
size       9
zeros      3 (33.3%)
nan        1 (11.1%)
inf        0 (0%)
mean       5.5375
std        13.04
rms        14.16
l2         40.07
l1         44.3
min        0
max        40
amax       40
amin_nz    0.3
posinf     0 (0%)
neginf     0 (0%)
subnormal  0 (0%)
source     net.py:12

Elements by magnitude
magnitude     count  share
0                 3  33.3%  ████████████████████████████████
2^-2 .. 2^-1      1  11.1%  ██████████▊
2^-1 .. 2^0       1  11.1%  ██████████▊
2^0 .. 2^1        2  22.2%  █████████████████████▍
2^1 .. 2^2        0     0%
2^2 .. 2^3        0     0%
2^3 .. 2^4        0     0%
2^4 .. 2^5        0     0%
2^5 .. 2^6        1  11.1%  ██████████▊
nan               1  11.1%  ██████████▊

dump  run.npz
"""
    )


def test_a_wrong_rule_that_may_be_meant_so_is_told_how_it_is_allowed() -> None:
    rule = {
        "what": "custom rule of rounded", "status": "wrong", "error": 1.0, "expected": 1e-7,
        "source": "net.py:3", "why": "x: not zero, as the derivative is", "allow": "<lambda>",
    }  # fmt: skip
    claims = [rule, {"what": "param_grad/w", "status": "wrong", "error": 0.5, "expected": 1e-7}]
    assert (
        to_text(ProofReport(target="net.py", verdict="wrong", claims=claims), TERMINAL).plain
        == """\
wrong   custom rule of rounded (x: not zero, as the derivative is) and 1
        gradient; claims: 2 wrong
meant?  --allow '<lambda>' excuses what is no derivative on purpose: a
        straight-through estimator, a gradient that is reversed or clipped

Claims (2)
what                    status  error  why
custom rule of rounded  wrong   1.000  x: not zero, as the derivative is
param_grad/w            wrong   0.500
hidden at this width: expected, source (--format json has all numbers)
"""
    )
