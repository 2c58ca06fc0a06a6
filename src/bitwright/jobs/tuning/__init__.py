"""Tuning: the smallest or fastest model that keeps the user's metric.

1. an effort level (`jobs.improve.effort`) gives one plan, which all later models are made from
2. what each unit of that plan adds to the error of the outputs, in each of its states
3. what each unit costs in each state: milliseconds of the runtime's profile, or bytes
4. the front of cost against error: a multiple-choice knapsack
5. the metric along the front, by bisection, and a few steps back to cheaper states
6. each model is scored on no more samples than a paired sequential test asks for

`purposes.py` says what is tried in which order; the loop is that of `jobs.improve`.
"""
