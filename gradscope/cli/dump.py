"""`gradscope dump`: run one batch forward and backward, write what was seen, print the table."""

from __future__ import annotations
