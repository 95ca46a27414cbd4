"""DDP's buckets by hand: where they are closed, and which caps make other buckets."""

from __future__ import annotations

from ddpbench.spec.buckets import MIB, bucket_bytes, caps_worth, equal_words

SIZES = (MIB // 2, MIB // 2, 3 * MIB, MIB // 4, MIB // 4)


def test_a_bucket_is_closed_by_the_gradient_with_which_it_reaches_its_cap() -> None:
    assert bucket_bytes(SIZES, 1) == (MIB, 3 * MIB, MIB // 2)
    assert bucket_bytes(SIZES, 2) == (4 * MIB, MIB // 2)
    assert bucket_bytes(SIZES, 0.4) == (MIB // 2, MIB // 2, 3 * MIB, MIB // 2)
    assert bucket_bytes(SIZES, 1000) == (sum(SIZES),)


def test_ddps_default_has_a_first_bucket_of_1_mib_and_others_of_25() -> None:
    assert bucket_bytes(SIZES, "default") == (MIB, 3 * MIB + MIB // 2)
    assert bucket_bytes([40 * MIB, 20 * MIB, 20 * MIB, MIB], "default") == (40 * MIB, 40 * MIB, MIB)


def test_caps_are_divided_as_gradients_are_that_a_case_shrinks() -> None:
    shrunk = [size // 4 for size in SIZES]
    for cap in ("default", 1, 2.5):
        assert [4 * size for size in bucket_bytes(shrunk, cap, 4)] == list(bucket_bytes(SIZES, cap))


def test_caps_worth_trying_follow_from_the_gradients_and_make_other_buckets() -> None:
    """Ten of 36 KiB: a half, a quarter, an eighth of 0.35 MiB close after 5, 3 and 2 of them."""
    sizes = [36 * 1024] * 10
    worth = caps_worth(sizes, ["default", 1])
    assert worth == (0.18, 0.088, 0.044)
    assert [len(bucket_bytes(sizes, cap)) for cap in worth] == [2, 4, 5]
    assert caps_worth(sizes, ["default", 0.18]) == (0.088, 0.044, 0.022)
    assert caps_worth([MIB], ["default", 1]) == ()


def test_what_is_run_once_is_said_in_a_sentence() -> None:
    assert equal_words("train.py:Mine", "default", (1, 2), (0.18, 0.09)) == (
        "train.py:Mine: bucket caps default, 1 MiB and 2 MiB make the same buckets and are run once; caps that make "
        "others: 0.18 and 0.09 MiB"
    )
