"""Histories at random, in the pocket language: what engines do, and what they should not."""

from __future__ import annotations

from hypothesis import strategies as st

EVENT = st.sampled_from(
    [
        "g:+a",
        "g:-a",
        "g:+a,b",
        "g:-b,a",
        "g:+a>b",
        "g:+a>a",
        "c:+d>b",
        "g:+b>c,d",
        "g:+a,a",
        "g/1:+a",
        "g/1:-a",
        "c:+a",
        "c:-a",
        "c:+b~",
        "c:+c~",
        "CPU:-b",
        "s:+a",
        "s:+b",
        "d:+b",
        "d:-b!evicted",
        "g:-a!deleted",
        "g:+",
        "clear",
        "clear",
        "?",
        "?Moved",
    ]
)
CONTROL = st.sampled_from(
    [""] * 8
    + ["lost(1) ", "lost(2,too_old) ", "lost(1,absent_from_replay) ", "gap(2) ", "restart ", "seq(2) "]
    + ["conflict(0) ", "late(0) ", "@q ", "@q#1 ", "@engine "]
)
BATCH = st.lists(EVENT, min_size=1, max_size=5).map(" ".join) | st.sampled_from([".", "garbage"])
HISTORIES = st.lists(st.tuples(CONTROL, BATCH).map("".join), max_size=14).map(" | ".join)
