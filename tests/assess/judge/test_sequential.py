"""The sequential test is wrong no more often than it says, and ends early where it can."""

import math

import numpy as np
import pytest

from bitwright.assess.judge.sequential import Drop, drop_of_folds, drop_of_pairs, look_sizes

LIMIT = 0.01


def draw(random, drop, flips, count):
    """Return paired scores: `flips` of the answers change, and `drop` more are lost than won."""
    lost, won = (flips + drop) / 2, (flips - drop) / 2
    before = (random.random(count) < 0.75).astype(float)
    kind = random.random(count)
    before[kind < lost] = 1
    before[(kind >= lost) & (kind < lost + won)] = 0
    after = before.copy()
    after[kind < lost] = 0
    after[(kind >= lost) & (kind < lost + won)] = 1
    return before, after


def run(before, after, limit):
    """Return the verdict, whether it came early or was sure, and how many samples it took."""
    for size in look_sizes(len(before)):
        found = drop_of_pairs(before[:size], after[:size])
        verdict = found.verdict(limit, last=size == len(before))
        if verdict != "open":
            sure = found.verdict(limit, last=False) != "open"
            return verdict, sure, size
    raise AssertionError("the last look decides")


def rates(drop, flips, count, trials=1000):
    random = np.random.default_rng(0)
    found = [run(*draw(random, drop, flips, count), LIMIT) for _ in range(trials)]
    passed = sum(verdict == "pass" for verdict, _, _ in found) / trials
    sure_pass = sum(verdict == "pass" and sure for verdict, sure, _ in found) / trials
    sure_fail = sum(verdict == "fail" and sure for verdict, sure, _ in found) / trials
    return passed, sure_pass, sure_fail, float(np.mean([size for _, _, size in found]))


@pytest.mark.parametrize(("flips", "count"), [(0.03, 1000), (0.1, 400), (0.012, 2000)])
def test_at_the_limit_itself_each_sure_verdict_is_wrong_in_five_percent_at_most(flips, count):
    _, sure_pass, sure_fail, _ = rates(LIMIT, flips, count)
    assert sure_pass < 0.05
    assert sure_fail < 0.05


@pytest.mark.parametrize(("share", "count"), [(0.2, 320), (0.2, 1600), (0.05, 3200)])
def test_where_few_samples_lose_much_a_model_at_the_limit_hardly_passes_early(share, count):
    random = np.random.default_rng(0)

    def change():
        hit = random.random(count) < share
        return np.where(hit, random.exponential(LIMIT / share, count), 0.0)

    found = [run(change(), np.zeros(count), LIMIT) for _ in range(1000)]
    assert sum(verdict == "pass" and size < count for verdict, _, size in found) < 60


def test_no_model_passes_before_fifty_samples_but_one_may_fail():
    random = np.random.default_rng(0)
    noise = random.normal(0, 1e-4, 400)
    assert run(noise, np.zeros(400), LIMIT)[2] == 50
    assert run(noise[:200], np.zeros(200), LIMIT)[2] == 50
    assert run(noise + 0.1, np.zeros(400), LIMIT)[2] == 50
    assert run(noise[:200] + 0.1, np.zeros(200), LIMIT)[2] == 25


def test_a_drop_far_beyond_the_limit_never_passes_and_takes_a_fraction_of_the_samples():
    passed, _, sure_fail, samples = rates(0.08, 0.1, 1000)
    assert passed == 0
    assert sure_fail > 0.99
    assert samples < 250


def test_a_model_without_a_drop_passes_and_takes_fewer_samples():
    passed, _, sure_fail, samples = rates(0.0, 0.003, 2000)
    assert passed > 0.99
    assert sure_fail < 0.001
    assert samples < 1200


def test_a_few_equal_pairs_prove_nothing():
    same = np.ones(50)
    assert drop_of_pairs(same, same).verdict(0.01, last=False) == "open"
    assert drop_of_pairs(np.ones(5000), np.ones(5000)).verdict(0.01, last=False) == "pass"


