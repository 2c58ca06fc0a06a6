"""What improves a model: one loop, and the proposals that it tries.

`loop.py` is the algorithm: propose a change, make the candidate, score it on samples that it was
not made from, keep it if that is better. Who asks for it names proposals in a table: effort levels
in `effort.py`, the purposes of `bitwright.tune` in `jobs/tuning`, fallbacks in `sensitivity.py`.
"""
