"""Segments run a traced loss part by part, forwards and then backwards, so that little of it is in memory at a time.

Forwards, each segment is run by itself and only the values that later segments read are kept. Backwards, from the last
to the first, each is run again from the values that it read, observed, and differentiated with the cotangents of its
outputs. This is checkpointing (Chen et al.), with the host between the segments, where observations can be written to a
file and freed.

The modules, in the order in which they are used:

1. `program_steps` divides a trace into steps: its equations, those of calls that run in place among them, and parts of
   loops whose iterations are too large for one run.
2. `cutting` groups the steps into segments.
3. `programs` has the programs that run one segment forwards, or forwards and backwards.

Vocabulary: a *step* is what is run or not run as one; a *segment* is a number of consecutive steps; a *kept value* is
one that a segment writes and a later one reads.

References:
    T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174 (2016).
"""
