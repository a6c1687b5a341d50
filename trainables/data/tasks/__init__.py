"""Synthetic tasks: inputs with targets of their own, all of which follow from the inputs, so the loss floor is 0.

`spec` describes them, one module each draws one of them, and `rows` makes the splits. Every sequence begins with a
start token, the last id of the vocabulary, as those of the hierarchy do; of a task of several difficulties each has its
own, which are the last ids. Where a sequence is shorter than the context, start tokens fill what is free before it.
The id one past the vocabulary marks a target that is not scored.
"""
