"""The built-in benchmark: reproducible images, four domains, no test digit among the training digits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import fedspecial
from fedspecial.data.benchmarks import digits_shift
from fedspecial.errors import InputError


@pytest.fixture(scope="module")
def benchmark():
    return digits_shift.load()


@pytest.fixture(scope="module")
def validation():
    return digits_shift.load(split="validation")


def image_bytes(samples):
    return {image.numpy().tobytes() for image in samples.x}


def test_it_has_four_domains_with_ten_digits_each(benchmark):
    assert benchmark.check() is benchmark
    assert benchmark.task_names == ["paper", "neon", "photo", "hatch"]
    assert benchmark.input_shape == (3, 32, 32)
    assert benchmark.incremental == "domain"
    for domain in benchmark.domains:
        assert domain.train.x.dtype == torch.uint8
        assert domain.train.y.dtype == torch.int64
        assert set(domain.train.y.tolist()) == set(domain.test.y.tolist()) == set(range(10))


def test_two_loads_are_equal_and_leave_the_global_generators_alone(benchmark):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    again = digits_shift.load()
    for one, other in zip(benchmark.domains, again.domains, strict=True):
        assert torch.equal(one.train.x, other.train.x)
        assert torch.equal(one.test.x, other.test.x)
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_state, torch.get_rng_state())


@pytest.mark.parametrize("split", ["test", "validation"])
def test_training_and_held_out_digits_are_disjoint(split):
    labels = load_digits().target
    train, held_out = digits_shift.split_rows(labels, split)
    assert not set(train) & set(held_out)
    assert len(set(train)) == len(train)
    assert len(set(held_out)) == len(held_out)


def test_three_quarters_of_each_digit_are_for_training():
    labels = load_digits().target
    train, test = digits_shift.split_rows(labels, "test")
    assert len(train) + len(test) == len(labels)
    shares = np.bincount(labels[train]) / np.bincount(labels)
    assert np.abs(shares - 0.75).max() < 0.01


def test_validation_uses_training_digits_only():
    labels = load_digits().target
    train, test = digits_shift.split_rows(labels, "test")
    smaller, validation = digits_shift.split_rows(labels, "validation")
    assert set(smaller) | set(validation) == set(train)
    assert not (set(smaller) | set(validation)) & set(test)


def test_a_digit_looks_the_same_in_both_splits(benchmark, validation):
    for full, part in zip(benchmark.domains, validation.domains, strict=True):
        assert image_bytes(part.train) | image_bytes(part.test) == image_bytes(full.train)


def test_the_choice_and_order_of_domains_do_not_change_an_image(benchmark):
    chosen = digits_shift.load(domains=("hatch", "paper"))
    assert chosen.task_names == ["hatch", "paper"]
    assert torch.equal(chosen.domains[0].train.x, benchmark.domains[3].train.x)
    assert torch.equal(chosen.domains[1].test.x, benchmark.domains[0].test.x)


def test_a_cap_keeps_every_digit_equally_often_and_the_full_test_set(benchmark):
    capped = digits_shift.load(cap=50)
    for domain, full in zip(capped.domains, benchmark.domains, strict=True):
        assert torch.equal(domain.train.x, full.train.x[:50])
        assert torch.bincount(domain.train.y).tolist() == [5] * 10
        assert torch.equal(domain.test.x, full.test.x)


def test_simple_statistics_tell_the_domains_apart(benchmark):
    """Brightness, contrast and fineness of each channel suffice to classify the domain of an unseen image."""

    def statistics(part):
        images = torch.cat([getattr(domain, part).x for domain in benchmark.domains]).float()
        steps = images.diff(dim=2).abs().mean((2, 3)) + images.diff(dim=3).abs().mean((2, 3))
        names = np.repeat(benchmark.task_names, len(getattr(benchmark.domains[0], part)))
        return torch.cat([images.mean((2, 3)), images.std((2, 3)), steps], dim=1).numpy(), names

    classifier = RandomForestClassifier(30, random_state=0).fit(*statistics("train"))
    assert classifier.score(*statistics("test")) > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": ("papper",)}, r"domains=papper: .*did you mean 'paper'\?.* paper, neon, photo, hatch"),
        ({"cap": 0}, r"cap=0: must be at least 1"),
        ({"split": "train"}, r"split=train: must be 'test' or 'validation'"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        digits_shift.load(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_its_preset_every_domain_is_learned_and_fedavg_forgets(tmp_path):
    results = [
        fedspecial.run("digits-shift", method="fedavg", seed=seed, out=tmp_path / str(seed)) for seed in (25, 225, 2025)
    ]
    for result in results:
        assert min(result.matrix[task][task] for task in range(4)) > 0.8
    assert np.mean([result.bwt for result in results]) <= -0.1