def test_the_error_of_pairs_is_that_of_repeated_draws():
    random = np.random.default_rng(1)
    found = [drop_of_pairs(*draw(random, 0.02, 0.1, 500)) for _ in range(1000)]
    spread = np.std([one.mean for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.1)


def test_the_jackknife_over_folds_has_the_error_of_the_mean_where_the_metric_is_one():
    random = np.random.default_rng(2)
    change = random.normal(0.02, 0.3, 400)
    folds = [change[np.arange(400) % 20 != fold].mean() for fold in range(20)]
    found = drop_of_folds(400, change.mean(), folds, 0.0)
    assert found.error == pytest.approx(change.std() / math.sqrt(400), rel=0.4)


@pytest.mark.parametrize(("drop", "wrong"), [(LIMIT, 0.05), (0.05, 0.0)])
@pytest.mark.sampled(1)
def test_a_metric_of_the_set_passes_early_as_rarely_as_one_of_samples(drop, wrong):
    """Of 1,000 models at the limit itself, and of as many far beyond it."""
    random = np.random.default_rng(4)

    def passes_early():
        before, after = draw(random, drop, 0.06, 1600)
        for size in look_sizes(1600)[:-1]:
            change = (before - after)[:size]
            folds = [change[np.arange(size) % 20 != fold].mean() for fold in range(20)]
            found = drop_of_folds(size, change.mean(), folds, 0.75)
            if found.verdict(LIMIT, last=False) != "open":
                return found.mean < LIMIT
        return False

    assert sum(passes_early() for _ in range(1000)) <= 1000 * wrong


def test_an_unknown_error_leaves_the_mean_to_decide():
    found = Drop(100, 0.02, math.nan)
    assert found.interval is None
    assert found.verdict(0.01, last=True) == "fail"
    assert found.verdict(0.01, last=False) == "open"
    assert not found.is_sure(0.01)


def test_of_models_that_are_unlikely_to_be_within_the_limit_one_in_ten_is_in_the_end():
    """Of those at the bound itself, whatever their drop is: any was as likely beforehand."""
    random = np.random.default_rng(5)
    looked, all_samples, within = 100, 800, []
    for drop in random.uniform(-0.3, 0.5, 40_000):
        first = drop + random.normal(0, 1, looked).mean()
        found = Drop(looked, first, 1 / math.sqrt(looked))
        at, above = (found.is_unlikely(limit, all_samples) for limit in (0.0, 0.004))
        if at and not above:
            rest = drop + random.normal(0, 1) / math.sqrt(all_samples - looked)
            within.append((looked * first + (all_samples - looked) * rest) / all_samples <= 0.002)
    assert len(within) > 150
    assert np.mean(within) == pytest.approx(0.1, abs=0.06)


def test_what_is_not_known_is_not_unlikely():
    assert not Drop(100, 0.02, math.nan).is_unlikely(0.01, 800)
    assert Drop(100, 0.02, 1.0).is_unlikely(0.01, 100)  # nothing is left to be seen


def test_a_drop_says_how_sure_it_is():
    found = Drop(samples=400, mean=0.01, error=0.004)
    assert str(found.interval) == "0.00216 to 0.0178"
    assert found.verdict(0.03, last=True) == "pass"
    assert found.verdict(0.015, last=False) == "open"
    assert found.needed_samples(0.012) == 6147
    wider = Drop(samples=400, mean=0.01, error=0.005)
    assert wider.describe() == "0.01 (0.0002 to 0.0198) on 400 samples"


def test_a_drop_that_is_far_above_the_limit_is_unlikely_to_fall_below_it():
    found = Drop(samples=200, mean=0.02, error=0.01)
    assert found.is_unlikely(0.005, 800) and not found.is_unlikely(0.015, 800)


def test_errors_count_one_more_sample_with_the_largest_change():
    found = drop_of_pairs([1, 1, 1, 0], [1, 0, 1, 0])
    assert (found.samples, found.mean, round(found.error, 4)) == (4, 0.25, 0.3307)
    folds = drop_of_folds(100, 0.02, [0.03, 0.01, 0.03, 0.01], 0.75)
    assert round(folds.error, 4) == 0.0214
    assert drop_of_folds(100, 0.0, [0.0] * 4, 0.75).error == 0.0075


def test_looks_are_at_parts_of_the_samples():
    assert look_sizes(400) == (50, 100, 200, 400)
    assert look_sizes(60) == (30, 60)
